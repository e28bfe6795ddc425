"""Plan: what fits where. Pure; every figure is bytes, tokens or contexts, and says what it assumes."""

from dataclasses import dataclass, field

from ...proto import PAGE_BYTES
from ...proto.record import record_bytes
from ..sim.capacity import SEGMENT_BYTES
from ..tiers.nvme.log import LIVE_SHARE
from .shape import DTYPE_BYTES, ModelShape, SizingError

GPU_USE = 0.9  # of a GPU's memory; the rest is the runtime's, activations' and others'
DEFAULT_CONTEXT = 8192
DEFAULT_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Demand:
    """What the user wants. context: tokens of one context, 0 = 8,192 or the model's own maximum if that is less.
    concurrency: contexts at once. dtype, kv_dtype: "" = the model's own, bfloat16 where it says none. Sizes in bytes,
    0 = there is no such tier. tp: ranks, each on a GPU of gpu_bytes. gpu_use: the share of it to be used."""

    context: int = 0
    concurrency: int = 1
    dtype: str = ""
    kv_dtype: str = ""
    block_tokens: int = DEFAULT_BLOCK_TOKENS
    tp: int = 1
    gpu_bytes: int = 0
    dram_bytes: int = 0
    nvme_bytes: int = 0
    gpu_use: float = GPU_USE


@dataclass(frozen=True, slots=True)
class TierPlan:
    """capacity_bytes: given. usable_bytes: for KV, after weights, reserves, headers. tokens: that fit; contexts: whole
    ones of Plan.context, a windowed layer's window being all that a GPU keeps of it."""

    tier: str
    capacity_bytes: int
    usable_bytes: int
    tokens: int
    contexts: int


@dataclass(frozen=True, slots=True)
class Plan:
    """See the fields' names. kv_bytes_per_token: of all layers and ranks, as a store keeps it; gpu_bytes_per_token: of
    one rank. weights_source: "files" or "estimate"; weights_bytes 0 = not known. needed_tokens: of all contexts."""

    model: ModelShape
    context: int
    concurrency: int
    kv_dtype: str
    weights_bytes: int
    weights_source: str
    block_tokens: int
    block_bytes: int
    kv_bytes_per_token: int
    gpu_bytes_per_token: int
    needed_tokens: int
    needed_bytes: int
    tp: int
    tiers: tuple[TierPlan, ...]
    verdicts: tuple[str, ...] = field(default=())


def make_plan(model: ModelShape, demand: Demand) -> Plan:
    """SizingError for what cannot be."""
    context = demand.context or min(model.max_context or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    kv_dtype = demand.kv_dtype or (model.dtype if model.dtype not in ("", "fp8", "int8") else "bfloat16")
    kv_bytes = DTYPE_BYTES[kv_dtype]
    weights, source = _weights(model, demand)
    per_token = int(model.stored_elements() * kv_bytes)
    block_bytes = per_token * demand.block_tokens
    if not block_bytes:
        raise SizingError(f"{model.name} keeps no KV")
    on_rank = int(model.context_elements(context, demand.tp) * kv_bytes)  # one context
    tiers = [
        tier
        for tier in (
            _gpu(demand, weights, on_rank, context),
            _store("dram", demand.dram_bytes, demand.dram_bytes, _paged(block_bytes), demand.block_tokens, context),
            _nvme(demand, block_bytes, context),
        )
        if tier is not None
    ]
    return Plan(
        model=model,
        context=context,
        concurrency=demand.concurrency,
        kv_dtype=kv_dtype,
        weights_bytes=weights,
        weights_source=source,
        block_tokens=demand.block_tokens,
        block_bytes=block_bytes,
        kv_bytes_per_token=per_token,
        gpu_bytes_per_token=-(-on_rank // context),
        needed_tokens=context * demand.concurrency,
        needed_bytes=on_rank * demand.concurrency,
        tp=demand.tp,
        tiers=tuple(tiers),
        verdicts=tuple(_verdicts(model, demand, context, tiers)),
    )


def _weights(model: ModelShape, demand: Demand) -> tuple[int, str]:
    """Of all ranks. --dtype counts only where there are no files, or the model is loaded as another type."""
    if demand.dtype and model.parameters:
        return int(model.parameters * DTYPE_BYTES[demand.dtype]), "estimate"
    if model.weights_bytes:
        return model.weights_bytes, "files"
    if model.parameters:
        each = model.weight_bits / 8 if model.weight_bits else DTYPE_BYTES[model.dtype or "bfloat16"]
        return int(model.parameters * each), "estimate"
    return 0, "unknown"


def _gpu(demand: Demand, weights: int, context_bytes: int, context: int) -> TierPlan | None:
    """Of all ranks together: each holds its share of every context."""
    if not demand.gpu_bytes:
        return None
    usable = max(0, int(demand.gpu_bytes * demand.gpu_use) - -(-weights // demand.tp))
    tokens = usable * context // context_bytes // demand.block_tokens * demand.block_tokens
    return TierPlan("gpu", demand.gpu_bytes * demand.tp, usable * demand.tp, tokens, usable // context_bytes)


def _store(name: str, capacity: int, usable: int, unit_bytes: int, block_tokens: int, context: int) -> TierPlan | None:
    if not capacity:
        return None
    blocks = max(0, usable) // unit_bytes
    tokens = blocks * block_tokens
    return TierPlan(name, capacity, blocks * unit_bytes, tokens, blocks // -(-context // block_tokens))


def _nvme(demand: Demand, block_bytes: int, context: int) -> TierPlan | None:
    """A part goes to headers, to segments being written, and to garbage that waits for being reclaimed."""
    live = int((demand.nvme_bytes - 2 * SEGMENT_BYTES) * LIVE_SHARE)
    unit = record_bytes(block_bytes, demand.block_tokens)
    return _store("nvme", demand.nvme_bytes, live, unit, demand.block_tokens, context)


def _paged(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def _verdicts(model: ModelShape, demand: Demand, context: int, tiers: list[TierPlan]) -> list[str]:
    said: list[str] = []
    if model.max_context and context > model.max_context:
        said.append(f"contexts of {context:,} tokens are longer than the model's {model.max_context:,}")
    for tier in tiers:
        if tier.tier == "gpu" and not tier.usable_bytes:
            said.append(
                f"the weights do not fit into {demand.tp} GPU(s): take more (--tp), larger ones, "
                "or fewer bits (--dtype)"
            )
        elif tier.tier == "gpu":
            fits = tier.contexts >= demand.concurrency
            rest = "" if fits else f": {demand.concurrency - tier.contexts:,} would wait, or be preempted"
            said.append(
                f"{tier.contexts:,} contexts of {context:,} tokens fit into the GPUs at once, "
                f"{demand.concurrency:,} are wanted{rest}"
            )
        elif not tier.tokens:
            said.append(f"{tier.tier}: {tier.capacity_bytes:,} bytes have no room for one block")
        else:
            said.append(f"{tier.tier} keeps {tier.contexts:,} prefixes of {context:,} tokens that share nothing")
    return said
