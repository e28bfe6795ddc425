"""Model loading and the forward pass, against transformers with the same weights, dtype and threads in the same run."""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from kvterrace.engine.model import LoadedModel, load_model
from kvterrace.engine.model.gguf_file import GgufFile
from kvterrace.engine.model.sources import GgufSource
from kvterrace.kernels import PagedBatch, make_backend

THREADS = 2
REPEATS = 5
PREFILL_TOKENS = 2000
CONTEXT_TOKENS = 200
DECODE_STEPS = 12
BLOCK_TOKENS = 16
TRANSFORMERS = f"transformers, float32, {THREADS} threads"


class Ours:
    """A batch of sequences of equal length in one pool, as the engine's runner would feed them."""

    def __init__(self, loaded: LoadedModel, sequences: int, longest: int) -> None:
        config = loaded.config
        pages = -(-longest // BLOCK_TOKENS)
        self.model = loaded.model
        self.backend = make_backend("cpu")
        self.tables = torch.arange(sequences * pages, dtype=torch.int32).view(sequences, pages)
        self.pool = torch.zeros(
            (sequences * pages, config.kv_heads, config.layers, 2, BLOCK_TOKENS, config.head_dim), dtype=torch.float32
        )
        self.length = 0

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens [B, n], the next n of each sequence -> logits [B, vocab] of the last ones."""
        count = tokens.shape[1]
        at = torch.arange(self.length, self.length + count)
        self.length += count
        pages = self.tables[:, : -(-self.length // BLOCK_TOKENS)]
        batch = PagedBatch(
            query_starts=torch.arange(0, tokens.numel() + 1, count, dtype=torch.int32),
            context_lens=torch.full((len(tokens),), self.length, dtype=torch.int32),
            block_tables=pages,
            slot_mapping=(pages.long()[:, at // BLOCK_TOKENS] * BLOCK_TOKENS + at % BLOCK_TOKENS).reshape(-1),
            max_query=count,
            max_context=self.length,
        )
        plan = self.backend.plan(batch, self.pool, window=self.model.config.window)
        rows = torch.arange(count - 1, tokens.numel(), count)
        return self.model.forward(tokens.reshape(-1), at.repeat(len(tokens)), plan, rows, self.backend)


class Theirs:
    """The same through transformers with its dynamic cache."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        self.model = model
        self.cache = transformers.DynamicCache()

    @torch.inference_mode()
    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        output = self.model(tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        return output.logits[:, -1]


def run() -> list[dict[str, object]]:
    """Medians of REPEATS interleaved repeats; a ratio above 1 means that ours is faster."""
    path = Path(os.environ.get("KVTERRACE_MODEL", ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        return _run(path)
    finally:
        torch.set_num_threads(threads)


def _run(path: Path) -> list[dict[str, object]]:
    loads = [seconds(lambda: load_model(path)) for _ in range(REPEATS)]
    loaded = load_model(path)
    reference = same_weights(path, loaded)
    prompt = torch.randint(0, loaded.config.vocab, (8, PREFILL_TOKENS), generator=torch.Generator().manual_seed(1))
    prefill = interleaved(
        {
            "ours": lambda: Ours(loaded, 1, PREFILL_TOKENS).step(prompt[:1]),
            "theirs": lambda: Theirs(reference).step(prompt[:1]),
        }
    )
    longest = CONTEXT_TOKENS + (REPEATS + 1) * DECODE_STEPS
    batches = {
        "ours 1": Ours(loaded, 1, longest),
        "ours 8": Ours(loaded, 8, longest),
        "theirs 1": Theirs(reference),
        "theirs 8": Theirs(reference),
    }
    for name, batch in batches.items():
        batch.step(prompt[: int(name[-1]), :CONTEXT_TOKENS])
        decode(batch, int(name[-1]))
    decoded = interleaved({name: (lambda b=b, n=name: decode(b, int(n[-1]))) for name, b in batches.items()})
    per_s = {name: int(name[-1]) * DECODE_STEPS / spent for name, spent in decoded.items()}
    return [
        row("model.load_s", statistics.median(loads), "s", f"{path.name}, dequantised to float32"),
        row(
            "engine.prefill_ratio", prefill["theirs"] / prefill["ours"], "x", f"{PREFILL_TOKENS} tokens, {TRANSFORMERS}"
        ),
        row("engine.prefill_tokens_per_s", PREFILL_TOKENS / prefill["ours"], "tokens/s", f"{PREFILL_TOKENS} tokens"),
        row("engine.decode1_tokens_per_s", per_s["ours 1"], "tokens/s", f"after {CONTEXT_TOKENS} tokens"),
        row("engine.decode8_ratio", per_s["ours 8"] / per_s["ours 1"], "x", "one sequence"),
        row("engine.decode1_vs_transformers", per_s["ours 1"] / per_s["theirs 1"], "x", TRANSFORMERS),
        row("engine.decode8_vs_transformers", per_s["ours 8"] / per_s["theirs 8"], "x", f"batch 8, {TRANSFORMERS}"),
    ]


def decode(batch: Ours | Theirs, sequences: int) -> None:
    tokens = torch.full((sequences, 1), 5)
    for _ in range(DECODE_STEPS):
        tokens = batch.step(tokens).argmax(dim=-1, keepdim=True)


def interleaved(tasks: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each task, taken in turns so that a busy machine is busy for all of them."""
    spent: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(REPEATS):
        for name, task in tasks.items():
            spent[name].append(seconds(task))
    return {name: statistics.median(each) for name, each in spent.items()}


def seconds(task: Callable[[], object]) -> float:
    began = time.perf_counter()
    task()
    return time.perf_counter() - began


def same_weights(path: Path, loaded: LoadedModel) -> transformers.PreTrainedModel:
    """transformers' model with the very tensors ours was made from (its own GGUF loading takes half a minute)."""
    config = loaded.config
    source = GgufSource(GgufFile(path), {"q_proj": config.heads, "k_proj": config.kv_heads})
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            max_position_embeddings=config.max_position,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            tie_word_embeddings=True,
        )
    ).eval()
    model.load_state_dict({name: source.read(name) for name in source.shapes}, strict=False)
    return model


def row(metric: str, value: float, unit: str, of: str) -> dict[str, object]:
    return {"metric": metric, "value": value, "unit": unit, "of": of}
