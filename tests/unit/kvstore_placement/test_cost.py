"""The cost model learns what a machine does, is not led astray by stalls, and finds out when things change."""

import random

import pytest
from kvterrace.kvstore.placement import CostModel, IoCost
from kvterrace.kvstore.placement.cost import Lane
from kvterrace.kvstore.placement.fit import LinearFit

pytestmark = pytest.mark.unit

PER_TOKEN, PER_PAIR, PER_CALL = 2e-4, 1e-8, 5e-3


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def prefill_s(first: int, tokens: int, scale: float = 1.0) -> float:
    return scale * (PER_TOKEN * tokens + PER_PAIR * tokens * (first + tokens / 2) + PER_CALL)


def exact(first: int, tokens: int, scale: float = 1.0) -> float:
    """What `tokens` cost on top of a prefill in calls of 512."""
    return prefill_s(first, tokens, scale) - scale * PER_CALL * (1 - tokens / 512)


def teach(model: CostModel, count: int, *, seed: int = 0, noise: float = 0.0, scale: float = 1.0) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        first, tokens = rng.randrange(0, 16_384), rng.choice([16, 64, 200, 512])
        model.observe_prefill(first, tokens, prefill_s(first, tokens, scale) * rng.uniform(1 - noise, 1 + noise))


def slow_disk(model: CostModel, times: int = 4, seconds: float = 1.0) -> None:
    for _ in range(times):
        model.observe_io("nvme", 10 << 20, seconds, "read")


def test_nothing_is_known_before_it_is_measured():
    model = CostModel()
    assert model.compute_s(0, 1000) == 0.0
    assert model.load_s("nvme", 1 << 20) == 0.0
    assert model.saved_s("nvme", 0, 1000, 1 << 20) == 0.0
    assert model.worth_loading("nvme", 0, 1000, 1 << 20)
    slow_disk(model)
    assert model.worth_loading("nvme", 0, 1000, 1 << 20), "how long computing takes is not known"


@pytest.mark.parametrize(("first", "tokens"), [(0, 16), (0, 512), (8000, 512), (0, 4096), (16_000, 128)])
def test_learns_tokens_context_and_call_overhead_apart(first: int, tokens: int):
    model = CostModel()
    teach(model, 200, noise=0.1)
    assert model.compute_s(first, tokens) == pytest.approx(exact(first, tokens), rel=0.15)


def test_long_prompts_are_foretold_from_equal_chunks():
    """All chunks of 512 at the same place: overhead and tokens cannot be told apart, and must not be confused."""
    model = CostModel()
    for _ in range(50):
        model.observe_prefill(0, 512, 0.1)
    assert model.compute_s(0, 5120) == pytest.approx(1.0, rel=0.02)
    assert model.compute_s(0, 51) == pytest.approx(0.01, rel=0.02)


def test_a_first_call_that_compiles_kernels_is_forgotten_at_once():
    model = CostModel()
    model.observe_prefill(0, 512, 30.0)
    teach(model, 12, noise=0.05)
    assert model.compute_s(0, 512) == pytest.approx(exact(0, 512), rel=0.3)


def test_stalls_hardly_move_it():
    model = CostModel()
    teach(model, 200, noise=0.1)
    before = model.compute_s(1000, 512)
    for _ in range(3):
        model.observe_prefill(1000, 512, 60.0)
    assert model.compute_s(1000, 512) < before * 1.4
    for _ in range(3):
        model.observe_prefill(1000, 512, 1e-6)
    assert model.compute_s(1000, 512) > before * 0.4


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_a_lasting_change_is_learnt(scale: float):
    model = CostModel()
    teach(model, 200)
    teach(model, 60, seed=1, scale=scale, noise=0.1)
    assert model.compute_s(2000, 512) == pytest.approx(exact(2000, 512, scale), rel=0.4)


def test_never_negative_whatever_is_reported():
    rng = random.Random(7)
    model = CostModel()
    for _ in range(500):
        model.observe_prefill(rng.randrange(100_000), rng.randrange(1, 4096), rng.lognormvariate(-3, 3))
        assert model.compute_s(rng.randrange(100_000), rng.randrange(1, 100_000)) >= 0
    assert model.compute_s(0, 0) == 0.0


@pytest.mark.parametrize("bad", [(-1, 5, 1.0), (0, 0, 1.0), (0, 5, 0.0), (0, 5, -1.0), (0, 5, float("nan")),
                                 (0, 5, float("inf")), (0, 5, 1e9)])  # fmt: skip
def test_nonsense_is_ignored(bad: tuple[int, int, float]):
    model = CostModel()
    teach(model, 20)
    before = model.snapshot()
    model.observe_prefill(*bad)
    assert model.snapshot() == before


@pytest.mark.parametrize("bad", [(0, 1.0), (-5, 1.0), (5, 0.0), (5, float("nan")), (5, float("inf")), (5, 1e9)])
def test_nonsense_of_a_tier_is_ignored(bad: tuple[int, float]):
    model = CostModel()
    slow_disk(model)
    before = model.snapshot()
    model.observe_io("nvme", *bad, "read")
    assert model.snapshot() == before


def test_latency_and_bandwidth_are_told_apart():
    model = CostModel()
    rng = random.Random(1)
    for _ in range(100):
        size = rng.choice([1 << 16, 1 << 20, 64 << 20])
        model.observe_io("nvme", size, (1e-4 + size / 2e9) * rng.uniform(0.9, 1.1), "read")
        model.observe_io("nvme", size, 1e-3 + size / 5e8, "write")
    read = model.snapshot().reads["nvme"]
    assert read.latency_s == pytest.approx(1e-4, rel=0.3)
    assert read.bytes_per_s == pytest.approx(2e9, rel=0.1)
    assert model.load_s("nvme", 256 << 20) == pytest.approx((256 << 20) / 2e9, rel=0.1)
    assert model.snapshot().writes["nvme"].bytes_per_s == pytest.approx(5e8, rel=0.1)


