"""Report: what replays came to, beside what no policy can beat, as tables for people and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from ..status_view import format_bytes
from .capacity import Capacity
from .optimum import Hits, infinite_hits, optimal_hits
from .outcome import Outcome, Speeds
from .trace import Trace

TIERS = ("dram", "nvme")


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Shares that cannot be exceeded, of blocks and of tokens."""

    hit_rate: float
    token_hit_rate: float


@dataclass(frozen=True, slots=True)
class Run:
    """One replay. nvme: None = there is none. optimum: of one cache as large as all tiers together."""

    policy: str
    dram: Capacity
    nvme: Capacity | None
    outcome: Outcome
    optimum: Ceiling


class Study:
    """A trace under replays with blocks of one size. Ceilings are computed once for each capacity."""

    def __init__(self, trace: Trace, *, block_tokens: int, block_bytes: int, speeds: Speeds) -> None:
        self.trace = trace
        self.block_tokens = block_tokens
        self.block_bytes = block_bytes
        self.speeds = speeds
        self.runs: list[Run] = []
        self._optima: dict[int, Ceiling] = {}

    @cached_property
    def infinite(self) -> Ceiling:
        """What a cache without limit would reach."""
        return self._ceiling(infinite_hits(self.trace))

    def optimum(self, blocks: int) -> Ceiling:
        """What the best use of so many blocks would reach, with hindsight."""
        if blocks not in self._optima:
            self._optima[blocks] = self._ceiling(optimal_hits(self.trace, blocks))
        return self._optima[blocks]

    def add(self, policy: str, dram: Capacity, nvme: Capacity | None, outcome: Outcome) -> Run:
        """Take in a finished replay."""
        optimum = self.optimum(dram.blocks + (nvme.blocks if nvme else 0))
        self.runs.append(Run(policy, dram, nvme, outcome, optimum))
        return self.runs[-1]

    def to_json(self) -> dict[str, Any]:
        """Plain values; the schema is the same for one replay and for many."""
        trace = self.trace
        return {
            "trace": {
                "name": trace.name,
                "requests": len(trace.requests),
                "blocks": trace.blocks,
                "unique_blocks": trace.unique,
                "input_tokens": trace.input_tokens,
                "duration_s": trace.duration_s,
                "bad_lines": trace.bad.count,
                "bad_lines_shown": [{"line": line, "reason": reason} for line, reason in trace.bad.shown],
            },
            "block_tokens": self.block_tokens,
            "block_bytes": self.block_bytes,
            "infinite": _ceiling_json(self.infinite),
            "runs": [self._run_json(run) for run in self.runs],
        }

    def _run_json(self, run: Run) -> dict[str, Any]:
        done = run.outcome
        counters: dict[str, Mapping[str, int]] = {
            "hit_blocks": done.hit_blocks,
            "hit_tokens": done.hit_tokens,
            "evictions": done.evictions,
            "evictions_reused": done.evictions_reused,
            "read_bytes": done.read_bytes,
            "written_bytes": done.written_bytes,
        }
        row: dict[str, Any] = {
            "policy": run.policy,
            "dram": run.dram.text,
            "dram_blocks": run.dram.blocks,
            "nvme": run.nvme.text if run.nvme else "",
            "nvme_blocks": run.nvme.blocks if run.nvme else 0,
            "hit_rate": done.hit_rate,
            "token_hit_rate": done.token_hit_rate,
            "optimum": _ceiling_json(run.optimum),
            **{name: {tier: values[tier] for tier in TIERS} for name, values in counters.items()},
            "computed_tokens": done.computed_tokens,
            "refused_blocks": dict(done.refused),
            "slower_to_load_blocks": done.slower_to_load_blocks,
        }
        if self.speeds.prefill_tokens_per_s:
            row |= {"saved_s": done.saved_s, "load_s": done.load_s, "compute_s": done.compute_s}
        if len(self.trace.agents) > 1:
            names = enumerate(self.trace.agents)
            row["agents"] = {
                name: {"input_tokens": done.agent_tokens[i], "hit_tokens": done.agent_hit_tokens[i]}
                for i, name in names
            }
        return row

    def _ceiling(self, hits: Hits) -> Ceiling:
        tokens = np.array([request.input_tokens for request in self.trace.requests])
        return Ceiling(
            hit_rate=int(hits.sum()) / max(self.trace.blocks, 1),
            token_hit_rate=int(np.minimum(hits * self.block_tokens, tokens).sum()) / max(int(tokens.sum()), 1),
        )


def _ceiling_json(ceiling: Ceiling) -> dict[str, float]:
    return {"hit_rate": ceiling.hit_rate, "token_hit_rate": ceiling.token_hit_rate}


