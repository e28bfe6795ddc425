"""Spans of a request in the engine: what it waited for, and what the store is told of whose trace it is."""

import pytest
from kvterrace.engine.request import Request, SamplingParams
from kvterrace.kvstore.otlp import OtlpTracer
from kvterrace.kvstore.tracing import NO_SPAN
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytestmark = pytest.mark.unit

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def traced(rig, spans):
    """A rig whose core traces."""

    def make(**options):
        made = rig(**options)
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(spans))
        made.core._tracer = OtlpTracer(provider, begins=True, clock=made.clock)
        return made

    return make


def submit(rig, prompt, name="r", traceparent=TRACE, **params):
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 3, "ignore_eos": True} | params)
    request = Request(name, tuple(prompt), params, traceparent=traceparent)
    rig.core.submit(request, lambda output: None)


def seconds(span):
    return (span.end_time - span.start_time) / 1e9


def test_a_request_is_a_span_of_its_waits_and_its_work(traced, store, spans, prompt):
    rig = traced(connector=store(), kv_connector="embedded")
    rig.one(prompt(1, 40))  # the store has it now
    rig.core.clear_hbm()
    spans.clear()
    submit(rig, prompt(1, 40))
    rig.clock.now += 2.0  # in the queue
    rig.step()
    rig.clock.now += 0.5  # on the way from the store
    rig.run()
    found = {span.name: span for span in spans.get_finished_spans()}
    request = found.pop("engine request")
    assert set(found) == {"fetch", "load", "queue", "prefill", "decode"}
    assert {span.parent.span_id for span in found.values()} == {request.context.span_id}
    assert f"{request.context.trace_id:032x}" == TRACE.split("-")[1]
    assert f"{request.parent.span_id:016x}" == TRACE.split("-")[2]
    assert seconds(found["queue"]) >= 2.5
    assert seconds(found["fetch"]) + seconds(found["load"]) == pytest.approx(0.5, abs=0.2)
    whole = seconds(found["queue"]) + seconds(found["prefill"]) + seconds(found["decode"])
    assert seconds(request) == pytest.approx(whole, abs=1e-6)
    told = request.attributes
    assert told["kvterrace.tokens.dram"] + told["kvterrace.tokens.computed"] == 40
    assert (told["kvterrace.request_id"], told["kvterrace.finish_reason"]) == ("r", "length")
    origin = rig.connector.origins[-1]
    assert origin.traceparent.split("-")[2] == f"{request.context.span_id:016x}", "the store's spans are below it"


@pytest.mark.parametrize("ran", [False, True])
def test_a_request_that_is_cancelled_ends_its_span(traced, spans, prompt, ran):
    rig = traced()
    submit(rig, prompt(1, 12), max_tokens=50)
    if ran:
        rig.step(2)
    rig.clock.now += 1.0
    rig.core.cancel("r")
    found = {span.name: span for span in spans.get_finished_spans()}
    assert set(found) == {"engine request", "queue"} | ({"prefill", "decode"} if ran else set())
    assert found["engine request"].status.description == "cancelled"
    assert seconds(found["engine request"]) >= 1.0


def test_several_samples_are_one_span(traced, spans, prompt):
    rig = traced()
    submit(rig, prompt(1, 12), n=3)
    rig.run()
    (request,) = [span for span in spans.get_finished_spans() if span.name == "engine request"]
    assert request.attributes["kvterrace.output_tokens"] == 9


def test_an_engine_that_traces_nothing_passes_the_clients_trace_on(rig, store, prompt):
    made = rig(connector=store(), kv_connector="embedded")
    submit(made, prompt(1, 40))
    submit(made, prompt(2, 40), name="s", traceparent="")
    made.run()
    assert [origin.traceparent for origin in made.connector.origins] == [TRACE, ""]
    assert all(group.span is NO_SPAN for group in made.core._groups.values())
