"""Checks that namespaces, tenants and sessions keep apart."""

import asyncio
import json
import os
import secrets
import sys
from collections.abc import Sequence

from ...radix import HASH_BYTES
from ..errors import SessionRefused
from ..service.channel import Address, Place, address_parts
from .report import Failed, Skipped
from .scratch import LABEL, Scratch, expect, find, other, random_blocks, random_tokens, save

VICTIM_S = 20.0
RELEASE_S = 10.0
#: A namespace that differs in one of these must share nothing. Lengths and types are such as a real one could have.
FIELDS: dict[str, object] = {
    "weights_digest": b"another model" * 2,
    "adapter_digest": b"an adapter",
    "first_layer": 4,
    "producer": "another engine",
    "hash_name": next(name for name in HASH_BYTES if name != "sha256"),
    "dtype": "bfloat16",
    "block_tokens": 8,
    "kv_heads": 4,
    "layers": 8,
    "planes": 1,
    "head_dim": 32,
}


async def namespaces(scratch: Scratch) -> str:
    """The same tokens in a namespace that differs in one field: nothing is found, or the session is refused."""
    ours = scratch.namespace()
    client = await scratch.connect(ours)
    tokens, blocks = random_tokens(4), random_blocks(4)
    if await save(client, tokens, blocks) != 4:
        raise Skipped("the store had no room for four blocks")
    refused: list[str] = []
    for name, value in FIELDS.items():
        try:
            theirs = await scratch.connect(other(ours, **{name: value}))
        except SessionRefused:
            refused.append(name)
            continue
        given = await find(theirs, tokens)
        await theirs.release(given.lease)
        await theirs.close()
        if given.slots:
            raise Failed(f"with another {name} {len(given.slots)} blocks of a foreign namespace were given out")
    await expect(client, tokens, blocks, 4)
    more = f"; refused at once: {', '.join(refused)}" if refused else ""
    return f"{len(FIELDS)} namespaces, each of another {', '.join(FIELDS)}: none found a block{more}"


async def tenants(scratch: Scratch, places: Sequence[Place]) -> str:
    """The same namespace and tokens under two tenants' tokens: neither finds the other's blocks, nor learns of them."""
    if len(places) < 2:
        raise Skipped("give --tenant-token-file twice, of two tenants")
    namespace, tokens, blocks = scratch.namespace(), random_tokens(4), random_blocks(4)
    first = await scratch.connect(namespace, places[0])
    if await save(first, tokens, blocks) != 4:
        raise Skipped("the store had no room for four blocks of the first tenant")
    second = await scratch.connect(namespace, places[1])
    given = await find(second, tokens)
    await second.release(given.lease)
    if given.slots:
        raise Failed(f"the second tenant got {len(given.slots)} blocks of the first: are both tokens of one tenant?")
    told = given.miss is not None and "tenant" in given.miss.fields
    if given.reason != "never_seen" or told:
        raise Failed(f"the second tenant learns of the first's prompt: {given.reason!r}")
    await expect(first, tokens, blocks, 4)
    return "the first tenant's blocks were neither given nor told to the second"


async def killed_session(scratch: Scratch) -> str:
    """A process that holds a read lease and reserved slots is killed: both are free again, by themselves."""
    namespace = scratch.namespace()
    client = await scratch.connect(namespace)
    tokens, blocks = random_tokens(4), random_blocks(4)
    if await save(client, tokens, blocks) != 4:
        raise Skipped("the store had no room for four blocks")
    await scratch.status()  # Skipped before anything is started
    name = f"{LABEL}-victim-{secrets.token_hex(4)}"
    victim = await _start_victim(scratch.address, name, namespace.weights_digest, tokens)
    try:
        before = await _session(scratch, name)
        if before != (1, 2):
            raise Failed(f"the victim should hold 1 lease and 2 slots, the sidecar tells of {before}")
        loop = asyncio.get_running_loop()
        victim.kill()
        began = loop.time()
        while (held := await _session(scratch, name)) is not None:
            if loop.time() - began > RELEASE_S:
                raise Failed(f"{RELEASE_S:.0f} s after the kill the session still holds {held}")
            await asyncio.sleep(0.05)
    finally:
        if victim.returncode is None:
            victim.kill()
        await victim.wait()
    await expect(client, tokens, blocks, 4)
    return f"a killed session's lease and slots were free after {loop.time() - began:.2f} s"


async def _start_victim(
    address: Address, name: str, weights_digest: bytes, tokens: bytes
) -> asyncio.subprocess.Process:
    """A process that holds something; see victim.py."""
    plain, credentials = address_parts(address)
    files = credentials.files if credentials is not None else None
    said = {
        "address": plain,
        "client": name,
        "weights_digest": weights_digest.hex(),
        "tokens": tokens.hex(),
        "files": [str(path) if path else "" for path in (files.token, files.ca, files.cert, files.key)]
        if files
        else [],
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"{__package__}.victim",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    assert process.stdin is not None and process.stdout is not None  # noqa: PT018
    try:
        async with asyncio.timeout(VICTIM_S):
            process.stdin.write(json.dumps(said).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
    except TimeoutError:
        line = b"nothing in time"
    if line.strip() != b"holding":
        if process.returncode is None:
            process.kill()
        await process.wait()
        raise Skipped(f"a second process could not hold a lease: {line.decode('utf-8', 'replace').strip()[:200]}")
    return process


async def _session(scratch: Scratch, name: str) -> tuple[int, int] | None:
    """(read leases, reserved slots) of the session of that name; None = there is none."""
    for session in (await scratch.status()).sessions:
        if session.client == name:
            return session.read_leases, session.reserved_slots
    return None
