"""Triton kernels of TritonAttention and of block moves. Imports Triton: only those two modules import this one.

Every kernel reads the pool in place, through strides; the innermost axis is contiguous. On a CPU they run in Triton's
interpreter, given TRITON_INTERPRET=1 before the first import of Triton.
"""

import triton
import triton.language as tl

# Pointers, strides and sizes arrive one by one. The compiler reads annotations as code, so that only constexpr stays.
# ruff: noqa: PLR0913, PLR0917, ANN001, ANN201


@triton.jit
def write_kernel(
    k,  # [T, kv_heads, head_dim]
    v,
    pool,  # one layer: [num_pages, kv_heads, 2, block_tokens, head_dim]
    slots,  # int64 [T]
    k_token,
    k_head,
    v_token,
    v_head,
    page_stride,
    head_stride,
    block_tokens: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
):
    """One program copies K and V of one token and head."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + token)
    if slot >= 0:
        dims = tl.arange(0, padded_dim)
        keep = dims < head_dim
        tile = pool + (slot // block_tokens) * page_stride + head * head_stride + (slot % block_tokens) * head_dim
        tl.store(tile + dims, tl.load(k + token * k_token + head * k_head + dims, mask=keep), mask=keep)
        value = tl.load(v + token * v_token + head * v_head + dims, mask=keep)
        tl.store(tile + block_tokens * head_dim + dims, value, mask=keep)


@triton.jit
def attend_keys(
    query,  # [rows, padded_dim]
    positions,  # [rows]
    pool,  # one layer and head
    table,
    begin,
    end,
    page_stride,
    scale,
    window,
    rows: tl.constexpr,
    keys: tl.constexpr,
    block_tokens: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
):
    """Online softmax (Milakov and Gimelshein 2018) over keys begin..end: weighted sum, row maxima (log2), row sums."""
    dims = tl.arange(0, padded_dim)
    best = tl.full([rows], float("-inf"), dtype=tl.float32)
    total = tl.zeros([rows], dtype=tl.float32)
    mixed = tl.zeros([rows, padded_dim], dtype=tl.float32)
    for at in range(begin, end, keys):
        key = at + tl.arange(0, keys)
        known = key < end
        page = tl.load(table + key // block_tokens, mask=known, other=0).to(tl.int64)
        spot = pool + page[:, None] * page_stride + (key % block_tokens)[:, None] * head_dim + dims[None, :]
        present = known[:, None] & (dims < head_dim)[None, :]
        k = tl.load(spot, mask=present, other=0.0)
        v = tl.load(spot + block_tokens * head_dim, mask=present, other=0.0)
        score = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        seen = known[None, :] & (key[None, :] <= positions[:, None]) & (key[None, :] > positions[:, None] - window)
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)  # a row that has seen nothing: -inf - -inf is NaN
        weight = tl.exp2(score - shift[:, None])
        fade = tl.exp2(best - shift)
        total = total * fade + tl.sum(weight, 1)
        mixed = mixed * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        best = higher
    return mixed, best, total


@triton.jit
def chunk_kernel(
    q,  # [T, heads, head_dim]
    pool,  # one layer
    out,  # [T, heads, head_dim], contiguous
    tables,
    starts,
    contexts,
    q_token,
    q_head,
    out_token,
    table_stride,
    page_stride,
    head_stride,
    scale,
    window,
    share: tl.constexpr,
    rows: tl.constexpr,
    keys: tl.constexpr,
    block_tokens: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
):
    """One program: `rows` (token, query head) pairs of one sequence and K/V head. Decodes are decode_kernel's."""
    tile, sequence, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, context = tl.load(starts + sequence), tl.load(contexts + sequence)
    count = tl.load(starts + sequence + 1) - start
    first = tile * rows // share  # the tile's first token, of the sequence's new ones
    if (count > 1) & (first < count):
        row = tile * rows + tl.arange(0, rows)
        token = row // share
        dims = tl.arange(0, padded_dim)
        live = (token < count)[:, None] & (dims < head_dim)[None, :]
        flat, query_head = (start + token).to(tl.int64), head * share + row % share
        query = tl.load(q + (flat * q_token + query_head * q_head)[:, None] + dims[None, :], mask=live, other=0.0)
        past = context - count
        last = (tile * rows + rows - 1) // share
        end = tl.minimum(past + last + 1, context)
        begin = tl.maximum(past + first - window + 1, 0) // keys * keys
        mixed, _, total = attend_keys(
            query, past + token, pool + head * head_stride, tables + sequence * table_stride, begin, end,
            page_stride, scale, window, rows, keys, block_tokens, head_dim, padded_dim,
        )  # fmt: skip
        result = mixed / tl.where(total > 0, total, 1.0)[:, None]
        target = out + (flat * out_token + query_head * head_dim)[:, None] + dims[None, :]
        tl.store(target, result.to(out.dtype.element_ty), mask=live)


