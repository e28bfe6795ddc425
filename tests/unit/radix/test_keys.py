"""Block keys are what the documentation says, byte for byte, so that another implementation can share our blocks."""

import hashlib
import json
import struct
from pathlib import Path

import pytest
import xxhash
from kvterrace.radix import PrefixIndex, block_keys, pack_tokens, unpack_tokens

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "keys.json"
SEED = bytes(range(32))
PROMPTS = {
    "one block": (list(range(16)), 16, {}),
    "chain of three": (list(range(100, 148)), 16, {}),
    "extreme ids": ([0, 2**31 - 1, 1, 151_935], 2, {}),
    "image in the second block": ([7] * 12, 4, {1: "89ab" * 16 + "00000000"}),
    "two images": ([7] * 12, 4, {0: "01", 2: "0203"}),
}


def reference(hash_name: str, ids: list[int], block_tokens: int, extras: dict[int, str]) -> list[str]:
    """The keys written once more, from the description alone."""
    parent, keys = SEED, []
    for start in range(0, len(ids) - block_tokens + 1, block_tokens):
        extra = bytes.fromhex(extras.get(start // block_tokens, ""))
        message = parent + struct.pack(f"<{block_tokens}iI", *ids[start : start + block_tokens], len(extra)) + extra
        parent = hashlib.sha256(message).digest() if hash_name == "sha256" else xxhash.xxh3_128(message).digest()
        keys.append(parent.hex())
    return keys


def vectors() -> list[dict[str, object]]:
    return [
        {
            "name": name,
            "hash": hash_name,
            "seed": SEED.hex(),
            "block_tokens": block_tokens,
            "tokens": ids,
            "extras": {str(ordinal): extra for ordinal, extra in extras.items()},
            "keys": reference(hash_name, ids, block_tokens, extras),
        }
        for hash_name in ("sha256", "xxh3-128")
        for name, (ids, block_tokens, extras) in PROMPTS.items()
    ]


def test_golden_file_is_what_an_independent_implementation_computes() -> None:
    assert json.loads(GOLDEN.read_text()) == vectors()


@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: f"{vector['hash']}-{vector['name']}")
def test_index_and_block_keys_agree_with_the_golden_file(vector) -> None:
    (golden,) = (
        v for v in json.loads(GOLDEN.read_text()) if (v["name"], v["hash"]) == (vector["name"], vector["hash"])
    )
    tokens, seed = pack_tokens(golden["tokens"]), bytes.fromhex(golden["seed"])
    extras = {int(ordinal): bytes.fromhex(extra) for ordinal, extra in golden["extras"].items()}
    keys = block_keys(seed, tokens, golden["block_tokens"], hash_name=golden["hash"], extras=extras)
    assert [key.hex() for key in keys] == golden["keys"]
    index = PrefixIndex(seed, block_tokens=golden["block_tokens"], hash_name=golden["hash"])
    blocks = index.insert(tokens, range(len(keys)), extras=extras).blocks
    assert [index.key(block).hex() for block in blocks[::-1].tolist()][::-1] == golden["keys"]


def test_keys_survive_splits_evictions_and_regrowth() -> None:
    index = PrefixIndex(SEED, block_tokens=2)
    first, second = pack_tokens([1, 1, 2, 2, 3, 3, 4, 4]), pack_tokens([1, 1, 2, 2, 9, 9])
    deep = index.insert(first, range(4)).blocks.tolist()
    index.key(deep[2])  # the last block has no cached key when the run is cut
    other = index.insert(second, range(3)).blocks.tolist()
    assert index.key(other[-1]) == block_keys(SEED, second, 2)[-1]
    index.remove(deep[3])
    regrown = index.insert(first, range(4)).blocks.tolist()
    assert [index.key(block) for block in regrown] == block_keys(SEED, first, 2)
    index.remove(other[-1])  # the two halves of the first run join again
    assert [index.key(block) for block in regrown] == block_keys(SEED, first, 2)
    index.check()


def test_another_seed_another_hash_or_another_frame_is_another_key() -> None:
    tokens = pack_tokens(range(16))
    plain = block_keys(SEED, tokens, 16)[0]
    others = [
        block_keys(bytes(32), tokens, 16)[0],
        block_keys(SEED, tokens, 16, hash_name="xxh3-128")[0],
        block_keys(SEED, tokens, 16, extras={0: b"\0"})[0],
        block_keys(SEED, tokens, 16, extras={0: b"\0\0\0\0"})[0],
        block_keys(SEED, tokens, 8)[0],
    ]
    assert len({plain, *others}) == 6
    assert block_keys(SEED, tokens, 16, extras={0: b""})[0] == plain


@pytest.mark.parametrize("seed", [b"", b"short", bytes(33)])
def test_a_seed_that_is_no_fingerprint_is_refused(seed: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        PrefixIndex(seed)


def test_an_unknown_hash_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="md5"):
        PrefixIndex(SEED, hash_name="md5")


def test_packed_tokens_are_little_endian_and_refuse_what_does_not_fit() -> None:
    assert pack_tokens([1, 258]) == b"\x01\0\0\0\x02\x01\0\0"
    assert unpack_tokens(pack_tokens([5, 0, 2**31 - 1])).tolist() == [5, 0, 2**31 - 1]
    assert pack_tokens([]) == b""
    assert unpack_tokens(b"").tolist() == []
    for ids in ([2**31], [1.5], [[1, 2]]):
        with pytest.raises(ValueError, match="token id"):
            pack_tokens(ids)
