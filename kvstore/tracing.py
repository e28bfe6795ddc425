"""Tracing: where a request's time went, across engine, store and other nodes, as OpenTelemetry spans.

A Tracer makes spans, and a Span its parts. OFF makes none: its spans are one object that does nothing, except that a
trace that others began goes on to the nodes behind this one. A trace crosses processes as W3C trace context. What is
sampled follows whoever began the trace; a store begins none.

Within one process a span is current for the task that entered it (`with span:`), and for tasks that this one starts;
whatever works for the request finds it by current(). What exports spans is in otlp.py.
"""

import contextlib
import re
import time
from collections.abc import Callable, Generator
from contextvars import ContextVar, Token
from typing import Protocol

TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

Value = str | int | float | bool


class Span:
    """Something that takes time. This class is the one that nobody records; end() once, or `with`.

    traceparent: what is told to whoever works for it elsewhere; "" = nobody traces it.
    """

    __slots__ = ()
    traceparent: str = ""

    @property
    def recorded(self) -> bool:
        return False

    def child(self, name: str, **attributes: Value) -> "Span":
        """A part that begins now."""
        return self

    def part(self, name: str, began_s: float, ended_s: float, **attributes: Value) -> None:
        """A part that is over. Times are of the tracer's clock."""

    def set(self, **attributes: Value) -> None:
        """More that is known of it."""

    def end(self, at_s: float | None = None, *, error: str = "") -> None:
        """at_s: when it ended; None: now. error: what went wrong."""

    def __enter__(self) -> "Span":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        return


NO_SPAN = Span()
_current: ContextVar[Span] = ContextVar("kvterrace_span", default=NO_SPAN)


def current() -> Span:
    """The span that this task works for."""
    return _current.get()


def enter(span: Span) -> "Token[Span]":
    """This task works for it until leave()."""
    return _current.set(span)


def leave(token: "Token[Span] | None") -> None:
    """With what enter() gave, in the same task."""
    if token is not None:
        _current.reset(token)


class Tracer(Protocol):
    """Makes the first span of this process for a request."""

    @property
    def on(self) -> bool:
        """Whether anything may be recorded."""
        ...

    def start(self, name: str, traceparent: str = "", *, at_s: float | None = None, **attributes: Value) -> Span:
        """traceparent: of whoever asks; what is none counts as "". at_s: when it began; None: now."""
        ...

    def close(self) -> None:
        """Send what is left, within a few seconds."""
        ...


class Passing(Span):
    """Records nothing, and passes on whose trace it is."""

    __slots__ = ("_token", "traceparent")

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent
        self._token: Token[Span] | None = None

    def child(self, name: str, **attributes: Value) -> Span:
        return Passing(self.traceparent)  # each is entered once

    def __enter__(self) -> Span:
        self._token = enter(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        leave(self._token)


class _Off:
    """See OFF."""

    on = False

    def start(self, name: str, traceparent: str = "", *, at_s: float | None = None, **attributes: Value) -> Span:
        return Passing(traceparent) if traceparent and TRACEPARENT.fullmatch(traceparent) else NO_SPAN

    def close(self) -> None:
        return


OFF: Tracer = _Off()
"""The tracer of those who trace nothing."""


def make_tracer(
    url: str | None,
    service: str,
    *,
    instance: str = "",
    share: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> Tracer:
    """The tracer of a process; OFF without a URL. ConfigError says what is wrong, by the option's name.

    url: of a collector's OTLP/HTTP endpoint; without a path it is /v1/traces. share: of the requests that nobody traces
    yet, how many are; 0.0 = a trace is never begun here. clock: of the times that spans are given, in seconds.
    """
    if url is None:
        return OFF
    from .otlp import open_tracer  # noqa: PLC0415  # slow to load, and few trace

    return open_tracer(url, service, instance=instance, share=share, clock=clock)


@contextlib.contextmanager
def tracing(url: str | None, service: str, *, instance: str = "") -> Generator[Tracer]:
    """A tracer for as long as the block takes."""
    tracer = make_tracer(url, service, instance=instance)
    try:
        yield tracer
    finally:
        tracer.close()
