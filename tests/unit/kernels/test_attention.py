"""CpuAttention computes what the plain reference computes and writes the same bytes into the pool."""

import pytest
import torch
from attention_cases import CASES, LONG_CASES, Case, Problem, compare, make
from kvterrace.kernels import CpuAttention, PagedBatch, ReferenceAttention, make_backend

pytestmark = pytest.mark.unit

EVERY = CASES | LONG_CASES


@pytest.mark.parametrize("case", EVERY.values(), ids=EVERY)
def test_like_the_reference(case: Case):
    difference, same_pool = compare(case, CpuAttention(scale=case.scale))
    assert difference <= 1e-5
    assert same_pool


def test_bfloat16_keeps_its_precision():
    difference, same_pool = compare(CASES["mixed"], CpuAttention(), dtype=torch.bfloat16)
    assert difference < 0.03
    assert same_pool


def test_reference_is_softmax_attention():
    """The judge itself, against the formula on contiguous data."""
    problem = make(Case([(6, 6)], heads=2, kv_heads=1))
    got, _ = problem.attend(ReferenceAttention(), None)
    k, v = problem.k.expand(-1, 2, -1), problem.v.expand(-1, 2, -1)
    scores = torch.einsum("thd,shd->hts", problem.q, k) / 4.0
    scores += torch.full((6, 6), float("-inf")).triu(1)
    torch.testing.assert_close(got, torch.einsum("hts,shd->thd", scores.softmax(-1), v))


def test_one_backend_serves_steps_of_any_size():
    """Scratch memory grows, and stale bytes in it never reach a result."""
    backend = CpuAttention()
    for name in ("decodes around a block", "long decodes", "one-token prompt", "decodes of unlike lengths", "mixed"):
        assert compare(EVERY[name], backend)[0] <= 1e-5, name


def test_usable_in_and_out_of_inference_mode():
    backend = CpuAttention()
    with torch.inference_mode():
        assert compare(CASES["mixed"], backend)[0] <= 1e-5
    assert compare(CASES["mixed"], backend)[0] <= 1e-5


def _alone(problem: Problem, index: int) -> Problem:
    batch = problem.batch
    start, end = batch.query_starts[index : index + 2].tolist()
    single = PagedBatch(
        query_starts=torch.tensor([0, end - start], dtype=torch.int32),
        context_lens=batch.context_lens[index : index + 1],
        block_tables=batch.block_tables[index : index + 1],
        slot_mapping=batch.slot_mapping[start:end],
        max_query=end - start,
        max_context=int(batch.context_lens[index]),
    )
    return Problem(single, problem.pool, *(t[start:end] for t in (problem.q, problem.k, problem.v)))


def test_a_sequence_is_computed_alike_whatever_is_beside_it():
    problem = make(CASES["mixed"])
    together, _ = problem.attend(CpuAttention(), None)
    for index, (new, _) in enumerate(CASES["mixed"].sequences):
        alone, _ = _alone(problem, index).attend(CpuAttention(), None)
        rows = slice(*problem.batch.query_starts[index : index + 2].tolist())
        if new > 1:
            assert torch.equal(together[rows], alone)  # a chunk does not depend on the batch in a bit
        else:
            torch.testing.assert_close(together[rows], alone, atol=1e-5, rtol=0)


def test_similar_decodes_share_a_call_and_padding_is_bounded():
    contexts = [2000, 100, 1900, 120, 110, 1990, 90, 600]
    problem = make(Case([(1, context) for context in contexts], heads=1, kv_heads=1, head_dim=4))
    groups = CpuAttention().plan(problem.batch, problem.pool).decodes
    assert len(groups) == 3  # near 2000, 600, and the short ones
    gathered = sum(group.gather.keys.shape[0] * group.gather.keys.shape[2] for group in groups)
    assert gathered <= 1.25 * sum(contexts)


def test_keys_outside_the_window_are_not_copied():
    problem = make(Case([(1, 2000), (40, 2000)], heads=1, kv_heads=1, head_dim=4))
    plan = CpuAttention().plan(problem.batch, problem.pool, window=64)
    assert plan.decodes[0].gather.keys.shape[2] <= 64 + 16
    past = plan.chunks[0].past
    assert past is not None
    assert past.keys.shape[2] <= 64 + 40 + 16


@pytest.mark.parametrize("backend", [CpuAttention(), ReferenceAttention()])
def test_a_window_that_hides_the_token_itself_is_refused(backend: CpuAttention | ReferenceAttention):
    problem = make(CASES["one-token prompt"])
    with pytest.raises(ValueError, match="window is 0"):
        backend.plan(problem.batch, problem.pool, window=0)


def test_the_cpu_gets_sdpa():
    assert isinstance(make_backend("cpu"), CpuAttention)
