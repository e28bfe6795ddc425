"""`kvterrace size`: what a model's KV takes, and what fits into GPU, DRAM and NVMe."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..options import parse_size
from ..sizing.model import load_shape
from ..sizing.plan import DEFAULT_BLOCK_TOKENS, GPU_USE, Demand, Plan, make_plan
from ..sizing.shape import DTYPE_BYTES, SizingError, dtype_name
from ..status_view import format_bytes
from .common import JsonOption, fail, print_json

_DTYPES = ", ".join(DTYPE_BYTES)


def size(  # noqa: PLR0913, PLR0917  one argument a flag
    model: Annotated[Path, typer.Argument(help="Model folder, config.json or GGUF file.")],
    context: Annotated[
        int, typer.Option(help="Tokens of one context. Default: 8192, or the model's maximum.", show_default=False)
    ] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Contexts at once.")] = 1,
    gpu_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Of each GPU, such as 80GiB.")] = None,
    gpu_use: Annotated[float, typer.Option(min=0.05, max=1.0, help="Share of it for weights and KV.")] = GPU_USE,
    tp: Annotated[int, typer.Option(min=1, max=1024, help="GPUs that share the model (tensor parallel).")] = 1,
    dtype: Annotated[
        str | None, typer.Option(help=f"Of the weights once loaded: {_DTYPES}. Default: the files'.")
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Of the KV. Default: the model's, else bfloat16.")] = None,
    block_tokens: Annotated[int, typer.Option(min=1, max=1024, help="Tokens of a block.")] = DEFAULT_BLOCK_TOKENS,
    dram: Annotated[str | None, typer.Option(metavar="SIZE", help="Of the DRAM tier, such as 64GiB.")] = None,
    nvme: Annotated[str | None, typer.Option(metavar="SIZE", help="Of the NVMe tier, such as 1TB.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say how many bytes a model's KV takes, and how many tokens and contexts fit where. Reads configuration only."""
    if context < 0:
        fail("size", f"--context: {context} is not a number of tokens", 2)
    demand = Demand(
        context=context,
        concurrency=concurrency,
        dtype=_dtype("--dtype", dtype),
        kv_dtype=_dtype("--kv-dtype", kv_dtype),
        block_tokens=block_tokens,
        tp=tp,
        gpu_bytes=_size("--gpu-memory", gpu_memory),
        dram_bytes=_size("--dram", dram),
        nvme_bytes=_size("--nvme", nvme),
        gpu_use=gpu_use,
    )
    try:
        plan = make_plan(load_shape(model), demand)
    except SizingError as error:
        fail("size", str(error), 2)
    if as_json:
        print_json(plan_json(plan))
    else:
        _show(plan, Console())


def plan_json(plan: Plan) -> dict[str, Any]:
    """All of it, by the fields' names."""
    return dataclasses.asdict(plan)


def _show(plan: Plan, console: Console) -> None:
    model, facts = plan.model, Table(show_header=False, title=f"{plan.model.name} ({plan.model.family})")
    facts.add_column()
    facts.add_column(justify="right")
    for name, value in _facts(plan):
        facts.add_row(name, value)
    console.print(facts)
    if plan.tiers:
        console.print(_tiers(plan))
    for line in (*plan.verdicts, *(f"note: {note}" for note in model.notes)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _facts(plan: Plan) -> list[tuple[str, str]]:
    weights = f"{format_bytes(plan.weights_bytes)} ({plan.weights_source})" if plan.weights_bytes else "not known"
    rank = f" ({plan.gpu_bytes_per_token:,} on each of {plan.tp} GPUs)" if plan.tp > 1 else ""
    windows = plan.tp == 1 and plan.gpu_bytes_per_token < plan.kv_bytes_per_token
    kept = f" ({plan.gpu_bytes_per_token:,} on the GPU, with windows)" if windows else ""
    layers = ", ".join(
        f"{group.layers} {group.kind}" + (f" x {group.kv_heads} x {group.key_dim}" if group.kv_heads else "")
        for group in plan.model.groups
    )
    return [
        ("weights", weights),
        ("layers x KV heads x size", layers),
        (f"KV of a token, {plan.kv_dtype}", f"{plan.kv_bytes_per_token:,} bytes{rank}{kept}"),
        (f"KV of a block of {plan.block_tokens}", format_bytes(plan.block_bytes)),
        (f"one context of {plan.context:,} tokens", _context(plan, 1)),
        *([(f"{plan.concurrency:,} of them", _context(plan, plan.concurrency))] if plan.concurrency > 1 else []),
    ]


def _context(plan: Plan, count: int) -> str:
    """In a store; and on the GPUs, where windows make that less, or heads that are there several times more."""
    stored = plan.context * plan.kv_bytes_per_token * count
    on_gpus = plan.needed_bytes // plan.concurrency * count * plan.tp
    more = "" if on_gpus == stored else f", {format_bytes(on_gpus)} on the GPUs"
    return format_bytes(stored) + more


def _tiers(plan: Plan) -> Table:
    table = Table("tier", "size", "for KV", "tokens", f"contexts of {plan.context:,}")
    for tier in plan.tiers:
        table.add_row(
            tier.tier,
            format_bytes(tier.capacity_bytes),
            format_bytes(tier.usable_bytes),
            f"{tier.tokens:,}",
            f"{tier.contexts:,}",
        )
    return table


def _size(option: str, text: str | None) -> int:
    if text is None:
        return 0
    try:
        return parse_size(text)
    except ValueError as error:
        fail("size", f"{option}: {error}", 2)


def _dtype(option: str, text: str | None) -> str:
    name = dtype_name(text) if text is not None else ""
    if text is not None and not name:
        fail("size", f"{option}: {text!r} is none of {_DTYPES}", 2)
    return name
