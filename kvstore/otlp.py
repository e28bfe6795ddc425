"""OtlpTracer: spans for an OpenTelemetry collector, by OTLP over HTTP. Needs the extra `otel`."""

import time
from collections.abc import Callable
from contextvars import Token
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .errors import ConfigError
from .tracing import NO_SPAN, TRACEPARENT, Passing, Span, Value, enter, leave

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as SdkSpan

TRACES_PATH = "/v1/traces"
EXPORT_TIMEOUT_S = 5.0
CLOSE_S = 3.0  # what the last spans may take to be sent
MAX_QUEUED_SPANS = 8192  # that wait to be sent; more are dropped


class _Recorded(Span):
    """A span that is exported."""

    __slots__ = ("_from_s", "_span", "_token", "_tracer", "traceparent")

    def __init__(self, tracer: "OtlpTracer", span: "SdkSpan") -> None:
        self._tracer, self._span = tracer, span
        self._token: Token[Span] | None = None
        context = span.get_span_context()
        flags = int(context.trace_flags)
        self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"

    @property
    def recorded(self) -> bool:
        return True

    def child(self, name: str, **attributes: Value) -> Span:
        return self._tracer.below(self._span, name, None, attributes)

    def part(self, name: str, began_s: float, ended_s: float, **attributes: Value) -> None:
        self._tracer.below(self._span, name, began_s, attributes).end(ended_s)

    def set(self, **attributes: Value) -> None:
        self._span.set_attributes(_named(attributes))

    def end(self, at_s: float | None = None, *, error: str = "") -> None:
        if error:
            self._tracer.mark(self._span, error)
        self._span.end(self._tracer.unix_ns(at_s) if at_s is not None else None)

    def __enter__(self) -> Span:
        self._token = enter(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        leave(self._token)
        self.end(error=type(error).__name__ if error is not None else "")


class OtlpTracer:
    """Exports spans in the background, from a thread of its own. begins: a request that nobody traces may begin a trace
    here. clock: of the times that spans are given, in seconds."""

    on = True

    def __init__(self, provider: "TracerProvider", *, begins: bool, clock: Callable[[], float]) -> None:
        from opentelemetry import trace  # noqa: PLC0415  # an extra

        self._api = trace
        self._provider = provider
        self._begins = begins
        self._closed = False
        self._tracer = provider.get_tracer("kvterrace")
        self._offset_ns = time.time_ns() - int(clock() * 1e9)

    def start(self, name: str, traceparent: str = "", *, at_s: float | None = None, **attributes: Value) -> Span:
        api, known = self._api, TRACEPARENT.fullmatch(traceparent) is not None
        if not known and not self._begins:
            return NO_SPAN
        context = api.set_span_in_context(api.INVALID_SPAN)  # whatever this thread traces is not above it
        if known:
            _, trace_id, span_id, flags = traceparent.split("-")
            parent = api.SpanContext(int(trace_id, 16), int(span_id, 16), True, api.TraceFlags(int(flags, 16) & 1))
            context = api.set_span_in_context(api.NonRecordingSpan(parent))
        return self._made(name, context, api.SpanKind.SERVER, at_s, attributes, traceparent if known else "")

    def below(self, above: "SdkSpan", name: str, at_s: float | None, attributes: dict[str, Value]) -> Span:
        """A part of a span."""
        return self._made(name, self._api.set_span_in_context(above), self._api.SpanKind.INTERNAL, at_s, attributes, "")

    def mark(self, span: "SdkSpan", error: str) -> None:
        """It went wrong."""
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, error))

    def unix_ns(self, at_s: float) -> int:
        """Of a time of this tracer's clock."""
        return int(at_s * 1e9) + self._offset_ns

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._provider.force_flush(int(CLOSE_S * 1e3))
            self._provider.shutdown()

    def _made(
        self, name: str, context: Any, kind: Any, at_s: float | None, attributes: dict[str, Value], passing: str
    ) -> Span:
        at_ns = self.unix_ns(at_s) if at_s is not None else None
        span = self._tracer.start_span(name, context, kind, _named(attributes), start_time=at_ns)
        if span.is_recording():
            return _Recorded(self, span)
        return Passing(passing) if passing else NO_SPAN


def open_tracer(url: str, service: str, *, instance: str, share: float, clock: Callable[[], float]) -> OtlpTracer:
    """See make_tracer()."""
    endpoint = traces_url(url)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"--otlp needs pip install 'kvterrace[otel]' ({error})") from None
    names: dict[str, Value] = {"service.name": service, **({"service.instance.id": instance} if instance else {})}
    provider = TracerProvider(ParentBasedTraceIdRatio(share), Resource.create(names), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint, timeout=EXPORT_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=MAX_QUEUED_SPANS))
    return OtlpTracer(provider, begins=share > 0, clock=clock)


def traces_url(url: str) -> str:
    """Where spans are posted. ConfigError for what is no URL of a collector."""
    parts = urlsplit(url)
    try:
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"--otlp: {url!r} is not a collector's URL, such as http://127.0.0.1:4318")
    return url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{TRACES_PATH}"


def _named(attributes: dict[str, Value]) -> dict[str, Value]:
    return {f"kvterrace.{name}": value for name, value in attributes.items()}
