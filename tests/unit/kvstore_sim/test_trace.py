"""Reading traces: what the lines mean, and what happens to lines that mean nothing."""

import gzip
import json
import tracemalloc

import numpy as np
import pytest
from kvterrace.kvstore.sim.trace import TraceError, read_trace

pytestmark = pytest.mark.unit

GOOD = b'{"timestamp": 1500, "input_length": 40, "output_length": 5, "hash_ids": [7, 8, 9]}\n'


def blocks(request) -> list[int]:
    return np.frombuffer(request.blocks, dtype=np.int32).tolist()


def test_times_lengths_and_blocks_are_read_and_times_start_at_the_first_request(trace_of, rows_of):
    trace = trace_of([rows_of.row([7, 8], at_ms=5000), rows_of.row([7, 9, 10], at_ms=6500)])
    first, second = trace.requests
    assert (first.at_s, second.at_s, first.input_tokens, second.count) == (0.0, 1.5, 32, 3)
    assert blocks(first)[0] == blocks(second)[0]
    assert (trace.blocks, trace.unique, trace.input_tokens) == (5, 4, 80)


def test_lines_out_of_order_are_replayed_in_order_of_time(trace_of, rows_of):
    trace = trace_of([rows_of.row([1], at_ms=900), rows_of.row([2], at_ms=100), rows_of.row([3], at_ms=900)])
    assert [request.at_s for request in trace.requests] == [0.0, 0.8, 0.8]
    assert [blocks(request)[0] for request in trace.requests] == [1, 0, 2]


def test_an_id_means_its_block_only_behind_the_same_prefix(trace_of, rows_of):
    """Ids that are no prefix hashes (the same block content in two places) must not become hits."""
    trace = trace_of([rows_of.row([1, 5]), rows_of.row([2, 5]), rows_of.row([5])])
    assert trace.unique == 5
    a, b, c = (blocks(request) for request in trace.requests)
    assert len({a[-1], b[-1], c[0]}) == 3


def test_namespaces_share_no_block(trace_of, rows_of):
    trace = trace_of([rows_of.row([1, 2], namespace="a"), rows_of.row([1, 2], namespace="b")])
    assert trace.spaces == ("a", "b")
    assert not set(blocks(trace.requests[0])) & set(blocks(trace.requests[1]))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b'{"input_length": 1, "hash_ids": []}', "timestamp is not"),
        (b'{"timestamp": NaN, "input_length": 1, "hash_ids": []}', "timestamp is not"),
        (b'{"timestamp": 1' + b"0" * 400 + b', "input_length": 1, "hash_ids": []}', "timestamp is not"),
        (b'{"timestamp": 1, "hash_ids": []}', "input_length is not"),
        (b'{"timestamp": 1, "input_length": -1, "hash_ids": []}', "input_length is not"),
        (b'{"timestamp": 1, "input_length": 1.5, "hash_ids": []}', "input_length is not"),
        (b'{"timestamp": 1, "input_length": 1, "output_length": "x", "hash_ids": []}', "output_length is not"),
        (b'{"timestamp": 1, "input_length": 1}', "hash_ids is not"),
        (b'{"timestamp": 1, "input_length": 1, "hash_ids": [1, null]}', "hash_ids is not"),
        (b'{"timestamp": 1, "input_length": 1, "hash_ids": [true]}', "hash_ids is not"),
        (b'{"timestamp": 1, "input_length": 1, "hash_ids": [], "block_tokens": "16"}', "block_tokens is not"),
    ],
)
def test_a_bad_line_is_left_out_and_told_with_its_number(tmp_path, line, reason):
    path = tmp_path / "t.jsonl"
    path.write_bytes(GOOD + b"\n" + line + b"\n" + GOOD)
    trace = read_trace(path)
    assert len(trace.requests) == 2
    assert trace.bad.count == 1
    ((number, said),) = trace.bad.shown
    assert number == 3
    assert said.startswith(reason)


def test_many_bad_lines_are_counted_not_kept(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(GOOD + b"?\n" * 20_000)
    tracemalloc.start()
    try:
        trace = read_trace(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert trace.bad.count == 20_000
    assert len(trace.bad.shown) == 10


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damaged_gzip_keeps_what_came_before(tmp_path, damage):
    packed = bytearray(gzip.compress(GOOD * 50_000, compresslevel=0))
    if damage == "cut":
        del packed[len(packed) // 2 :]
    else:
        packed[-5] ^= 0xFF  # the length at the end
    path = tmp_path / "t.gz"
    path.write_bytes(packed)
    trace = read_trace(path)
    assert 10_000 < len(trace.requests) <= 50_000
    assert trace.bad.count == 1
    assert "damaged" in trace.bad.shown[0][1]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"hello\n", b'{"timestamp": 1}\n'])
def test_a_file_without_a_request_is_refused_with_its_first_fault(tmp_path, content):
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="no line that is a request"):
        read_trace(path)


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none")
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path)


def test_azure_csv_has_lengths_and_no_prefixes(tmp_path):
    path = tmp_path / "a.csv.gz"
    rows = b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\nx,1\r\n"
    path.write_bytes(gzip.compress(rows + b"2023-11-16 18:17:04.4799600,3180,8\r\n"))
    trace = read_trace(path)
    assert not trace.prefixes
    assert [(each.at_s, each.input_tokens, each.output_tokens) for each in trace.requests] == [
        (0.0, 4808, 10),
        (0.5, 3180, 8),
    ]
    assert trace.bad.shown == [(3, "not a time and two numbers of tokens")]


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("block_tokens", [16, 64, 512])
def test_tokens_of_a_block_follow_from_the_lengths(trace_of, partial, block_tokens):
    """Whether partial last blocks are listed (Mooncake) or not (the store itself)."""
    rows = []
    for number in range(200):
        length = 3 + (number * 7919) % (block_tokens * 40)
        count = -(-length // block_tokens) if partial else length // block_tokens
        rows.append({"timestamp": number, "input_length": length, "hash_ids": [f"{number}.{i}" for i in range(count)]})
    assert trace_of(rows).block_tokens == block_tokens


def test_contradictory_lengths_imply_nothing_but_the_trace_may_say(trace_of):
    rows = [
        {"timestamp": 0, "input_length": 100, "hash_ids": [1, 2]},
        {"timestamp": 0, "input_length": 900, "hash_ids": [3, 4]},
    ]
    assert trace_of(rows).block_tokens == 0
    assert trace_of([row | {"block_tokens": 48} for row in rows]).block_tokens == 48


def test_a_second_block_length_in_one_trace_is_a_bad_line(trace_of, rows_of):
    trace = trace_of([rows_of.row([1], block_tokens=16), rows_of.row([2], block_tokens=32)])
    assert (len(trace.requests), trace.bad.shown) == (1, [(2, "block_tokens is not 16, as on the lines before")])


def test_progress_is_told_in_bytes_of_the_file(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(
        gzip.compress(
            b"".join(
                json.dumps({"timestamp": i, "input_length": 9, "hash_ids": [i]}).encode() + b"\n" for i in range(5000)
            )
        )
    )
    told = []
    read_trace(path, lambda done, total: told.append((done, total)))
    assert told
    assert all(0 < done <= total == path.stat().st_size for done, total in told)
