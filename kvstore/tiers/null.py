"""NullTier: the tier that is not there. An absent tier is this object, not a flag that others ask for."""

from collections.abc import Sequence

from .base import Got, Miss, Put, Record, Rejected, Usage, Wanted


class NullTier:
    """Has nothing, takes nothing."""

    def __init__(self, name: str = "null") -> None:
        self.name = name
        self._reason = "disabled"

    async def get(self, wanted: Sequence[Wanted], *, deadline_s: float) -> list[Got]:
        return [Miss() for _ in wanted]

    async def put(self, records: Sequence[Record], *, deadline_s: float) -> list[Put]:
        return [Rejected(self._reason) for _ in records]

    async def drop(self, keys: Sequence[bytes]) -> list[bool]:
        return [False for _ in keys]

    def refuses(self, fingerprint: bytes) -> str:
        return ""

    def usage(self) -> Usage:
        return Usage(0, 0, 0)

    async def flush(self, *, deadline_s: float) -> bool:
        """Nothing is ever unsafe here."""
        return True

    async def clear(self, fingerprint: bytes | None) -> int:
        return 0

    async def forget(self, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        """Nothing is here."""

    def devices(self) -> tuple[()]:
        return ()

    def codec(self) -> None:
        return None

    async def close(self) -> None:
        self._reason = "closed"
