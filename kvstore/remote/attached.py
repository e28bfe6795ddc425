"""Attached: the uploader of a store that has one, and what a store without one says in its place."""

from collections.abc import Iterator, Sequence

from ..residents import Residents
from ..stats import TierStats
from .remote import Remote
from .uploader import Uploader


class Attached:
    """uploader: None while no store of last resort is attached."""

    def __init__(self) -> None:
        self.uploader: Uploader | None = None

    @property
    def remote(self) -> Remote | None:
        return self.uploader.remote if self.uploader is not None else None

    @property
    def pending_blocks(self) -> int:
        return self.uploader.pending_blocks if self.uploader is not None else 0

    def leases(self, space: Residents) -> list[int]:
        return self.uploader.leases(space) if self.uploader is not None else []

    def stats(self) -> Iterator[TierStats]:
        if self.uploader is not None:
            yield self.uploader.stats()

    def detail(self) -> dict[str, object]:
        """For /ready: what is wrong with it. A node without it is ready all the same."""
        if self.uploader is None:
            return {}
        tier = self.uploader.remote.tier
        troubled = {operation: state for operation, state in tier.states().items() if state}
        return {"remote": troubled or "ok"}

    async def flush(self) -> None:
        if self.uploader is not None:
            await self.uploader.flush()

    async def clear(self, fingerprint: bytes | None) -> None:
        if self.uploader is not None:
            await self.uploader.clear(fingerprint)

    async def remove(self, fingerprint: bytes, blocks: Sequence[tuple[bytes, int]]) -> None:
        """Keys and ordinals of blocks."""
        if self.uploader is not None:
            await self.uploader.remove(fingerprint, blocks)

    async def stop(self) -> None:
        if self.uploader is not None:
            await self.uploader.stop()
