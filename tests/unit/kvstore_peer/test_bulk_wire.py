"""The bulk channel's headers: fixed bytes, and nothing believed that is not whole."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvterrace.kvstore.peer import bulk_wire as wire

pytestmark = pytest.mark.unit

TICKET = bytes(range(16))


def test_the_bytes_are_those_of_the_documentation() -> None:
    assert wire.pack_hello(TICKET) == b"KVTBULK\n" + bytes([1, 0, 0, 0, 0, 0, 0, 0]) + TICKET
    assert wire.pack_answer(wire.GRANTED, 258) == b"KVTBULK\n" + bytes([1, 0, 0, 0, 0, 0, 0, 0, 2, 1] + 6 * [0])
    assert (wire.HELLO_BYTES, wire.ANSWER_BYTES) == (32, 24)


def test_headers_come_back() -> None:
    assert wire.unpack_hello(wire.pack_hello(TICKET)) == wire.Hello(1, TICKET)
    assert wire.unpack_answer(wire.pack_answer(wire.GRANTED, 1 << 40)) == wire.Answer(wire.GRANTED, 1 << 40)
    assert wire.unpack_answer(wire.pack_answer(wire.REFUSED)) == wire.Answer(wire.REFUSED, 0)


def test_a_hello_of_another_version_is_read_so_that_it_can_be_answered() -> None:
    assert wire.unpack_hello(b"KVTBULK\n" + struct.pack("<II", 7, 9) + TICKET) == wire.Hello(7, TICKET)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost: kv.local\r\n\r\n"[:32], bytes(32)])
def test_what_is_no_hello_is_refused(data: bytes) -> None:
    with pytest.raises(wire.WireError, match="begins with"):
        wire.unpack_hello(data)


def test_reserved_bytes_of_a_hello_are_zero() -> None:
    with pytest.raises(wire.WireError, match="reserved"):
        wire.unpack_hello(b"KVTBULK\n" + struct.pack("<II", 1, 9) + TICKET)


@pytest.mark.parametrize("ticket", [b"", bytes(15), bytes(17)])
def test_a_ticket_of_another_length_is_not_packed(ticket: bytes) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        wire.pack_hello(ticket)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"HTTP/1.1" + bytes(16), "begins with"),
        (b"KVTBULK\n" + struct.pack("<IIQ", 2, 0, 5), "speaks version 2"),
        (b"KVTBULK\n" + struct.pack("<IIQ", 1, wire.WRONG_VERSION, 0), "speaks version 1"),
        (b"KVTBULK\n" + struct.pack("<IIQ", 1, 3, 0), "status 3"),
        (b"KVTBULK\n" + struct.pack("<IIQ", 1, wire.REFUSED, 5), "status 1 and 5 bytes"),
    ],
)
def test_an_answer_that_cannot_be_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(wire.WireError, match=words):
        wire.unpack_answer(data)


@given(st.binary(min_size=32, max_size=32) | st.binary(min_size=24, max_size=24).map(lambda rest: wire.MAGIC + rest))
def test_any_bytes_are_a_hello_or_a_wire_error(data: bytes) -> None:
    try:
        hello = wire.unpack_hello(data)
    except wire.WireError:
        return
    assert data[:8] == wire.MAGIC
    assert hello.ticket == data[16:]


@given(st.binary(min_size=24, max_size=24) | st.binary(min_size=16, max_size=16).map(lambda rest: wire.MAGIC + rest))
def test_any_bytes_are_an_answer_or_a_wire_error(data: bytes) -> None:
    try:
        answer = wire.unpack_answer(data)
    except wire.WireError:
        return
    assert wire.pack_answer(answer.status, answer.length_bytes) == data
