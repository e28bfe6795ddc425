"""Spans off, passed on, and exported; what is wrong with the option; what each costs when nobody traces."""

import sys

import pytest
from kvterrace.kvstore.config import load_config
from kvterrace.kvstore.errors import ConfigError
from kvterrace.kvstore.otlp import OtlpTracer, traces_url
from kvterrace.kvstore.tracing import NO_SPAN, OFF, current, make_tracer, tracing
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

pytestmark = pytest.mark.unit

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def exporting(*, share=1.0, clock=lambda: 50.0):
    spans = InMemorySpanExporter()
    provider = TracerProvider(ParentBasedTraceIdRatio(share), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return OtlpTracer(provider, begins=share > 0, clock=clock), spans


def test_off_is_one_object_that_does_nothing():
    assert make_tracer(None, "test") is OFF
    span = OFF.start("request", tokens=3)
    assert span is NO_SPAN
    assert span.child("part") is NO_SPAN
    with span as entered, entered.child("part"):
        assert current() is NO_SPAN
    span.set(a=1)
    span.part("p", 0.0, 1.0)
    span.end()
    assert (span.traceparent, span.recorded) == ("", False)


def test_a_trace_of_others_is_passed_on_and_only_within_its_block():
    span = OFF.start("request", TRACE)
    with span, span.child("part"):
        assert current().traceparent == TRACE
        with current().child("deeper"):
            assert current().traceparent == TRACE
        assert current().traceparent == TRACE
    assert current() is NO_SPAN
    assert OFF.start("request", "00-nonsense") is NO_SPAN


def test_spans_have_their_parents_times_and_names():
    tracer, spans = exporting()
    span = tracer.start("request", TRACE, at_s=50.0, tokens=3)
    assert span.recorded
    span.part("queue", 50.0, 50.25)
    with span.child("load", blocks=2) as part:
        assert current() is part
        assert part.traceparent.split("-")[1] == TRACE.split("-")[1]
    span.end(51.0, error="cancelled")
    queue, load, request = spans.get_finished_spans()
    assert (queue.name, load.name, request.name) == ("queue", "load", "request")
    assert queue.end_time - queue.start_time == 250_000_000
    assert request.end_time - request.start_time == 1_000_000_000
    assert queue.start_time == request.start_time
    assert queue.parent.span_id == load.parent.span_id == request.context.span_id
    assert request.parent.is_remote
    assert request.attributes == {"kvterrace.tokens": 3}
    assert (request.status.is_ok, request.status.description) == (False, "cancelled")


def test_sampling_follows_the_parent_and_the_share_is_for_those_without():
    tracer, spans = exporting(share=0.0)
    assert tracer.start("request") is NO_SPAN
    assert tracer.start("request", TRACE).recorded
    unsampled = tracer.start("request", TRACE[:-1] + "0")
    assert not unsampled.recorded
    assert unsampled.traceparent == TRACE[:-1] + "0", "those behind it are not to sample either"
    tracer, spans = exporting(share=0.3)
    for _ in range(400):
        tracer.start("request").end()
    assert 60 < len(spans.get_finished_spans()) < 180


def test_a_block_that_fails_says_so():
    tracer, spans = exporting()
    with pytest.raises(KeyError), tracer.start("request"):
        raise KeyError("x")
    (span,) = spans.get_finished_spans()
    assert span.status.description == "KeyError"
    assert current() is NO_SPAN


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://h:4318", "http://h:4318/v1/traces"),
        ("http://h:4318/", "http://h:4318/v1/traces"),
        ("https://h/otlp/v1/traces", "https://h/otlp/v1/traces"),
    ],
)
def test_where_spans_are_posted(given, url):
    assert traces_url(given) == url


@pytest.mark.parametrize("given", ["h:4318", "grpc://h:4317", "http://", "http://h:0x"])
def test_what_is_no_collector_names_the_option(given):
    with pytest.raises(ConfigError, match="--otlp: "), tracing(given, "test"):
        pass


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"--otlp needs pip install 'kvterrace\[otel\]'"):
        make_tracer("http://127.0.0.1:4318", "test")


def test_serve_knows_the_option():
    assert load_config({"otlp": "http://h:4318"}).otlp == "http://h:4318"
    assert load_config({}).otlp is None
