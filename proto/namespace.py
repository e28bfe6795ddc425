"""Namespace: everything that must be equal for two engines' KV bytes to be interchangeable.

Its fingerprint seeds every block key, so bytes of one namespace can never be found from another. The encoding is
versioned, ordered and length-prefixed: no two different namespaces encode to the same bytes, whatever a field holds.
tests/golden/namespace.json pins it for other implementations.
"""

import hashlib
import struct
from dataclasses import dataclass, field

from .layout import BlockLayout, FieldError

ENCODING = b"kvterrace.namespace.v1"
MAX_FIELD_BYTES = 256
_LAYOUT_FIELDS = ("kv_heads", "layers", "planes", "block_tokens", "head_dim", "dtype")


@dataclass(frozen=True, slots=True)
class Namespace:
    """What KV bytes depend on. FieldError names the field that is wrong.

    weights_digest: digest of the weights' content and of the config fields that change KV; 8 to 256 bytes.
    layout:         BlockLayout, element type included.
    adapter_digest: digest of the adapter's (LoRA's) content; b"" = none.
    first_layer:    the layer range is first_layer .. first_layer + layout.layers - 1.
    producer:       who computed the bytes, where that changes them (engine, attention variant).
    hash_name:      algorithm of the block keys.
    tenant_salt:    from the authenticated identity, b"" = the only tenant. Never taken from a request.
    label:          a name for people (the model's); not part of the identity.
    """

    weights_digest: bytes
    layout: BlockLayout
    adapter_digest: bytes = b""
    first_layer: int = 0
    producer: str = ""
    hash_name: str = "sha256"
    tenant_salt: bytes = b""
    label: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not 8 <= len(self.weights_digest) <= MAX_FIELD_BYTES:
            size = len(self.weights_digest)
            raise FieldError("weights_digest", f"must have 8 to {MAX_FIELD_BYTES} bytes, not {size}")
        if not 0 <= self.first_layer < 1 << 32:
            raise FieldError("first_layer", f"must be 0 or more, not {self.first_layer}")
        if not self.hash_name:
            raise FieldError("hash_name", "must name an algorithm, such as sha256")
        for name, size in (
            ("adapter_digest", len(self.adapter_digest)),
            ("producer", len(self.producer.encode())),
            ("hash_name", len(self.hash_name.encode())),
            ("tenant_salt", len(self.tenant_salt)),
            ("label", len(self.label.encode())),
        ):
            if size > MAX_FIELD_BYTES:
                raise FieldError(name, f"must have at most {MAX_FIELD_BYTES} bytes, not {size}")

    def encode(self) -> bytes:
        """The bytes whose SHA-256 is the fingerprint.

        ENCODING, then the values of `identity()` in its order; each as uint32 little-endian length and bytes; whole
        numbers as uint64 little-endian, text as UTF-8.
        """
        parts = [ENCODING, *(_to_bytes(value) for _, value in self.identity())]
        return b"".join(struct.pack("<I", len(part)) + part for part in parts)

    def fingerprint(self) -> bytes:
        """32 bytes, equal if and only if diff() is empty."""
        return hashlib.sha256(self.encode()).digest()

    def diff(self, other: "Namespace") -> tuple[str, ...]:
        """Names of the fields that differ; a layout's fields by their own names ("kv_heads")."""
        pairs = zip(self.identity(), other.identity(), strict=True)
        return tuple(name for (name, ours), (_, theirs) in pairs if ours != theirs)

    def identity(self) -> tuple[tuple[str, bytes | str | int], ...]:
        """(field name, value) of all that counts, in the order of the encoding; the layout's fields flattened."""
        layout: tuple[tuple[str, str | int], ...] = tuple((name, getattr(self.layout, name)) for name in _LAYOUT_FIELDS)
        return (
            ("weights_digest", self.weights_digest),
            ("adapter_digest", self.adapter_digest),
            *layout,
            ("first_layer", self.first_layer),
            ("producer", self.producer),
            ("hash_name", self.hash_name),
            ("tenant_salt", self.tenant_salt),
        )


def _to_bytes(value: bytes | str | int) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else struct.pack("<Q", value)
