"""What is encrypted at rest: nothing of a prompt can be read from the disk, and nothing that was changed is served."""

import itertools
import random

import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.tiers import Failed, Hit, Miss, Stored
from kvterrace.kvstore.tiers.codec import PlanesLz4
from kvterrace.proto import Retention

from .keys import ALICE, ring, tenant_of
from .shelf import (
    PAGE,
    SPACE,
    as_killed,
    held,
    key,
    open_tier,
    overwrite,
    record,
    same,
    segments,
    wanted,
)

pytestmark = pytest.mark.unit


def open_keyed(path, keys, **options):
    return open_tier(path, keys=keys, tenant_of=tenant_of, **options)


async def stored(tier, *records):
    assert await tier.put(records, deadline_s=10) == [Stored()] * len(records)


def compressible(number: int, **other):
    """A block that the codec makes smaller, of other bytes for each number."""
    made = record(number, 3 * PAGE, **other)
    made.payload[1::2] &= 1
    checksum = xxhash.xxh3_64_intdigest(made.payload[: 3 * PAGE].tobytes())
    object.__setattr__(made, "checksum", checksum)
    object.__setattr__(made, "itemsize", 2)
    return made


@pytest.mark.parametrize("how", ["close", "kill"])
@pytest.mark.parametrize("codec", ["raw", "lossless"])
async def test_encrypted_blocks_are_found_again_with_all_that_was_said_about_them(tmp_path, how, codec):
    keys = ring(alice="a1", default="d1")
    options = {"codec": PlanesLz4()} if codec == "lossless" else {}
    sizes = itertools.cycle([(1, 16), (PAGE, 957), (PAGE + 1, 956), (3 * PAGE - 1, 1024)])
    records = [
        record(n, size, count, fingerprint=(ALICE, SPACE)[n % 2])
        for n, (size, count) in zip(range(20), sizes, strict=False)
    ]
    records += [compressible(n, fingerprint=ALICE) for n in range(20, 24)]
    tier = open_keyed(tmp_path / "a", keys, wall=lambda: 1000.25, **options)
    for at in range(0, len(records), 7):
        await stored(tier, *records[at : at + 7])
    assert await held(tier, records) == len(records)
    tier.check()
    (device,) = tier.devices()
    assert (device.encrypted_blocks, device.open_failures, device.corrupt_blocks) == (len(records), 0, 0)
    path = tmp_path / "a" if how == "close" else as_killed(tmp_path / "a", tmp_path / "b")
    await tier.close()
    again = open_keyed(path, keys)
    found = {}
    for part in again.inventory():
        for n in range(len(part.keys)):
            said = Retention(int(part.priority[n]), float(part.ttl_s[n]), bool(part.pinned[n]))
            found[int(part.tokens[n][0])] = (
                part.fingerprint,
                part.keys[n].tobytes(),
                part.parents[n].tobytes(),
                part.tokens[n].tobytes(),
                said,
            )
    assert found == {
        n: (each.fingerprint, each.key, each.parent, each.tokens, each.retention) for n, each in enumerate(records)
    }
    assert await held(again, records) == len(records)
    again.check()
    await again.close()


async def test_nothing_of_a_prompt_can_be_read_from_the_files(tmp_path):
    """Payloads, token ids, block keys (a hash of the prompt: good for guessing it) and checksums of blocks."""
    keys = ring(alice="a1")
    tier = open_keyed(tmp_path / "a", keys, codec=PlanesLz4())
    records = [
        record(n, PAGE * 2, 32, fingerprint=ALICE, tokens=np.arange(n << 20, (n << 20) + 32, dtype="<i4").tobytes())
        for n in range(1, 30)
    ]
    records += [compressible(n, fingerprint=ALICE) for n in range(30, 40)]
    await stored(tier, *records)
    await tier.drop([each.key for each in records[:20]])
    moved = [record(n, PAGE, fingerprint=ALICE) for n in range(50, 90)]
    await stored(tier, *moved)
    killed = as_killed(tmp_path / "a", tmp_path / "b")  # with an open segment
    await tier.close()
    content = b"".join(each.read_bytes() for path in (killed, tmp_path / "a") for each in segments(path))
    windows = {content[at : at + 16] for at in range(0, len(content) - 15, 8)}
    eights = {content[at : at + 8] for at in range(0, len(content) - 7, 8)}
    assert ALICE[:16] in windows  # the search finds what is there
    for each in [*records, *moved]:
        payload = each.payload[: each.block_bytes].tobytes()
        secrets = [payload[at : at + 24] for at in range(0, len(payload) - 31, 509)]
        secrets += [each.tokens, each.key, each.parent]
        for run in secrets:  # of each run one of eight shifts lies at a multiple of eight, wherever it lies
            assert not any(run[at : at + 16] in windows for at in range(8))
        assert each.checksum.to_bytes(8, "little") not in eights


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("forged", [False, True], ids=["flipped", "with checksums that fit"])
async def test_a_changed_bit_anywhere_in_a_record_is_found_out(tmp_path, seed, forged):
    """Checksums are no secret: whoever changes a record can make them fit, so that only the seal tells."""
    rng = random.Random(seed)
    keys = ring(alice="a1")
    tier = open_keyed(tmp_path / "a", keys)
    one = record(1, 2 * PAGE - 100, fingerprint=ALICE)
    await stored(tier, one, record(2, fingerprint=ALICE))
    _, segment, ordinal = tier._index.find(key(1))
    at = segment.pages[ordinal] * PAGE
    whole = segment.path.read_bytes()[at : at + 3 * PAGE]
    # Header: frame, clear fields, nonces, tags, hidden part, the zeros behind; then the stored bytes.
    offsets = [
        *range(16, 80),
        *range(88, 336),
        *rng.sample(range(336, PAGE), 8),
        *rng.sample(range(PAGE, 3 * PAGE - 100), 40),
    ]
    for offset in rng.sample(offsets, 60):
        changed = bytearray(whole)
        changed[offset] ^= 1 << rng.randrange(8)
        if forged:
            refit(changed)
        overwrite(segment.path, at, bytes(changed))
        ask = wanted(one)
        (answer,) = await tier.get([ask], deadline_s=10)
        if isinstance(answer, Hit):  # zeros behind the header are nobody's, and a checksum covers them
            assert forged
            assert 336 <= offset < PAGE, offset
            assert same(ask, one)
            continue
        assert answer == Failed("corrupt"), offset
        assert await tier.get([wanted(one)], deadline_s=10) == [Miss()]
        overwrite(segment.path, at, whole)
        await tier.put([one], deadline_s=10)
        _, segment, ordinal = tier._index.find(key(1))
        at = segment.pages[ordinal] * PAGE
        whole = segment.path.read_bytes()[at : at + 3 * PAGE]
    (device,) = tier.devices()
    assert device.corrupt_blocks > 40
    assert device.open_failures > 40 or not forged
    await tier.close()


def refit(page: bytearray) -> None:
    """Make the checksums of a changed record of 3 pages fit."""
    xxh3 = xxhash.xxh3_64_intdigest
    page[80:88] = xxh3(page[PAGE : 3 * PAGE - 100]).to_bytes(8, "little")
    page[8:16] = xxh3(page[16:PAGE]).to_bytes(8, "little")