def trace_lines(study: Study) -> Iterator[str]:
    """What was replayed, in a few sentences."""
    trace = study.trace
    yield (
        f"{trace.name}: {len(trace.requests):,} requests over {trace.duration_s:,.0f} s, "
        f"{trace.input_tokens:,} tokens, {trace.blocks:,} blocks ({trace.unique:,} different)"
    )
    yield (
        f"a block: {study.block_tokens} tokens, {format_bytes(study.block_bytes)}; an infinite cache hits "
        f"{study.infinite.token_hit_rate:.1%} of the tokens, {study.infinite.hit_rate:.1%} of the blocks"
    )


def bad_lines(trace: Trace) -> Iterator[str]:
    """Lines that were left out; nothing when there are none."""
    if trace.bad.count:
        yield f"{trace.bad.count:,} lines were left out; the first of them:"
        yield from (f"  line {line}: {reason}" for line, reason in trace.bad.shown)


def run_table(study: Study, run: Run) -> Table:
    """One replay in full."""
    done = run.outcome
    nvme = f", NVMe {run.nvme}" if run.nvme else ""
    table = Table(title=f"{run.policy}, DRAM {run.dram}{nvme}", title_justify="left")
    for name in ("", *(tier.upper() for tier in TIERS), "total"):
        table.add_column(name, justify="left" if not name else "right")
    tiers = TIERS if run.nvme else TIERS[:1]
    for label, values in (
        ("hit tokens", done.hit_tokens),
        ("hit blocks", done.hit_blocks),
        ("evicted blocks", done.evictions),
        ("of them hit before", done.evictions_reused),
    ):
        table.add_row(label, *_cells(tiers, [f"{values[tier]:,}" for tier in tiers]), f"{values.total():,}")
    for label, values in (("bytes read", done.read_bytes), ("bytes written", done.written_bytes)):
        table.add_row(label, *_cells(tiers, [format_bytes(values[tier]) for tier in tiers]), "")
    table.add_row("computed tokens", "", "", f"{done.computed_tokens:,}")
    if run.nvme:
        if study.trace.duration_s:
            per_day = int(done.written_bytes["nvme"] / study.trace.duration_s * 86400)
            table.add_row("written in a day", "", format_bytes(per_day), "")
        table.add_row("blocks not written", "", f"{done.refused.total():,}", "")
        table.add_row("blocks slower to load", "", f"{done.slower_to_load_blocks:,}", "")
    table.add_section()
    for label, rate, ceiling in (
        ("tokens", done.token_hit_rate, run.optimum.token_hit_rate),
        ("blocks", done.hit_rate, run.optimum.hit_rate),
    ):
        table.add_row(f"hit rate, {label}", "", "", f"{rate:.2%}")
        table.add_row("  with hindsight", "", "", f"{ceiling:.2%}")
    if study.speeds.prefill_tokens_per_s:
        table.add_row("seconds of prefill", "", "", f"{done.compute_s:,.0f}")
        table.add_row("seconds saved", "", "", f"{done.saved_s:,.0f}")
    for i, agent in enumerate(study.trace.agents) if len(study.trace.agents) > 1 else ():
        share = done.agent_hit_tokens[i] / max(done.agent_tokens[i], 1)
        table.add_row(f"hit rate, tokens, {escape(agent or 'no agent')}", "", "", f"{share:.2%}")
    return table


def study_table(study: Study) -> Table:
    """Many replays, a line a capacity; token hit rates by policy, and the ceilings."""
    policies = list(dict.fromkeys(run.policy for run in study.runs))
    nvme = any(run.nvme for run in study.runs)
    table = Table(title="tokens hit", title_justify="left")
    for name in ("DRAM", *(["NVMe"] if nvme else []), "blocks", *policies, "hindsight", "infinite"):
        table.add_column(name, justify="right")
    for group in _by_capacity(study.runs):
        rates = {run.policy: f"{run.outcome.token_hit_rate:.2%}" for run in group}
        first = group[0]
        blocks = first.dram.blocks + (first.nvme.blocks if first.nvme else 0)
        table.add_row(
            first.dram.text,
            *([first.nvme.text] if first.nvme else []),
            f"{blocks:,}",
            *(rates[policy] for policy in policies),
            f"{first.optimum.token_hit_rate:.2%}",
            f"{study.infinite.token_hit_rate:.2%}",
        )
    return table


def _by_capacity(runs: Sequence[Run]) -> Iterator[list[Run]]:
    groups: dict[tuple[Capacity, Capacity | None], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.dram, run.nvme), []).append(run)
    yield from groups.values()


def _cells(tiers: Sequence[str], values: Sequence[str]) -> list[str]:
    return [*values, *[""] * (len(TIERS) - len(tiers))]