@triton.jit
def decode_kernel(
    q,
    pool,
    partial,  # float32 [splits, B, heads, head_dim + 2]: weighted sum, then row maximum and row sum
    tables,
    starts,
    contexts,
    q_token,
    q_head,
    partial_split,
    partial_sequence,
    table_stride,
    page_stride,
    head_stride,
    scale,
    window,
    share: tl.constexpr,
    rows: tl.constexpr,
    keys: tl.constexpr,
    split_keys: tl.constexpr,
    block_tokens: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
):
    """One program: the query heads of one K/V head over one split of one sequence's keys (Dao et al. 2023).

    Splits begin at multiples of split_keys, whatever else is in the batch.
    """
    split, sequence, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, context = tl.load(starts + sequence), tl.load(contexts + sequence)
    begin = tl.maximum(split * split_keys, tl.maximum(context - window, 0) // keys * keys)
    end = tl.minimum((split + 1) * split_keys, context)
    if (tl.load(starts + sequence + 1) - start == 1) & (begin < end):
        row = tl.arange(0, rows)
        dims = tl.arange(0, padded_dim)
        live = (row < share)[:, None] & (dims < head_dim)[None, :]
        query_head = head * share + row
        where = start.to(tl.int64) * q_token + query_head * q_head
        query = tl.load(q + where[:, None] + dims[None, :], mask=live, other=0.0)
        mixed, best, total = attend_keys(
            query, tl.zeros([rows], dtype=tl.int32) + context - 1, pool + head * head_stride,
            tables + sequence * table_stride, begin, end, page_stride, scale, window,
            rows, keys, block_tokens, head_dim, padded_dim,
        )  # fmt: skip
        target = partial + split * partial_split + sequence * partial_sequence + query_head * (head_dim + 2)
        tl.store(target[:, None] + dims[None, :], mixed, mask=live)
        tl.store(target + head_dim, best, mask=row < share)
        tl.store(target + head_dim + 1, total, mask=row < share)


@triton.jit
def merge_kernel(
    partial,
    out,
    starts,
    contexts,
    partial_split,
    partial_sequence,
    out_token,
    window,
    split_keys: tl.constexpr,
    keys: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
):
    """One program: the splits of one decode and query head, in order."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    start, context = tl.load(starts + sequence), tl.load(contexts + sequence)
    if tl.load(starts + sequence + 1) - start == 1:
        dims = tl.arange(0, padded_dim)
        keep = dims < head_dim
        best = tl.full([1], float("-inf"), dtype=tl.float32)
        total = tl.zeros([1], dtype=tl.float32)
        mixed = tl.zeros([padded_dim], dtype=tl.float32)
        first = (tl.maximum(context - window, 0) // keys * keys) // split_keys
        for split in range(first, tl.cdiv(context, split_keys)):
            source = partial + split * partial_split + sequence * partial_sequence + head * (head_dim + 2)
            part_best, part_total = tl.load(source + head_dim), tl.load(source + head_dim + 1)
            higher = tl.maximum(best, part_best)
            shift = tl.where(higher == float("-inf"), 0.0, higher)
            fade, gain = tl.exp2(best - shift), tl.exp2(part_best - shift)
            total = total * fade + part_total * gain
            mixed = mixed * fade + tl.load(source + dims, mask=keep, other=0.0) * gain
            best = higher
        target = out + start.to(tl.int64) * out_token + head * head_dim + dims
        tl.store(target, (mixed / tl.where(total > 0, total, 1.0)).to(out.dtype.element_ty), mask=keep)


@triton.jit
def move_kernel(
    source,  # [blocks, heads, planes, tokens, dims], any strides
    target,
    source_blocks,  # int64 [n]
    target_blocks,
    source_block,
    source_head,
    source_plane,
    source_token,
    source_dim,
    target_block,
    target_head,
    target_plane,
    target_token,
    target_dim,
    planes: tl.constexpr,
    block_tokens: tl.constexpr,
    head_dim: tl.constexpr,
    padded_tokens: tl.constexpr,
    padded_dim: tl.constexpr,
):
    """One program copies the tile of one block, head and plane."""
    block, head, plane = tl.program_id(0), tl.program_id(1) // planes, tl.program_id(1) % planes
    tokens, dims = tl.arange(0, padded_tokens), tl.arange(0, padded_dim)
    keep = (tokens < block_tokens)[:, None] & (dims < head_dim)[None, :]
    read = source + tl.load(source_blocks + block) * source_block + head * source_head + plane * source_plane
    write = target + tl.load(target_blocks + block) * target_block + head * target_head + plane * target_plane
    tile = tl.load(read + tokens[:, None] * source_token + dims[None, :] * source_dim, mask=keep)
    tl.store(write + tokens[:, None] * target_token + dims[None, :] * target_dim, tile, mask=keep)


@triton.jit
def encode_kernel(
    pages,  # [rows, head_dim], contiguous
    codes,  # uint8, the blocks
    scales,  # the same memory as int16
    count,  # rows
    head_rows,  # rows of a head: their codes, then their scales
    max_scale,
    largest: tl.constexpr,
    whole: tl.constexpr,  # int8 codes, else e4m3
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    tile_rows: tl.constexpr,
):
    """One program codes `tile_rows` rows. Bit by bit where devices differ: float8 types, rounding, bfloat16."""
    row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    dims = tl.arange(0, padded_dim)
    keep = (row < count)[:, None] & (dims < head_dim)[None, :]
    exact = tl.load(pages + row[:, None] * head_dim + dims[None, :], mask=keep, other=0.0).to(tl.float32)
    size = tl.abs(exact)
    top = tl.max(tl.where(size < float("inf"), size, 0.0), 1)
    finite = tl.sum((size < float("inf")).to(tl.int32), 1) == padded_dim  # a NaN is not below anything
    scale = tl.minimum(tl.maximum(top * (1.0 / largest), 1.1754943508222875e-38), max_scale)
    bits = scale.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to the nearest bfloat16, ties to even
    inverse = 1.0 / (bits << 16).to(tl.float32, bitcast=True)
    scaled = tl.minimum(tl.maximum(exact * inverse[:, None], -largest), largest)
    if whole:
        code = (scaled + 12582912.0).to(tl.int32, bitcast=True) & 0xFF
    else:
        level = tl.abs(scaled)
        normal = level.to(tl.int32, bitcast=True)
        normal = ((normal + 0x7FFFF + ((normal >> 20) & 1)) >> 20) - (120 << 3)
        # Below 2**-6 the steps are 2**-9: the low bits of what is added to 2**14.
        small = (level + 16384.0).to(tl.int32, bitcast=True) & 0xFF
        code = tl.where(level < 0.015625, small, normal) | ((scaled.to(tl.int32, bitcast=True) >> 24) & 0x80)
    head = row // head_rows
    start = head * head_rows * (head_dim + 2)
    place = start + (row % head_rows) * head_dim
    tl.store(codes + place[:, None] + dims[None, :], code.to(tl.uint8), mask=keep)
    place = (start + head_rows * head_dim) // 2 + row % head_rows
    tl.store(scales + place, tl.where(finite, bits, 0x7FC0).to(tl.int16), mask=row < count)


@triton.jit
def recover_kernel(
    codes,
    scales,
    pages,
    count,
    head_rows,
    whole: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    tile_rows: tl.constexpr,
):
    """The inverse of encode_kernel."""
    row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    dims = tl.arange(0, padded_dim)
    keep = (row < count)[:, None] & (dims < head_dim)[None, :]
    start = row // head_rows * head_rows * (head_dim + 2)
    place = start + (row % head_rows) * head_dim
    code = tl.load(codes + place[:, None] + dims[None, :], mask=keep, other=0).to(tl.int32)
    if whole:
        value = ((code << 24) >> 24).to(tl.float32)
    else:
        normal = (((code & 0x7F) << 20) + (120 << 23)).to(tl.float32, bitcast=True)
        value = tl.where((code & 0x78) == 0, (code & 7).to(tl.float32) * 0.001953125, normal)
        value = tl.where(code >= 0x80, -value, value)
    place = (start + head_rows * head_dim) // 2 + row % head_rows
    bits = tl.load(scales + place, mask=row < count, other=0).to(tl.int32) << 16
    value *= bits.to(tl.float32, bitcast=True)[:, None]
    tl.store(pages + row[:, None] * head_dim + dims[None, :], value.to(pages.dtype.element_ty), mask=keep)
