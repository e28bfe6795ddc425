"""ModelShape: what a model keeps of each token, and how large its weights are."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import KvterraceError

#: Bytes of an element, by the names that configurations and command lines use.
DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "int8": 1.0}
_ALIASES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16", "float": "float32"} | {
    "f32": "float32",
    "f16": "float16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}

FULL, WINDOW, STATE = "full", "window", "state"


class SizingError(KvterraceError):
    """A model whose KV cannot be sized; the message says which file or field, and what to do."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that keep the same. kind: "full" (every token of the context), "window" (the last `window` tokens),
    "state" (a state of fixed size, no KV). key_dim, value_dim: elements a token and KV head; value_dim 0: one plane,
    the latent of MLA, of which every tensor-parallel rank has all."""

    kind: str
    layers: int
    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int = 0

    @property
    def latent(self) -> bool:
        return self.kind != STATE and not self.value_dim

    def elements(self, tp: int = 1) -> int:
        """A token's elements in all these layers, on one of `tp` ranks; heads that are fewer than ranks are there
        several times."""
        heads = self.kv_heads if self.latent else -(-self.kv_heads // tp)
        return self.layers * heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """name: of the file or folder. max_context: tokens the model was made for, 0 = not said. dtype: of the weights as
    configured, "" = not said; weight_bits: of quantised ones, 0 = they are not. parameters: as the file counts them or
    estimated from the configuration, 0 = cannot be. weights_bytes: of the files, 0 = there are none. notes: what a
    reader must know."""

    name: str
    family: str
    groups: tuple[LayerGroup, ...]
    max_context: int = 0
    dtype: str = ""
    weight_bits: int = 0
    parameters: int = 0
    weights_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        return sum(group.layers for group in self.groups)

    @property
    def stateful(self) -> bool:
        """Some layers keep a state that no cache of KV blocks can bring back."""
        return any(group.kind == STATE for group in self.groups)

    def stored_elements(self) -> int:
        """Of one token in a store: all layers that have KV, windows or not, whatever the ranks."""
        return sum(group.elements() for group in self.groups)

    def context_elements(self, tokens: int, tp: int = 1) -> int:
        """That one context of `tokens` needs on one rank: a windowed layer keeps its window only."""
        return sum(
            group.elements(tp) * (min(tokens, group.window) if group.kind == WINDOW else tokens)
            for group in self.groups
        )


def dtype_name(said: str) -> str:
    """The name of DTYPE_BYTES that `said` means; "" when it means none."""
    name = said.removeprefix("torch.").lower()
    name = _ALIASES.get(name, name)
    return name if name in DTYPE_BYTES else ""


def grouped(each: Sequence[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Layers in order as groups of equal ones, in the order of their first."""
    counts: dict[LayerGroup, int] = {}
    for layer in each:
        counts[layer] = counts.get(layer, 0) + layer.layers
    return tuple(
        LayerGroup(one.kind, count, one.kv_heads, one.key_dim, one.value_dim, one.window)
        for one, count in counts.items()
    )
