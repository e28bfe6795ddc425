"""SidecarClient: a StoreClient whose store is another process on this host, `kvterrace serve`.

Control goes over one gRPC stream, bytes through the shared arena. One supervisor task keeps the session: it opens it,
waits until it ends, and opens it again with jittered back-off. Meanwhile every verb is a miss, at once. Lives on one
event loop.

Invariant: a lease handed out carries the number of its session, so that a lease of a lost session never names one of
the next.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ..proto import Namespace, RetentionRange
from ..proto import kv_pb2 as pb
from .arena import ArenaView, arena_name
from .errors import ArenaError, SessionRefused
from .events.hbm_frames import pack_hbm
from .security.credentials import Credentials
from .service import frames
from .service.channel import target_of
from .service.insight_frames import pack_receipt
from .service.link import Link, LinkBroken, LinkBusy, LinkLimits, LinkTimeout
from .types import NO_SLOTS, Acquired, HbmChange, Lookup, Miss, Origin, Receipt, Reserved, Wait

log = logging.getLogger(__name__)

_EPOCH_SHIFT = 48
_LEASE_MASK = (1 << _EPOCH_SHIFT) - 1  # a lease of ours = number of the session << 48 | the server's lease
_TROUBLE = (LinkBroken, LinkBusy, LinkTimeout, frames.FrameError)


@dataclass(frozen=True, slots=True)
class SidecarTimes:
    """How long a SidecarClient waits for what.

    slack_s:         what an answer may take beyond the deadline that the server was given.
    call_s:          for reserve and commit, which never wait in the server.
    retry_s:         first and longest pause before dialling again; doubled each time, jittered.
    refused_retry_s: pause after a refusal, which only a new configuration on either side ends.
    link:            when a silent server counts as gone.
    """

    slack_s: float = 0.25
    call_s: float = 1.0
    retry_s: tuple[float, float] = (0.05, 1.0)
    refused_retry_s: float = 15.0
    link: LinkLimits = field(default_factory=LinkLimits)


class SidecarClient:
    """The StoreClient for the sidecar at `address` ("unix:/run/kvterrace.sock" or "host:port").

    ValueError when `address` is neither. `client` names this engine in the sidecar's status and log;
    `credentials` are shown to it.
    """

    def __init__(
        self,
        address: str,
        namespace: Namespace,
        *,
        client: str = "",
        times: SidecarTimes | None = None,
        rng: random.Random | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.namespace = namespace
        self.arena: ArenaView | None = None
        self.refused: SessionRefused | None = None
        self._address = target_of(address)
        self._opening = frames.pack_open(namespace, client)
        self._times = times or SidecarTimes()
        self._rng = rng or random.Random()
        self._credentials = credentials
        self._link: Link | None = None
        self._epoch = 0
        self._version = frames.WIRE_VERSION  # of the present session
        self._supervisor: asyncio.Task[None] | None = None
        self._said = ""

    @property
    def connected(self) -> bool:
        """True while a session is open."""
        link = self._link  # once: any thread may ask
        return link is not None and not link.ended.is_set()

    @property
    def boot_id(self) -> bytes | None:
        """Of the server's present start; None while disconnected."""
        return self._link.opened.boot_id if self._link is not None else None

    async def start(self) -> None:
        """Open the session, or begin to try. SessionRefused when the sidecar is there and says no."""
        if self._supervisor is not None:
            return
        if self.namespace.tenant_salt:
            raise SessionRefused("tenant_salt", "a sidecar derives it from who its client is; leave it empty")
        with contextlib.suppress(LinkBroken, ArenaError):
            await self._connect()
        if self.refused is not None:
            raise self.refused
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())

    async def close(self) -> None:
        """End the session and all its leases. Safe to call again."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.gather(supervisor, return_exceptions=True)
        link = self._detach()
        if link is not None:
            await link.close()

    async def acquire(
        self, tokens: bytes, *, skip: int, deadline_s: float, wait: Wait | None = None, origin: Origin | None = None
    ) -> Acquired:
        """See StoreClient. "deadline" when no answer comes by deadline_s + slack_s."""
        link, arena, epoch = self._link, self.arena, self._epoch
        if link is None or arena is None:
            return self._missed("disconnected", skip)
        asked = frames.pack_acquire(tokens, skip, max(deadline_s, 0.0), wait, origin)
        try:
            frame = await link.request(pb.ClientFrame(acquire=asked), asked.deadline_s + self._times.slack_s)
            if not frame.HasField("acquired"):
                return self._missed(self._error("acquire", frame), skip)
            lease = _lease_of(epoch, frame.acquired.lease)
            return frames.unpack_acquired(frame.acquired, lease, arena, self.namespace.layout.block_tokens)
        except _TROUBLE as trouble:
            return self._missed(_reason(trouble), skip)

    async def reserve(
        self, tokens: bytes, *, start: int, count: int, retention: Sequence[RetentionRange] = ()
    ) -> Reserved:
        """See StoreClient."""
        link, arena, epoch = self._link, self.arena, self._epoch
        if link is None or arena is None:
            return Reserved(0, (), NO_SLOTS, "disconnected")
        packed = frames.pack_retention(retention)
        asked = pb.Reserve(tokens=tokens, start=start, count=count, retention=packed)
        try:
            frame = await link.request(pb.ClientFrame(reserve=asked), self._times.call_s)
            if not frame.HasField("reserved"):
                return Reserved(0, (), NO_SLOTS, self._error("reserve", frame))
            return frames.unpack_reserved(frame.reserved, _lease_of(epoch, frame.reserved.lease), arena)
        except _TROUBLE as trouble:
            return Reserved(0, (), NO_SLOTS, _reason(trouble))

    async def commit(self, lease: int, checksums: Sequence[int]) -> bool:
        """See StoreClient. False too when the answer is late: the blocks may then be there, and are whole."""
        link = self._link_of(lease)
        if link is None:
            return False
        packed = frames.pack_column(checksums, "<u8")
        asked = pb.Commit(lease=lease & _LEASE_MASK, checksums=packed)
        try:
            frame = await link.request(pb.ClientFrame(commit=asked), self._times.call_s)
        except _TROUBLE:
            return False
        if frame.HasField("invalid"):
            self._error("commit", frame)
        return frame.done.ok

    async def abort(self, lease: int) -> None:
        """See StoreClient. Sent in order with the other verbs; returns without an answer."""
        link = self._link_of(lease)
        if link is not None:
            link.post(pb.ClientFrame(abort=pb.Abort(lease=lease & _LEASE_MASK)))

    async def release(self, lease: int, *, corrupt: Sequence[int] = ()) -> None:
        """See StoreClient. Sent in order with the other verbs; returns without an answer."""
        link = self._link_of(lease)
        if link is not None:
            link.post(pb.ClientFrame(release=pb.Release(lease=lease & _LEASE_MASK, corrupt=corrupt)))

    async def retain(self, tokens: bytes, retention: Sequence[RetentionRange]) -> None:
        """See StoreClient."""
        self._post(pb.ClientFrame(retain=pb.Retain(tokens=tokens, retention=frames.pack_retention(retention))))

    async def prefetch(self, ticket: int, tokens: bytes, *, skip: int) -> None:
        """See StoreClient."""
        self._post(pb.ClientFrame(prefetch=pb.Prefetch(ticket=ticket, tokens=tokens, skip=skip)))

    async def abandon(self, ticket: int) -> None:
        """See StoreClient."""
        self._post(pb.ClientFrame(abandon=pb.Abandon(ticket=ticket)))

    async def cancel_prefetch(self, ticket: int) -> None:
        """See StoreClient."""
        self._post(pb.ClientFrame(cancel_prefetch=pb.CancelPrefetch(ticket=ticket)))

    async def observe(self, prefills: Sequence[tuple[int, int, float]]) -> None:
        """See StoreClient."""
        rows = [pb.Prefill(first=first, tokens=count, seconds=seconds) for first, count, seconds in prefills]
        self._post(pb.ClientFrame(observe=pb.Observe(prefills=rows)))

    async def hbm(self, changes: Sequence[HbmChange], *, whole: bool) -> None:
        """See StoreClient."""
        self._post(pb.ClientFrame(hbm=pack_hbm(changes, whole=whole)))

    async def served(self, receipt: Receipt) -> None:
        """See StoreClient. An older sidecar would not know what to do with it."""
        if self._version >= frames.RECEIPTS_SINCE:
            self._post(pb.ClientFrame(served=pack_receipt(receipt)))

    async def lookup(self, tokens: bytes) -> Lookup | None:
        """See StoreClient."""
        if self._link is None:
            return None
        try:
            frame = await self._link.request(pb.ClientFrame(lookup=pb.Lookup(tokens=tokens)), self._times.call_s)
        except _TROUBLE:
            return None
        if frame.HasField("invalid"):
            self._error("look up", frame)
        return frames.unpack_found(frame.found) if frame.HasField("found") else None

    def _missed(self, reason: str, skip: int) -> Acquired:
        """Nothing came, for a reason on this side of the wire, or since the sidecar did not understand."""
        miss = Miss(reason, skip * self.namespace.layout.block_tokens)
        return Acquired(0, skip, NO_SLOTS, {}, reason, miss=miss)

    def _post(self, frame: pb.ClientFrame) -> None:
        if self._link is not None:
            self._link.post(frame)

    def _link_of(self, lease: int) -> Link | None:
        """The session that `lease` belongs to; None when it is gone, and the lease with it."""
        return self._link if lease >> _EPOCH_SHIFT == self._epoch else None

    def _error(self, verb: str, frame: pb.ServerFrame) -> str:
        log.warning("the sidecar would not %s: %s %s", verb, frame.invalid.field, frame.invalid.message)
        return "error"

    async def _supervise(self) -> None:
        """Keep a session open until cancelled."""
        loop = asyncio.get_running_loop()
        shortest, longest = self._times.retry_s
        pause = shortest
        while True:
            link = self._link
            if link is not None:
                opened_at = loop.time()
                await link.ended.wait()
                self._detach()
                self._say("the sidecar at %s is gone (%s); computing without it", self._address, link.why)
                await link.close()
                if loop.time() - opened_at > longest:
                    pause = shortest
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(pause * 2, longest)
            if not await self._try_connect():
                pause = self._times.refused_retry_s

    async def _try_connect(self) -> bool:
        """False when only a change of configuration can help."""
        try:
            await self._connect()
        except LinkBroken as trouble:
            self._say("no sidecar: %s", trouble)
        except ArenaError as trouble:
            self._say("the sidecar's memory cannot be attached: %s", trouble)
            return False
        except Exception:
            log.exception("connecting to the sidecar failed")
            return False
        if self.refused is not None:
            self._say("the sidecar refuses this engine: %s", self.refused)
            return False
        return True

    async def _connect(self) -> None:
        """Open a session and attach its arena, or set `refused`. LinkBroken, ArenaError."""
        version = frames.WIRE_VERSION
        link = await Link.open(self._address, self._opening, self._times.link, self._credentials)
        if isinstance(link, pb.Refused) and (older := _older_version(link)) is not None:
            opening = pb.Open()
            opening.CopyFrom(self._opening)
            opening.wire_version = version = older
            link = await Link.open(self._address, opening, self._times.link, self._credentials)
        if isinstance(link, pb.Refused) and link.field == "draining":
            raise LinkBroken(link.message)  # another takes its place soon: nothing that a configuration would change
        if isinstance(link, pb.Refused):
            self.refused = SessionRefused(link.field, link.message, ours=link.ours, theirs=link.theirs)
            return
        self.refused = None
        layout, opened = self.namespace.layout, link.opened
        try:
            arena = ArenaView.attach(
                _arena_path(opened),
                block_bytes=layout.block_bytes,
                slot_bytes=layout.slot_bytes,
                boot_id=opened.boot_id,
            )
        except BaseException:
            await link.close()
            raise
        self._epoch += 1
        self._link, self.arena, self._version = link, arena, version
        package = opened.package_version
        self._say("session with the sidecar at %s (kvterrace %s)", self._address, package, level=logging.INFO)

    def _detach(self) -> Link | None:
        # The view is dropped, not closed: a copy in progress may finish, and its bytes are checked as ever.
        link, self._link, self.arena = self._link, None, None
        return link

    def _say(self, text: str, *details: object, level: int = logging.WARNING) -> None:
        """Log what is new; the same news once."""
        said = text % details
        if said != self._said:
            self._said = said
            log.log(level, said)


def _older_version(refused: pb.Refused) -> int | None:
    """The version that a sidecar which does not speak ours says it speaks, if this program speaks that."""
    said = refused.ours if refused.field == "wire_version" and refused.ours.isdecimal() else ""
    older = int(said[:9] or 0)
    return older if frames.MIN_WIRE_VERSION <= older < frames.WIRE_VERSION else None


def _arena_path(opened: pb.Opened) -> str:
    """What the server says, if it can be an arena's: it may not make this process open any file it likes."""
    path = PurePosixPath(opened.arena_path)
    if not path.is_absolute() or ".." in path.parts or path.name != arena_name(opened.boot_id):
        raise ArenaError(f"{opened.arena_path[:200]!r} is not where an arena of that sidecar can be")
    return str(path)


def _lease_of(epoch: int, lease: int) -> int:
    return epoch << _EPOCH_SHIFT | lease if lease else 0


def _reason(trouble: Exception) -> str:
    if isinstance(trouble, LinkTimeout):
        return "deadline"
    if isinstance(trouble, LinkBusy):
        return "busy"
    return "disconnected" if isinstance(trouble, LinkBroken) else "error"
