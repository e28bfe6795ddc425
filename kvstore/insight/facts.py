"""What insight needs to know of a namespace, and one prompt that was asked for."""

from dataclasses import dataclass

from ..residents import Residents


@dataclass(frozen=True, slots=True)
class SpaceFacts:
    """slot_bytes: what a block takes. hash_name: of the block keys."""

    fingerprint: bytes
    label: str
    tenant: str
    block_tokens: int
    slot_bytes: int
    hash_name: str

    @property
    def seed(self) -> int:
        """Of the traces of blocks, as ghosts have it."""
        return int.from_bytes(self.fingerprint[:8], "little")


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt, packed. found_blocks: leading ones that the engine or the store had. reason: why not the next; "" =
    there is none."""

    facts: SpaceFacts
    tokens: bytes
    found_blocks: int
    reason: str
    at_s: float


def facts_of(space: Residents) -> SpaceFacts:
    namespace = space.namespace
    return SpaceFacts(
        fingerprint=space.fingerprint,
        label=namespace.label,
        tenant=space.tenant.name if space.tenant is not None else "",
        block_tokens=space.block_tokens,
        slot_bytes=space.size_class.slot_bytes,
        hash_name=namespace.hash_name,
    )
