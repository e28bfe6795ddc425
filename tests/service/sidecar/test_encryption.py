"""A sidecar whose NVMe tier is encrypted: started with its keys, without them, and with others."""

import base64
import secrets
import subprocess
from pathlib import Path

import httpx
import pytest
from kvterrace.kvstore.service.admin import flush_store

from .test_nvme import BLOCKS, SMALL, nvme, reattached

pytestmark = pytest.mark.service


def keyfile(folder: Path, **keys: str) -> Path:
    path = folder / "keys.toml"
    path.touch(0o600)
    path.write_text("".join(f'{tenant} = "{key}"\n' for tenant, key in keys.items()))
    return path


def written(segment: Path) -> bytes:
    """All that has been written to an open segment; the rest of its 256 MiB is zeros."""
    with segment.open("rb") as file:
        return file.read(4 << 20)


def refused(own, *flags: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(own.command(*flags), capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    return done


async def test_an_encrypted_disk_serves_with_its_key_and_is_empty_without(own, connect, tools):
    default = base64.b64encode(secrets.token_bytes(32)).decode()
    keys = ("--nvme-keys", str(keyfile(own.folder, default=default)))
    own.start("--http", "127.0.0.1:0", *nvme(own.folder), *keys)
    client = await connect(own.address)
    before = client.boot_id
    prompt = tools.tokens(BLOCKS)
    assert await tools.save(client, prompt)
    assert (await flush_store(own.address, deadline_s=5.0, timeout_s=3.0)).done
    assert (await own.status()).tiers[1].devices[0].encrypted_blocks == BLOCKS
    async with httpx.AsyncClient() as http:
        page = await http.get(own.announced("http") + "/metrics")
    path = own.folder / "nvme"
    assert f'kvterrace_store_device_encrypted_blocks_total{{path="{path}"}} {float(BLOCKS)}' in page.text
    own.kill()
    disk = b"".join(written(each) for each in path.glob("*.seg"))
    assert not any(
        tools.content(block)[64:96] in disk or tools.tokens(1, 16 * block) in disk for block in range(BLOCKS)
    )

    own.start("--http", "127.0.0.1:0", *nvme(own.folder), *keys)
    await reattached(client, tools, before)
    before = client.boot_id
    given = await client.acquire(prompt, skip=0, deadline_s=5.0)
    assert given.tiers == {"nvme": BLOCKS * 16}
    assert tools.read(given) == [tools.content(block) for block in range(BLOCKS)]
    await client.release(given.lease)
    own.close()

    done = refused(own, *nvme(own.folder))
    assert "encrypted blocks, and no keys are given: --nvme-keys or KVTERRACE_KEYRING" in done.stderr
    assert "Traceback" not in done.stderr

    keyfile(own.folder, default=secrets.token_hex(32))
    own.start(*nvme(own.folder), *keys)
    await reattached(client, tools, before)
    reply = await own.status()
    assert (reply.check_error, reply.tiers[1].blocks) == ("", 0)
    assert reply.tiers[1].devices[0].key_missing_blocks == BLOCKS


async def test_a_tenant_without_a_key_stays_in_memory(own, connect, tools):
    keys = keyfile(own.folder, alice=secrets.token_hex(32))
    own.start(*SMALL, *nvme(own.folder), "--nvme-keys", str(keys))
    client = await connect(own.address)
    assert await tools.save(client, tools.tokens(BLOCKS))
    given = await client.acquire(tools.tokens(BLOCKS), skip=0, deadline_s=5.0)
    assert given.tiers == {"dram": BLOCKS * 16}
    await client.release(given.lease)
    await flush_store(own.address, deadline_s=5.0, timeout_s=3.0)
    reply = await own.status()
    assert reply.counters.dropped_demotions["no_key"] >= BLOCKS
    assert reply.tiers[1].blocks == 0
    assert not list((own.folder / "nvme").glob("*.seg"))


def test_keys_that_cannot_be_used_are_said_in_one_line(own):
    keys = keyfile(own.folder, default="aa" * 32)
    keys.chmod(0o644)
    done = refused(own, *nvme(own.folder), "--nvme-keys", str(keys))
    assert f"--nvme-keys: {keys} can be read by others than its owner; chmod 600 {keys}" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "aaaa" not in done.stderr
