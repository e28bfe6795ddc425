"""What a lossy KV codec does to a model's answers: the same prompts behind a prefix's exact KV, and behind what the
codec leaves of it.

Each prompt is cut in two at a block boundary. The KV of the first part is computed once; it plays the prefix that a
store has. The second part is computed behind it twice, always with the prompt's own tokens, and the logits are compared
at each of its positions. The KV goes through the very copiers of the connector, in the precision of the engine.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import metadata
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..connector.codec_path import CodecPath
from ..kernels import PagedBatch, make_backend
from .model import LoadedModel, Tokenizer
from .pool import make_pool_tensor

STEP_TOKENS = 512  # of a prefix computed at once, as the engine does


class QualityError(ValueError):
    """Nothing can be measured as asked; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class Quality:
    """One codec over all prompts.

    kl: divergence KL(exact || lossy) of the distributions of the next token, in nats. positions: how many of them.
    top1: share of positions where both prefer the same token. logit_delta: largest difference of any logit.
    exact_bytes, stored_bytes: of a block in DRAM, without and with the codec, alignment included.
    """

    codec: str
    prompts: int
    reused_tokens: int
    positions: int
    kl_mean: float
    kl_p99: float
    top1: float
    logit_delta: float
    exact_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A prompt: ids int64 [n], of which the first `reused`, whole blocks, come from the store."""

    ids: np.ndarray
    reused: int


def read_prompts(path: Path | None) -> list[str]:
    """The lines of a .jsonl file (strings, or objects with a "prompt"); or one text, the file's or, without a file, the
    README that the package carries. QualityError names the file and line that is wrong."""
    if path is None:
        return [str(metadata("kvterrace").json["description"])]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QualityError(f"--prompts: {path} cannot be read: {error}") from None
    if path.suffix != ".jsonl":
        return [text]
    numbered = enumerate(text.splitlines(), 1)
    return [_prompt_of(line, f"--prompts: {path}, line {number}") for number, line in numbered if line.strip()]


def _prompt_of(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise QualityError(f"{where} is not JSON: {error}") from None
    prompt = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(prompt, str):
        raise QualityError(f'{where} is neither a string nor an object with a "prompt"')
    return prompt


def cut_prompts(
    texts: Sequence[str], tokenizer: Tokenizer, *, most: int, prompt_tokens: int, judged_tokens: int, block_tokens: int
) -> list[Cut]:
    """Up to `most` prompts of up to prompt_tokens tokens, texts being cut into consecutive ones; at least judged_tokens
    of each are judged. What is too short to have a block before those is left out. QualityError if nothing is left."""
    cuts: list[Cut] = []
    for text in texts:
        ids = np.asarray(tokenizer.encode(text, add_special=True), dtype=np.int64)
        for start in range(0, len(ids), prompt_tokens):
            part = ids[start : start + prompt_tokens]
            reused = (len(part) - judged_tokens) // block_tokens * block_tokens
            if reused > 0 and len(cuts) < most:
                cuts.append(Cut(part, reused))
    if not cuts:
        raise QualityError(
            f"no prompt has {block_tokens + judged_tokens} tokens, a block to reuse and {judged_tokens} to judge: "
            "give longer ones with --prompts, or fewer --judged-tokens"
        )
    return cuts


def measure(
    loaded: LoadedModel,
    cuts: Sequence[Cut],
    codecs: Sequence[str],
    *,
    block_tokens: int,
    done: Callable[[], None] = lambda: None,
) -> list[Quality]:
    """One Quality for each codec, in order ("none" is a codec: exact). done: called after each prompt.

    QualityError for prompts longer than the model's context.
    """
    longest = max(len(cut.ids) for cut in cuts)
    if longest > loaded.config.max_position:
        raise QualityError(f"a prompt has {longest} tokens, the model's context {loaded.config.max_position}")
    bench = _Bench(loaded, -(-longest // block_tokens), block_tokens)
    paths = {codec: CodecPath(bench.pool, codec) for codec in codecs}
    figures: dict[str, list[_Figures]] = {codec: [] for codec in codecs}
    for cut in cuts:
        for codec, found in zip(codecs, bench.compare(cut, paths.values()), strict=True):
            figures[codec].append(found)
        done()
    exact_bytes = CodecPath(bench.pool, "none").slot_bytes
    reused = sum(cut.reused for cut in cuts)
    return [_summary(codec, figures[codec], reused, exact_bytes, paths[codec].slot_bytes) for codec in codecs]


@dataclass(frozen=True, slots=True)
class _Figures:
    """One prompt and codec. kl float64 [positions]; agree: positions with the same first choice."""

    kl: np.ndarray
    agree: int
    logit_delta: float


class _Bench:
    """The model with a pool of pages for one prompt at a time."""

    def __init__(self, loaded: LoadedModel, pages: int, block_tokens: int) -> None:
        config = loaded.config
        shape = (pages, config.kv_heads, config.layers, 2, block_tokens, config.head_dim)
        self.pool = make_pool_tensor(shape, loaded.model.dtype, loaded.model.device)
        self._loaded = loaded
        self._backend = make_backend(loaded.model.device)
        self._block_tokens = block_tokens

    def compare(self, cut: Cut, paths: Iterable[CodecPath]) -> Iterator[_Figures]:
        count = len(cut.ids)
        for start in range(0, cut.reused, STEP_TOKENS):
            self._forward(cut.ids, start, min(start + STEP_TOKENS, cut.reused), logits=False)
        blocks = cut.reused // self._block_tokens
        prefix = self.pool[:blocks].clone()
        exact = self._forward(cut.ids, cut.reused, count, logits=True)
        for path in paths:
            self.pool[:blocks].copy_(prefix)
            path.round_trip(blocks)
            yield _compare(exact, self._forward(cut.ids, cut.reused, count, logits=True))

    def _forward(self, ids: np.ndarray, start: int, stop: int, *, logits: bool) -> Tensor:
        """Logits float32 [stop - start, vocab], or none of them, of tokens start..stop-1 behind what the pool holds."""
        device, count = self.pool.device, stop - start
        positions = torch.arange(start, stop, device=device)
        batch = PagedBatch(
            query_starts=torch.tensor([0, count], dtype=torch.int32, device=device),
            context_lens=torch.tensor([stop], dtype=torch.int32, device=device),
            block_tables=torch.arange(-(-stop // self._block_tokens), dtype=torch.int32, device=device)[None],
            slot_mapping=positions,  # page by page
            max_query=count,
            max_context=stop,
        )
        plan = self._backend.plan(batch, self.pool, window=self._loaded.config.window)
        rows = torch.arange(count if logits else 0, device=device)
        tokens = torch.from_numpy(ids[start:stop]).to(device)
        return self._loaded.model.forward(tokens, positions, plan, rows, self._backend)


def _compare(exact: Tensor, lossy: Tensor) -> _Figures:
    """Of logits [positions, vocab]."""
    kl = np.empty(len(exact))
    for row, (want, got) in enumerate(zip(exact, lossy, strict=True)):  # row by row: float64 of all would be large
        sure, coded = want.double().log_softmax(0), got.double().log_softmax(0)
        kl[row] = max(0.0, (sure.exp() * (sure - coded)).sum().item())
    agree = int((exact.argmax(1) == lossy.argmax(1)).sum())
    return _Figures(kl, agree, (exact - lossy).abs().max().item())


def _summary(codec: str, figures: Sequence[_Figures], reused: int, exact_bytes: int, stored_bytes: int) -> Quality:
    kl = np.concatenate([found.kl for found in figures])
    return Quality(
        codec=codec,
        prompts=len(figures),
        reused_tokens=reused,
        positions=len(kl),
        kl_mean=float(kl.mean()),
        kl_p99=float(np.quantile(kl, 0.99)),
        top1=sum(found.agree for found in figures) / len(kl),
        logit_delta=max(found.logit_delta for found in figures),
        exact_bytes=exact_bytes,
        stored_bytes=stored_bytes,
    )
