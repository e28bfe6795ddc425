"""Codecs: what goes in comes out, damage is a ValueError, and one that costs more than it saves steps aside."""

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from kvterrace.kvstore.tiers.codec import Measured, PlanesLz4, RawCodec, codec_of

pytestmark = pytest.mark.unit

PAGE = 4096
PLANES = PlanesLz4()
# Written by another program of version 1: four float16-sized elements 0x0102, 0x0104, 0x0106, 0x0108; low bytes as they
# are, high bytes as the lz4 block of one literal run.
GOLDEN = "01020000 08000000 04000080 05000000 02040608 4001010101"


def bfloat16(count: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def decoded(stored: bytes, size: int) -> np.ndarray:
    into = np.empty(size, np.uint8)
    PLANES.decode(np.frombuffer(stored, np.uint8), into)
    return into


def test_keys_and_values_get_smaller_and_come_back_bit_for_bit():
    payload = bfloat16(64 * PAGE)
    stored = PLANES.encode(payload, 2)
    assert stored is not None
    assert len(stored) < 0.87 * len(payload)
    assert np.array_equal(decoded(stored, len(payload)), payload)
    assert PLANES.encode(payload, 1) is None  # without planes there is nothing to find


@given(arrays.arrays(np.uint8, st.integers(0, 3 * PAGE), elements=st.integers(0, 3)), st.sampled_from([1, 2, 3, 4, 8]))
def test_any_content_of_any_length_comes_back(payload, itemsize):
    stored = PLANES.encode(payload, itemsize)
    if stored is not None:
        assert -(-len(stored) // PAGE) < -(-len(payload) // PAGE)
        assert np.array_equal(decoded(stored, len(payload)), payload)


def test_noise_and_what_would_save_less_than_a_page_are_left_as_they_are():
    noise = np.random.default_rng(1).integers(0, 256, 8 * PAGE, dtype=np.uint8)
    assert PLANES.encode(noise, 2) is None
    assert PLANES.encode(np.zeros(PAGE, np.uint8), 2) is None


def test_bytes_that_another_program_wrote():
    into = np.empty(8, np.uint8)
    PLANES.decode(np.frombuffer(bytes.fromhex(GOLDEN), np.uint8), into)
    assert into.view("<u2").tolist() == [0x0102, 0x0104, 0x0106, 0x0108]


@given(st.data())
def test_damaged_bytes_are_refused_or_decode_within_the_block(data):
    """The record's checksums find the damage; the codec only must not crash, hang or write elsewhere."""
    payload = bfloat16(8 * PAGE)
    stored = bytearray(PLANES.encode(payload, 2))
    for _ in range(data.draw(st.integers(1, 4))):
        stored[data.draw(st.integers(0, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    kept = data.draw(st.integers(0, len(stored)))
    memory = np.full(len(payload) + PAGE, 7, np.uint8)
    try:
        PLANES.decode(np.frombuffer(bytes(stored[:kept]), np.uint8), memory[: len(payload)])
    except ValueError:
        pass
    else:
        assert kept == len(stored)
    assert (memory[len(payload) :] == 7).all()


@pytest.mark.parametrize("size", [0, 1, PAGE, 16 * PAGE - 1, 16 * PAGE + 1, 32 * PAGE])
def test_a_block_of_another_length_is_refused(size):
    stored = PLANES.encode(bfloat16(8 * PAGE), 2)
    with pytest.raises(ValueError):
        decoded(stored, size)


def test_raw_bytes_of_another_length_are_refused():
    with pytest.raises(ValueError, match="3 bytes stored for a block of 4"):
        RawCodec().decode(np.zeros(3, np.uint8), np.zeros(4, np.uint8))


def test_records_name_their_codec_for_ever():
    assert (codec_of(0).name, codec_of(1).name, codec_of(2)) == ("raw", "planes-lz4", None)


class Watch:
    """A codec of a given speed: its calls move its own clock. Halves every block."""

    name, ident = "watch", 9

    def __init__(self, encode_bytes_s: float, decode_bytes_s: float) -> None:
        self.now = 0.0
        self.encode_bytes_s = encode_bytes_s
        self.decode_bytes_s = decode_bytes_s
        self.broken = False

    def encode(self, payload, itemsize):
        self.now += len(payload) / self.encode_bytes_s
        return payload[: len(payload) // 2].tobytes()

    def decode(self, stored, into):
        self.now += len(into) / self.decode_bytes_s
        into[: len(stored)] = stored
        into[len(stored) :] = 1 if self.broken else 0


BLOCK = np.zeros(16 * PAGE, np.uint8)


def measured(codec: Watch, device: list[float]) -> Measured:
    return Measured(codec, lambda: (device[0], device[1]), clock=lambda: codec.now)


@pytest.mark.parametrize(
    ("encode", "decode", "on"),
    [(1e9, 1e9, True), (1e9, 1.6e8, False), (1.6e8, 1e9, False), (2.1e8, 2.1e8, True)],
)
def test_it_stays_on_only_where_both_directions_gain(encode, decode, on):
    """Blocks halve; the device does 100 MB/s both ways: a codec below 200 MB/s costs more than it saves."""
    codec = measured(Watch(encode, decode), [1e8, 1e8])
    results = [codec.encode(BLOCK, 2) for _ in range(20)]
    assert (results[-1] is not None) is on
    assert codec.stats().enabled is on
    assert codec.stats().encode_bytes_s == pytest.approx(encode)
    assert codec.stats().decode_bytes_s == pytest.approx(decode)
    assert codec.stats().stored_share == pytest.approx(0.5)


def test_it_changes_its_mind_when_the_device_does_and_not_on_the_line(caplog):
    caplog.set_level(logging.INFO)
    device = [1e8, 1e8]
    codec = measured(Watch(4e8, 4e8), device)

    def after_probes() -> bool:
        for _ in range(3 * Measured.PROBE):
            codec.encode(BLOCK, 2)
        return codec.stats().enabled

    assert after_probes()
    device[:] = [2.2e8, 2.2e8]  # 1.05 of the raw time: within the margin
    assert after_probes()
    device[:] = [1e9, 1e9]
    assert not after_probes()
    device[:] = [2.2e8, 2.2e8]
    assert not after_probes()
    device[:] = [1e8, 1e8]
    assert after_probes()
    assert codec.stats().switches == 2
    assert [" off:" in r.message for r in caplog.records] == [True, False]  # said once for each change


def test_while_the_device_is_unknown_blocks_are_encoded_and_counted():
    codec = measured(Watch(1e3, 1e3), [0.0, 0.0])
    for _ in range(10):
        assert codec.encode(BLOCK, 2) is not None
    assert (codec.stats().raw_bytes, codec.stats().stored_bytes) == (10 * len(BLOCK), 5 * len(BLOCK))


def test_off_it_costs_nothing_but_its_probes():
    watch = Watch(1e3, 1e3)
    codec = measured(watch, [1e9, 1e9])
    for _ in range(Measured.FIRST):
        codec.encode(BLOCK, 2)
    before = watch.now
    for _ in range(Measured.PROBE - Measured.FIRST):
        assert codec.encode(BLOCK, 2) is None
    assert watch.now == before


def test_a_codec_that_does_not_give_back_what_it_got_stores_nothing(caplog):
    watch = Watch(1e9, 1e9)
    watch.broken = True
    codec = measured(watch, [1e8, 1e8])
    assert codec.encode(BLOCK, 2) is None
    assert "did not give back" in caplog.text


def test_blocks_written_before_it_stepped_aside_are_still_read():
    payload = bfloat16(8 * PAGE)
    codec = Measured(PLANES, lambda: (1e15, 1e15))
    stored = codec.encode(payload, 2)
    assert stored is None  # off from the first probe on, with such a device
    into = np.empty_like(payload)
    codec.decode(np.frombuffer(PLANES.encode(payload, 2), np.uint8), into)
    assert np.array_equal(into, payload)
    assert codec.ident == PlanesLz4.ident