def test_a_long_load_is_foretold_from_nearly_equal_ones():
    """Reads of about one size say nothing of latency; noise must not be taken for it."""
    for seed in range(20):
        rng, model = random.Random(seed), CostModel()
        for _ in range(60):
            size = (8 << 20) + 4096 * rng.randrange(3)
            model.observe_io("nvme", size, size / 1e9 * rng.uniform(0.8, 1.2), "read")
        assert model.load_s("nvme", 80 << 20) == pytest.approx((80 << 20) / 1e9, rel=0.2)


def test_loads_what_is_faster_and_computes_what_is_not():
    model = CostModel()
    teach(model, 50)  # 512 tokens: about 0.1 s
    slow_disk(model, seconds=0.05)
    assert model.worth_loading("nvme", 0, 512, 10 << 20)
    assert not model.worth_loading("nvme", 0, 128, 10 << 20)
    assert model.saved_s("nvme", 0, 512, 10 << 20) == pytest.approx(exact(0, 512) - 0.05, rel=0.1)
    assert model.saved_s("nvme", 0, 64, 10 << 20) < 0


def test_keeps_its_mind_while_both_are_about_equal():
    model = CostModel()
    teach(model, 50)
    compute_s = model.compute_s(0, 512)

    def verdict(ratio: float) -> bool:
        disk = IoCost()
        disk.observe("nvme", 1000, compute_s * ratio, "read")
        disk.observe("nvme", 1000, compute_s * ratio, "read")
        model._io = disk
        return model.worth_loading("nvme", 0, 512, 1000)

    assert verdict(1.05)
    assert not verdict(1.5)
    assert not verdict(1.05)
    assert verdict(0.8)


def test_a_tier_that_has_recovered_is_found_out():
    """Judged slow, it is read no more, so nothing would ever say that it is fast again."""
    model = CostModel()
    teach(model, 50)
    slow_disk(model, times=20, seconds=0.5)
    for _ in range(800):
        if model.worth_loading("nvme", 0, 512, 10 << 20):
            model.observe_io("nvme", 10 << 20, 0.01, "read")
    assert not model.snapshot().slow
    assert all(model.worth_loading("nvme", 0, 512, 10 << 20) for _ in range(10))


def test_trying_a_slow_tier_costs_next_to_nothing():
    model = CostModel()
    teach(model, 50)
    slow_disk(model, times=20, seconds=0.5)
    compute_s = model.compute_s(0, 512)
    tried = 0
    for _ in range(1000):
        if model.worth_loading("nvme", 0, 512, 10 << 20):
            tried += 1
            model.observe_io("nvme", 10 << 20, 0.5, "read")
    assert tried > 0
    assert tried * (0.5 - compute_s) < 0.03 * 1000 * compute_s


def test_namespaces_share_the_devices_but_not_the_model():
    disk = IoCost()
    small, large = CostModel(disk), CostModel(disk)
    teach(small, 20)
    slow_disk(small, seconds=0.05)
    assert large.load_s("nvme", 10 << 20) == pytest.approx(0.05, rel=0.05)
    assert large.compute_s(0, 512) == 0.0


def test_the_fit_is_the_best_one_without_negative_parts():
    """Data that ordinary least squares explains with a negative overhead."""
    fit = LinearFit((1.0, 1.0))
    for x, seconds in [(1.0, 0.5), (2.0, 2.0), (3.0, 3.6), (4.0, 5.0)] * 10:
        fit.observe((x, 1.0), seconds)
    slope, overhead = fit.coefficients
    assert overhead == 0.0
    assert 0.5 < slope < 1.3


def test_transfers_side_by_side_share_the_time():
    """Eight at once take eight times as long each; the device is not slower for that."""
    disk, clock = IoCost(), Clock()
    for _ in range(5):
        running = [disk.measure("nvme", "read", clock) for _ in range(8)]
        sizes = [each.__enter__() for each in running]
        clock.now += 0.8
        for each, size in zip(running, sizes, strict=True):
            size.size_bytes = 100 << 20
            each.__exit__(None, None, None)
        clock.now += 5.0  # idle
    assert disk.tiers("read")["nvme"].bytes_per_s == pytest.approx(1000 * 2**20, rel=0.01)


def test_shares_of_overlapping_transfers():
    lane = Lane()
    one = lane.begin(0.0)
    two = lane.begin(1.0)
    assert lane.end(one, 3.0) == pytest.approx(1.0 + 2.0 / 2)
    assert lane.end(two, 4.0) == pytest.approx(2.0 / 2 + 1.0)
    assert lane.end(lane.begin(10.0), 10.5) == pytest.approx(0.5)


def test_a_transfer_that_fails_or_is_cancelled_measures_nothing_and_charges_nobody():
    disk, clock = IoCost(), Clock()
    failing = disk.measure("nvme", "read", clock)
    failing.__enter__()
    clock.now += 1.0
    assert not failing.__exit__(OSError, OSError("gone"), None)
    for _ in range(2):
        with disk.measure("nvme", "read", clock) as measured:
            clock.now += 0.5
            measured.size_bytes = 1 << 20
    assert disk.seconds("nvme", 1 << 20, "read") == pytest.approx(0.5)
