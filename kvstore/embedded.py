"""EmbeddedClient: a StoreClient on a Store in the same process. No socket, no copy, no wait: its verbs are calls.

Used on the store's event loop.
"""

from collections.abc import Sequence

from ..proto import Namespace, RetentionRange
from .arena import ArenaView
from .session import Session
from .store import Store
from .types import NO_SLOTS, Acquired, HbmChange, Lookup, Miss, Origin, Receipt, Reserved, Wait


class EmbeddedClient:
    """See StoreClient. The store is its maker's to close; after store.close() the client is disconnected."""

    def __init__(self, store: Store, namespace: Namespace, *, client: str = "embedded") -> None:
        self.namespace = namespace
        self._store = store
        self._client = client
        self._session: Session | None = None

    @property
    def arena(self) -> ArenaView | None:
        return self._session.arena if self._session is not None else None

    @property
    def connected(self) -> bool:
        return self._live is not None

    async def start(self) -> None:
        """Open the session. SessionRefused names the field that stands against it."""
        if self._live is None:
            self._session = self._store.open_session(self.namespace, client=self._client)

    async def acquire(
        self, tokens: bytes, *, skip: int, deadline_s: float, wait: Wait | None = None, origin: Origin | None = None
    ) -> Acquired:
        session = self._live
        if session is None:
            miss = Miss("disconnected", skip * self.namespace.layout.block_tokens)
            return Acquired(0, skip, NO_SLOTS, {}, "disconnected", miss=miss)
        return await session.acquire(tokens, skip=skip, deadline_s=deadline_s, wait=wait, origin=origin)

    async def abandon(self, ticket: int) -> None:
        session = self._live
        if session is not None:
            session.abandon(ticket)

    async def reserve(
        self, tokens: bytes, *, start: int, count: int, retention: Sequence[RetentionRange] = ()
    ) -> Reserved:
        session = self._live
        if session is None:
            return Reserved(0, (), NO_SLOTS, "disconnected")
        return session.reserve(tokens, start=start, count=count, retention=retention)

    async def commit(self, lease: int, checksums: Sequence[int]) -> bool:
        session = self._live
        return session is not None and session.commit(lease, checksums)

    async def abort(self, lease: int) -> None:
        session = self._live
        if session is not None:
            session.abort(lease)

    async def release(self, lease: int, *, corrupt: Sequence[int] = ()) -> None:
        session = self._live
        if session is not None:
            session.release(lease, corrupt)

    async def retain(self, tokens: bytes, retention: Sequence[RetentionRange]) -> None:
        session = self._live
        if session is not None:
            session.retain(tokens, retention)

    async def prefetch(self, ticket: int, tokens: bytes, *, skip: int) -> None:
        session = self._live
        if session is not None:
            session.prefetch(ticket, tokens, skip=skip)

    async def cancel_prefetch(self, ticket: int) -> None:
        session = self._live
        if session is not None:
            session.cancel_prefetch(ticket)

    async def observe(self, prefills: Sequence[tuple[int, int, float]]) -> None:
        session = self._live
        if session is not None:
            session.observe(prefills)

    async def hbm(self, changes: Sequence[HbmChange], *, whole: bool) -> None:
        session = self._live
        if session is not None:
            session.hbm(changes, whole=whole)

    async def served(self, receipt: Receipt) -> None:
        session = self._live
        if session is not None:
            session.served(receipt)

    async def lookup(self, tokens: bytes) -> Lookup | None:
        session = self._live
        return session.lookup(tokens) if session is not None else None

    async def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    @property
    def _live(self) -> Session | None:
        return self._session if self._session is not None and not self._session.closed else None
