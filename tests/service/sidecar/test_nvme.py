"""A sidecar with an NVMe tier: killed, stopped, started again; asked for what cannot be."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import xxhash
from kvterrace.kvstore.service.admin import clear_store, flush_store, retain_blocks
from kvterrace.proto import BlockLayout, Namespace, Retention

pytestmark = pytest.mark.service

BLOCKS = 40
SMALL = ("--dram", "512KiB")  # 128 slots of a page


def nvme(folder: Path, size: str = "1GiB") -> tuple[str, ...]:
    return "--nvme", f"{folder / 'nvme'}:{size}", "--nvme-min-free", "1MiB"


async def reattached(client, tools, before: bytes) -> None:
    async def there() -> bool:
        return client.boot_id not in (None, before)

    await tools.until(there, 10.0)


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_a_restarted_sidecar_serves_its_disk_to_an_engine_that_stayed(own, connect, tools, end):
    own.start(*nvme(own.folder))
    client = await connect(own.address)
    before = client.boot_id
    prompt = tools.tokens(BLOCKS)
    assert await tools.save(client, prompt)
    if end == "kill":
        assert (await flush_store(own.address, deadline_s=5.0, timeout_s=3.0)).done
        own.kill()
    else:
        own.close()  # SIGTERM: what waits is written without being asked for
    own.start(*nvme(own.folder))
    await reattached(client, tools, before)
    given = await client.acquire(prompt, skip=0, deadline_s=5.0)
    assert given.tiers == {"nvme": BLOCKS * 16}
    assert tools.read(given) == [tools.content(block) for block in range(BLOCKS)]
    await client.release(given.lease)
    reply = await own.status()
    assert (reply.check_error, reply.tiers[1].name, reply.tiers[1].blocks) == ("", "nvme", BLOCKS)


async def test_dram_that_is_too_small_spills_to_disk_and_every_byte_comes_back(own, connect, tools):
    own.start(*SMALL, *nvme(own.folder))
    client = await connect(own.address)
    prompts = [tools.tokens(BLOCKS, 10_000 * n) for n in range(6)]
    for salt, prompt in enumerate(prompts):
        assert await tools.save(client, prompt, salt)
        await flush_store(own.address, deadline_s=5.0, timeout_s=3.0)
    for salt, prompt in enumerate(prompts):
        given = await client.acquire(prompt, skip=0, deadline_s=5.0)
        assert tools.read(given) == [tools.content(block, salt) for block in range(BLOCKS)]
        await client.release(given.lease)
    assert (await own.status()).check_error == ""


async def test_what_was_cleared_does_not_come_back_with_the_next_start(own, connect, tools):
    own.start(*nvme(own.folder))
    client = await connect(own.address)
    before = client.boot_id
    assert await tools.save(client, tools.tokens(BLOCKS))
    await flush_store(own.address, deadline_s=5.0, timeout_s=3.0)
    assert await clear_store(own.address, b"", timeout_s=3.0) == BLOCKS
    own.kill()
    own.start(*nvme(own.folder))
    await reattached(client, tools, before)
    assert (await client.acquire(tools.tokens(BLOCKS), skip=0, deadline_s=2.0)).reason == "never_seen"


async def test_a_pin_set_by_an_operator_outlives_a_kill(own, connect, tools, namespace):
    own.start(*nvme(own.folder))
    client = await connect(own.address)
    before = client.boot_id
    prompt = tools.tokens(BLOCKS)
    assert await tools.save(client, prompt)
    await flush_store(own.address, deadline_s=5.0, timeout_s=3.0)
    wish = Retention(priority=90, pinned=True)
    fields = ["priority", "pinned"]
    named = await retain_blocks(own.address, namespace.fingerprint(), prompt, wish, fields, timeout_s=3.0)
    assert named == BLOCKS
    await flush_store(own.address, deadline_s=5.0, timeout_s=3.0)
    own.kill()
    own.start(*nvme(own.folder))
    await reattached(client, tools, before)
    assert (await own.status()).tiers[1].pinned_blocks == BLOCKS


async def test_metrics_tell_what_went_to_disk_and_what_came_back(own, connect, tools):
    own.start("--http", "127.0.0.1:0", *SMALL, *nvme(own.folder))
    client = await connect(own.address)
    for n in range(4):
        assert await tools.save(client, tools.tokens(BLOCKS, 10_000 * n))
        await flush_store(own.address, deadline_s=5.0, timeout_s=3.0)
    given = await client.acquire(tools.tokens(BLOCKS), skip=0, deadline_s=5.0)
    await client.release(given.lease)
    async with httpx.AsyncClient() as http:
        page = await http.get(own.announced("http") + "/metrics")
    lines = dict(line.rsplit(" ", 1) for line in page.text.splitlines() if line[:1] != "#")
    value = {name.removeprefix("kvterrace_store_"): float(number) for name, number in lines.items()}
    path = str(own.folder / "nvme")
    assert value['demoted_blocks_total{tier="nvme"}'] == 4 * BLOCKS
    assert value['promoted_blocks_total{tier="nvme"}'] > 0
    assert value['hit_tokens_total{tier="nvme"}'] > 0
    assert value['tier_blocks{tier="nvme"}'] == 4 * BLOCKS
    assert value[f'device_up{{path="{path}"}}'] == 1
    assert value[f'device_accepted_bytes_total{{path="{path}"}}'] >= 4 * BLOCKS * 4096
    written = value[f'device_written_bytes_total{{path="{path}"}}']
    assert written >= value[f'device_accepted_bytes_total{{path="{path}"}}']
    assert value['tier_read_bytes_per_second{tier="nvme"}'] >= 0


async def test_what_compression_does_is_told(own, connect, tools):
    own.start("--http", "127.0.0.1:0", "--nvme-codec", "lossless", *nvme(own.folder))
    layout = BlockLayout(kv_heads=2, layers=2, planes=2, block_tokens=16, head_dim=64, dtype="float32")
    client = await connect(own.address, Namespace(b"w" * 32, layout))
    given = await client.reserve(tools.tokens(4), start=0, count=4)
    for ref in given.slots:
        given.arena.block(ref.slot)[:] = 7
    size = given.arena.block_bytes
    digest = xxhash.xxh3_64_intdigest(given.arena.block(given.slots[0].slot)[:size])
    assert await client.commit(given.lease, [digest] * 4)
    await flush_store(own.address, deadline_s=5.0, timeout_s=3.0)
    codec = (await own.status()).tiers[1].codec
    assert codec.raw_bytes > codec.stored_bytes > 0
    async with httpx.AsyncClient() as http:
        page = await http.get(own.announced("http") + "/metrics")
    label = f'{{codec="{codec.name}",tier="nvme"}}'
    assert f"kvterrace_store_codec_enabled{label} {float(codec.enabled)}" in page.text
    assert f"kvterrace_store_codec_raw_bytes_total{label} {float(codec.raw_bytes)}" in page.text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--nvme", "relative:1GiB"], "--nvme: 'relative:1GiB' is not PATH:SIZE with an absolute path"),
        (["--nvme", "/tmp/kvterrace-nowhere:lots"], "'lots' is not a size"),
        (["--nvme", "/tmp/kvterrace-nowhere:900000TiB"], "is more than the"),
        (["--nvme", "/proc/version:1GiB"], "/proc/version is not a directory"),
        (["--nvme", "/tmp/kvt-twice:1GiB", "--nvme", "/tmp/kvt-twice:2GiB"], "/tmp/kvt-twice is given twice"),
        (["--nvme", "/tmp/kvterrace-nowhere:1GiB", "--nvme-admission", "some"], "--nvme-admission: 'some'"),
    ],
)
def test_what_cannot_be_is_said_in_one_line_that_names_it(own, flags, words):
    done = subprocess.run(own.command(*flags), capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_memory_posing_as_a_disk_is_named(own):
    shm = Path("/dev/shm") / own.folder.name
    try:
        own.start("--nvme", f"{shm}:1GiB", "--nvme-min-free", "1MiB")
        assert f"warning: {shm} is tmpfs, which is memory" in own.output()
    finally:
        own.close()
        for file in shm.glob("*"):
            file.unlink()
        shm.rmdir()


def test_two_sidecars_on_one_path_are_refused(own, folder):
    own.start(*nvme(own.folder))
    other = [sys.executable, "-m", "kvterrace.kvstore", "serve", "--uds", str(folder / "two.sock"), "--dram", "1MiB"]
    done = subprocess.run([*other, *nvme(own.folder)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert str(own.folder / "nvme") in done.stderr
    assert "Traceback" not in done.stderr
