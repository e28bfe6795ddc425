"""ZmqPublisher: the feed on a ZeroMQ PUB socket, as vLLM publishes its events, and a ROUTER socket for older ones.

A message is [topic, sequence in 8 bytes big-endian, payload]; a request for a replay is the sequence to begin with, and
is answered by [sequence, payload] messages and one with the sequence -1. vLLM's protocol has neither epochs nor
snapshots, so they are told in its own words: a stream begins with AllBlocksCleared and everything there is, and a
replay that would have to begin before what is kept ends at the same sequence, but is made of AllBlocksCleared and
everything there is now. Whoever applies it and goes on with the stream has what the node has.
"""

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import zmq
import zmq.asyncio

from ..errors import KvterraceError
from ..service.socket_path import SocketPath
from .feed import Feed, Subscription
from .hbm import TIER, Hbm
from .types import Batch, Event, Kind
from .vllm_format import Encoding, Hashes, VllmFormat

log = logging.getLogger(__name__)

BUFFER_MESSAGES = 10_000
BUFFER_BYTES = 64 << 20
HIGH_WATER = 1000  # messages that wait for one slow reader; it loses what is beyond, and sees the gap
END = (-1).to_bytes(8, "big", signed=True)
SEQUENCE_BYTES = 8
IPC = "ipc://"


@dataclass(frozen=True, slots=True)
class ZmqOptions:
    """label: only namespaces of this label, "" = all."""

    endpoint: str
    replay_endpoint: str = ""
    topic: str = ""
    encoding: Encoding = "map"
    hashes: Hashes = "int"
    label: str = ""
    media: dict[str, str] = field(default_factory=dict[str, str])
    buffer_messages: int = BUFFER_MESSAGES


