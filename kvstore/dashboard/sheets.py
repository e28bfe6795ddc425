"""Sheets: the drawer of one page: what is opened in it, and what is done from there."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ...proto import kv_pb2 as pb
from ..events.sight import Sees
from ..service.frames import FrameError
from ..service.servicer import Servicer
from ..words import miss_sentences, receipt_sentences
from . import text
from .actions import Actions, Recognise, Refused
from .feed import Feed, pack
from .snapshot import Snapshot
from .views import View
from .views.prefixes import prefix_sheet
from .views.requests import receipt_id, receipt_sheet
from .views.spaces import SHORT_KEY, namespace_sheet, tenant_sheet

log = logging.getLogger(__name__)

MOST_ID_CHARS = 512
PREFIX_TOKENS = 256
_DONE: View = {"title": "Done", "acts": ()}
_CANCEL: View = {"id": "cancel", "name": "Cancel"}


@dataclass(frozen=True, slots=True)
class Target:
    """What an action is about. kind: "prefix", "namespace", "tenant" or "all"; id: key or fingerprint in hex, or the
    tenant's name."""

    kind: str
    id: str = ""

    def clear(self, *, dry_run: bool) -> pb.ClearRequest:
        """Drop all of it. ValueError: the id is no hex."""
        return pb.ClearRequest(
            key=bytes.fromhex(self.id) if self.kind == "prefix" else b"",
            fingerprint=bytes.fromhex(self.id) if self.kind == "namespace" else b"",
            tenant=self.id if self.kind == "tenant" else "",
            dry_run=dry_run,
        )

    def pin(self, *, pinned: bool) -> pb.RetainRequest:
        """Keep all of it, or no longer. ValueError: the id is no hex."""
        return pb.RetainRequest(
            key=bytes.fromhex(self.id) if self.kind == "prefix" else b"",
            fingerprint=bytes.fromhex(self.id) if self.kind == "namespace" else b"",
            tenant=self.id if self.kind == "tenant" else "",
            retention=pb.RetentionSpec(pinned=pinned),
            set=["pinned"],
        )

    def __str__(self) -> str:
        if self.kind == "prefix":
            return f"this prefix ({self.id[:SHORT_KEY]}) and what continues it"
        return {"namespace": "this model", "tenant": f"tenant {self.id or 'default'}", "all": "everything"}[self.kind]


@dataclass(frozen=True, slots=True)
class Whose:
    """A drawer's viewer. recognise: asks anew who it is."""

    tenant: str
    sees: Sees
    may_change: bool
    recognise: Recognise
    peer: str


