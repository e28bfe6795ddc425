"""What a store does for a request, as spans: wrappers of the verbs that do it."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from .tracing import Tracer, Value, current

ACQUIRE = "acquire"

P = ParamSpec("P")
S = TypeVar("S", bound="Traced")
T = TypeVar("T")


class Traced(Protocol):
    """Has a tracer: a session."""

    @property
    def tracer(self) -> Tracer: ...


def traced_now(verb: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Of acquire_now: a span when it has an answer; a part of acquire's, within that."""

    def acquire_now(session: S, *args: P.args, **options: P.kwargs) -> T:
        traceparent = _traceparent(options.get("origin"))
        if not traceparent or not session.tracer.on:
            return verb(session, *args, **options)
        began_s = time.monotonic()
        given = verb(session, *args, **options)
        above = current()
        if above.recorded:
            above.part("match", began_s, time.monotonic())
        elif given is not None:
            span = session.tracer.start(ACQUIRE, traceparent, at_s=began_s)
            span.set(**_told(given))
            span.end()
        return given

    return acquire_now


def traced(verb: Callable[Concatenate[S, P], Awaitable[T]]) -> Callable[Concatenate[S, P], Awaitable[T]]:
    """Of acquire: a span for all of it, under which whatever brings blocks is a part."""

    async def acquire(session: S, *args: P.args, **options: P.kwargs) -> T:
        traceparent = _traceparent(options.get("origin"))
        if not traceparent:
            return await verb(session, *args, **options)
        with session.tracer.start(ACQUIRE, traceparent) as span:
            given = await verb(session, *args, **options)
            span.set(**_told(given))
            return given

    return acquire


def as_part(name: str) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """What is done is a part of the current span, of that name."""

    def wrap(work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        async def part(*args: P.args, **options: P.kwargs) -> T:
            with current().child(name):
                return await work(*args, **options)

        return part

    return wrap


def _traceparent(origin: object) -> str:
    return getattr(origin, "traceparent", "")


def _told(given: Any) -> dict[str, Value]:
    told: dict[str, Value] = {f"tokens.{tier}": count for tier, count in given.tiers.items()}
    return {**told, "reason": given.reason}