class ZmqPublisher:
    """Open from start() to stop(). label_of: of a namespace. On the store's loop."""

    def __init__(self, feed: Feed, hbm: Hbm, label_of: Callable[[bytes], str], options: ZmqOptions) -> None:
        self.messages = 0
        self.replays = 0
        self.snapshot_replays = 0
        self._feed = feed
        self._hbm = hbm
        self._label_of = label_of
        self._options = options
        self._topic = options.topic.encode()
        self._format = VllmFormat(options.encoding, options.hashes, options.media, self._gone)
        self._buffer: deque[tuple[int, bytes]] = deque()
        self._buffer_bytes = 0
        self._next = 0
        self._applied = 0  # the feed's sequence of what was published last
        self._context = zmq.asyncio.Context()
        self._sockets: list[zmq.asyncio.Socket] = []
        self._paths = contextlib.ExitStack()  # of ipc endpoints, which ZeroMQ would take from whoever has them
        self._tasks: list[asyncio.Task[None]] = []
        self._subscription: Subscription | None = None

    async def start(self) -> list[str]:
        """Bind and begin; where it listens. KvterraceError: it cannot."""
        publish = self._bind(zmq.PUB, self._options.endpoint, "--events-zmq")
        self._subscription = self._feed.subscribe()
        self._tasks.append(asyncio.create_task(self._publish(publish, self._subscription)))
        if self._options.replay_endpoint:
            replay = self._bind(zmq.ROUTER, self._options.replay_endpoint, "--events-zmq-replay")
            self._tasks.append(asyncio.create_task(self._serve_replays(replay)))
        for task in self._tasks:
            task.add_done_callback(_report)
        return [each.getsockopt_string(zmq.LAST_ENDPOINT) for each in self._sockets]

    async def stop(self) -> None:
        """Stopping twice is harmless."""
        if self._subscription is not None:
            self._subscription.close()
        tasks, self._tasks = set(self._tasks), []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        for socket in self._sockets:
            socket.close(linger=0)
        self._sockets.clear()
        self._context.term()
        self._paths.close()

    def _bind(self, kind: int, endpoint: str, option: str) -> zmq.asyncio.Socket:
        if endpoint.startswith(IPC):
            try:
                self._paths.enter_context(SocketPath(Path(endpoint.removeprefix(IPC)), option))
            except OSError as error:
                raise KvterraceError(f"{option}: cannot listen on {endpoint}: {error.strerror}") from None
        socket = self._context.socket(kind)
        self._sockets.append(socket)
        socket.setsockopt(zmq.SNDHWM, HIGH_WATER if kind == zmq.PUB else self._options.buffer_messages + 1)
        socket.setsockopt(zmq.RCVHWM, 64)
        socket.setsockopt(zmq.MAXMSGSIZE, 1024)  # of what comes in
        before = os.umask(0o177)  # an ipc socket is nobody else's
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise KvterraceError(f"{option}: cannot listen on {endpoint}: {error.strerror or error}") from None
        finally:
            os.umask(before)
        return socket

    async def _publish(self, socket: zmq.asyncio.Socket, subscription: Subscription) -> None:
        """Until the feed ends."""
        while (batch := await subscription.next()) is not None:
            if any(event.kind is Kind.CLEARED for event in batch.events):
                subscription.restart()  # vLLM's word clears all tiers and namespaces: what is left is said again
                continue
            payload = self._payload(batch)
            self._applied = batch.sequence if not batch.more else self._applied
            if payload is not None:
                await _send(socket, self._topic, self._next.to_bytes(SEQUENCE_BYTES, "big"), payload)
                self._keep(payload)

    def _keep(self, payload: bytes) -> None:
        self._buffer.append((self._next, payload))
        self._buffer_bytes += len(payload)
        self._next += 1
        self.messages += 1
        while len(self._buffer) > self._options.buffer_messages or self._buffer_bytes > BUFFER_BYTES:
            self._buffer_bytes -= len(self._buffer.popleft()[1])

    async def _serve_replays(self, socket: zmq.asyncio.Socket) -> None:
        """One after the other, until it is cancelled."""
        while True:
            frames = await socket.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != SEQUENCE_BYTES:
                log.warning("a replay request of %d parts is none", len(frames))
                continue
            reader, start = frames[0], int.from_bytes(frames[2], "big")
            for sequence, payload in await self._replay(start):
                await _send(socket, reader, b"", sequence.to_bytes(SEQUENCE_BYTES, "big"), payload)
            await _send(socket, reader, b"", END, b"")

    async def _replay(self, start: int) -> Sequence[tuple[int, bytes]]:
        self.replays += 1
        first = self._buffer[0][0] if self._buffer else self._next
        if first <= start <= self._next:
            return [each for each in self._buffer if each[0] >= start]
        self.snapshot_replays += 1
        snapshot = await self._feed.snapshot(self._applied)
        last = self._next - 1
        # Sequences that the reader has not seen, if it comes from this life of the node; the last one is the newest.
        most = last - start + 1 if 0 <= start <= last else last + 1
        parts = _merged(snapshot.batches, max(most, 1))
        payloads = [payload for part in parts if (payload := self._payload(part)) is not None]
        return list(enumerate(payloads, max(last - len(payloads) + 1, 0)))

    def _payload(self, batch: Batch) -> bytes | None:
        events = [event for event in batch.events if self._wanted(event)]
        return self._format.payload(batch.timestamp_s, events, cleared=batch.reset)

    def _wanted(self, event: Event) -> bool:
        return not self._options.label or self._label_of(event.fingerprint) == self._options.label

    def _gone(self, event: Event) -> Sequence[bytes]:
        """Keys that no other engine has: they all are one medium to the reader."""
        if event.tier != TIER:
            return event.split()
        session = event.engine.session
        return [key for key in event.split() if not self._hbm.holders(event.fingerprint, key, but=session)]


async def _send(socket: zmq.asyncio.Socket, *parts: bytes) -> None:
    await cast(Any, socket).send_multipart(parts)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("KV events by ZeroMQ have ended", exc_info=error)


def _merged(batches: Sequence[Batch], most: int) -> list[Batch]:
    """The parts of a snapshot in at most so many."""
    if len(batches) <= most:
        return list(batches)
    head, tail = batches[: most - 1], batches[most - 1 :]
    events = tuple(event for part in tail for event in part.events)
    return [*head, Batch(tail[0].sequence, tail[0].timestamp_s, events, reset=tail[0].reset, snapshot=True)]
