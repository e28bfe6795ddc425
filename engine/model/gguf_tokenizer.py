"""A tokenizer rebuilt from GGUF metadata, which holds the vocabulary and merges but only the name of how text is split.

"gpt2" is byte-level BPE, whose splitting is named by tokenizer.ggml.pre; "llama" is SentencePiece BPE, whose merges
follow from the scores. A splitting that is not known is refused: a guess would encode most texts right and some wrong.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from .errors import ModelError

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
#: tokenizer.ggml.pre -> the splits, one after the other.
_SPLITS: dict[str, tuple[str, ...]] = {
    # Also what a file without the key means.
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
    "tekken": (_TEKKEN,),
}
#: These look a whole word up in the vocabulary before merging, and start with bos unless the file says otherwise.
_WHOLE_WORDS = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
_NORMALISED = frozenset({"qwen2", "deepseek-r1-qwen"})
#: Turn and text ends of chat models. A file names one eos; a model tuned from another often ends with the other's.
_END_MARKERS = frozenset({"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>"})


def build_tokenizer(meta: Mapping[str, Any]) -> Tokenizer:
    """Raises ModelError naming the model or the pre-tokenizer that is not supported."""
    kind = meta.get("tokenizer.ggml.model")
    if "tokenizer.ggml.tokens" not in meta:
        raise ModelError("the GGUF file holds no tokenizer (tokenizer.ggml.tokens)")
    if kind == "gpt2":
        tokenizer = _byte_level(meta)
    elif kind == "llama":
        tokenizer = _sentencepiece(meta)
    else:
        raise ModelError(f"GGUF tokenizer {kind} is not supported; supported: gpt2, llama")
    _add_marked_tokens(tokenizer, meta)
    _add_bos_eos(tokenizer, meta)
    return tokenizer


def eos_ids(meta: Mapping[str, Any]) -> frozenset[int]:
    """The ids the file names as ends, and the control tokens that are commonly known as ends."""
    named = (meta.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom"))
    kinds = meta.get("tokenizer.ggml.token_type", ())
    known = (
        index
        for index, (token, kind) in enumerate(zip(meta["tokenizer.ggml.tokens"], kinds, strict=False))
        if kind == _CONTROL and token in _END_MARKERS
    )
    return frozenset(known) | {index for index in named if index is not None}


def special_texts(meta: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, ... as text, for the chat template."""
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: meta.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    return {name: meta["tokenizer.ggml.tokens"][index] for name, index in ids.items() if index is not None}


def _byte_level(meta: Mapping[str, Any]) -> Any:
    pre = meta.get("tokenizer.ggml.pre", "default")
    if pre not in _SPLITS:
        raise ModelError(f"GGUF pre-tokenizer {pre} is not supported; supported: {', '.join(_SPLITS)}")
    merges = [tuple(merge.split(" ", 1)) for merge in meta.get("tokenizer.ggml.merges", ())]
    tokenizer: Any = Tokenizer(cast(Any, models.BPE)(_vocab(meta), merges, ignore_merges=pre in _WHOLE_WORDS))
    if pre in _NORMALISED:
        tokenizer.normalizer = normalizers.NFC()
    splits: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS[pre]]
    # Bytes are spelt last: a pattern after that would see spelt bytes instead of text.
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, spell])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(meta: Mapping[str, Any]) -> Any:
    tokens: Sequence[str] = meta["tokenizer.ggml.tokens"]
    scores: Sequence[float] = meta.get("tokenizer.ggml.scores", ())
    if len(scores) != len(tokens):
        raise ModelError("the GGUF file's SentencePiece tokenizer has no scores (tokenizer.ggml.scores)")
    vocab = _vocab(meta)
    unknown = tokens[meta.get("tokenizer.ggml.unknown_token_id", 0)]
    merges = _merges_from_scores(vocab, scores)
    tokenizer: Any = Tokenizer(
        cast(Any, models.BPE)(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = bool(meta.get("tokenizer.ggml.add_space_prefix", True))
    before: list[Any] = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
    after: list[Any] = [decoders.Strip(" ", 1, 0)] if prefix else []
    undo = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*undo, *after])
    return tokenizer


def _vocab(meta: Mapping[str, Any]) -> dict[str, int]:
    return {token: index for index, token in enumerate(meta["tokenizer.ggml.tokens"])}


def _merges_from_scores(vocab: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """SentencePiece joins the pair whose result scores best: every split of a token is a merge, best token first."""
    found = [
        (-scores[index], -cut, token)
        for token, index in vocab.items()
        for cut in range(1, len(token))
        if token[:cut] in vocab and token[cut:] in vocab
    ]
    found.sort()
    return [(token[:-less], token[-less:]) for _, less, token in found]


def _add_marked_tokens(tokenizer: Any, meta: Mapping[str, Any]) -> None:
    """Control and user-defined tokens are matched whole, before any splitting."""
    kinds = meta.get("tokenizer.ggml.token_type", ())
    marked = list(zip(meta["tokenizer.ggml.tokens"], kinds, strict=False))
    control = [
        AddedToken(token, normalized=False, special=True) for token, kind in marked if kind in (_UNKNOWN, _CONTROL)
    ]
    defined = [AddedToken(token, normalized=False) for token, kind in marked if kind == _USER_DEFINED]
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(defined)


def _add_bos_eos(tokenizer: Any, meta: Mapping[str, Any]) -> None:
    tokens: Sequence[str] = meta["tokenizer.ggml.tokens"]
    starts = meta["tokenizer.ggml.model"] == "llama" or meta.get("tokenizer.ggml.pre") in _WHOLE_WORDS
    wanted = {
        "bos": meta.get("tokenizer.ggml.add_bos_token", starts),
        "eos": meta.get("tokenizer.ggml.add_eos_token", False),
    }
    ids = {
        name: meta[f"tokenizer.ggml.{name}_token_id"]
        for name, add in wanted.items()
        if add and f"tokenizer.ggml.{name}_token_id" in meta
    }
    if not ids:
        return
    before = f"{tokens[ids['bos']]} " if "bos" in ids else ""
    after = f" {tokens[ids['eos']]}" if "eos" in ids else ""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{before}$A{after}",
        pair=f"{before}$A{after} $B",
        special_tokens=[(tokens[index], index) for index in ids.values()],
    )