class Sheets:
    """draw: shows JSON in the drawer, "" closes it. may_change: the viewer may act. Used on the store's loop."""

    def __init__(
        self,
        feed: Feed,
        servicer: Servicer,
        actions: Actions,
        draw: Callable[[str], None],
        viewer: Whose,
    ) -> None:
        self._feed, self._servicer, self._actions = feed, servicer, actions
        self._draw, self._viewer = draw, viewer
        self._target: Target | None = None
        self._sure: Callable[[], Awaitable[str]] | None = None

    async def open(self, kind: str, id_: object) -> None:
        """kind: "prefix", "receipt", "namespace" or "tenant"; id: of the row that was clicked, as the browser says."""
        if not isinstance(id_, str) or len(id_) > MOST_ID_CHARS:
            return
        self._target, self._sure = (None if kind == "receipt" else Target(kind, id_)), None
        await self._show(kind, id_)

    async def act(self, name: object) -> None:
        """A button of the drawer."""
        if name == "cancel":
            await self._back()
        elif name == "sure" and self._sure is not None:
            doing, self._sure = self._sure, None
            await self._tell(doing)
        elif name == "clear" and self._target is not None:
            await self.ask_to_clear(self._target)
        elif name in ("pin", "unpin") and self._target is not None:
            target, pinned = self._target, name == "pin"
            await self._tell(lambda: self._pin(target, pinned))

    async def ask_to_clear(self, target: Target) -> None:
        """What it would drop, first."""
        self._target = target
        try:
            would = await self._call("Clear", target.clear(dry_run=True))
        except Refused as refused:
            self._draw(pack({"title": f"Clear {target}", "said": str(refused), "failed": True, "acts": []}))
            return
        self._sure = lambda: self._clear(target)
        blocks = text.plural(would.blocks, "block")
        self._draw(
            pack(
                {
                    "title": f"Clear {target}?",
                    "lead": [
                        f"{blocks} ({text.size(would.bytes)}) would leave every tier of this node for good. "
                        "Requests that need them compute them again."
                    ],
                    "acts": [{"id": "sure", "name": f"Clear {blocks}", "tone": "sure"}, _CANCEL],
                }
            )
        )

    async def ask_to_drain(self) -> None:
        """It ends the process."""
        self._target, self._sure = None, self._drain
        self._draw(
            pack(
                {
                    "title": "Drain this node?",
                    "lead": [
                        "It takes nothing new, hands what only it has to the other nodes, hottest first, writes what "
                        "waits for NVMe, and then its process ends. Engines go on without it.",
                        "How far it is shows in the bar on top.",
                    ],
                    "acts": [{"id": "sure", "name": "Drain", "tone": "sure"}, _CANCEL],
                }
            )
        )

    def shut(self) -> None:
        """The viewer has closed it."""
        self._target = self._sure = None
        self._draw("")

    async def _back(self) -> None:
        self._sure = None
        if self._target is None or self._target.kind == "all":
            self.shut()
        else:
            await self._show(self._target.kind, self._target.id)

    async def _tell(self, doing: Callable[[], Awaitable[str]]) -> None:
        """Do it, and say what came of it."""
        try:
            said, failed = await doing(), False
        except Refused as refused:
            said, failed = str(refused), True
        self._feed.hurry()
        target = self._target
        news = {"said": said, "failed": failed}
        if target is None or target.kind == "all":
            self._draw(pack({"title": "Done" if not failed else "Not done", "acts": [], **news}))
        else:
            await self._show(target.kind, target.id, news)

    async def _show(self, kind: str, id_: str, news: View | None = None) -> None:
        seen = self._feed.seen(self._viewer.tenant)
        view = await self._view(kind, id_, seen) if seen is not None else None
        if view is None:
            gone: View = {"title": "Not here any more", "acts": [], "note": "It has left since the page showed it."}
            view = gone if news is None else _DONE
        self._draw(pack({**view, **(news or {})}))

    async def _view(self, kind: str, id_: str, seen: Snapshot) -> View | None:
        may_change = self._viewer.may_change
        if kind == "prefix":
            found = await self._prefix(id_)
            return prefix_sheet(found, may_change) if found is not None else None
        if kind == "receipt":
            receipt = next((each for each in seen.last.receipts if receipt_id(each) == id_), None)
            return receipt_sheet(receipt, _why(receipt)) if receipt is not None else None
        if kind == "namespace":
            return namespace_sheet(seen, id_, may_change)
        return tenant_sheet(seen, id_, may_change)

    async def _prefix(self, key: str) -> pb.PrefixStatus | None:
        try:
            wanted = pb.PrefixesRequest(key=bytes.fromhex(key), limit=1, tokens=PREFIX_TOKENS)
            found = await self._servicer.prefixes(wanted, self._viewer.sees)
        except (ValueError, FrameError):
            return None
        return found.prefixes[0] if found.prefixes else None

    async def _pin(self, target: Target, pinned: bool) -> str:
        done = await self._call("Retain", target.pin(pinned=pinned))
        return f"{text.plural(done.blocks, 'block')} {'pinned' if pinned else 'unpinned'}."

    async def _clear(self, target: Target) -> str:
        done = await self._call("Clear", target.clear(dry_run=False))
        return f"{text.plural(done.blocks, 'block')} ({text.size(done.bytes)}) cleared."

    async def _drain(self) -> str:
        self._actions.begin("Drain", pb.DrainRequest(), self._viewer.recognise, self._viewer.peer)
        return "Draining has begun."

    async def _call(self, name: str, request: Any) -> Any:
        return await self._actions.call(name, request, self._viewer.recognise, self._viewer.peer)


def _why(receipt: pb.Receipt) -> list[str]:
    """Without the times, which stand below."""
    said = receipt_sentences(receipt)
    return [said[0], *(miss_sentences(receipt.miss) if receipt.HasField("miss") else said[1:][-1:])]
