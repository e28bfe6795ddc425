"""What a store does for a traced request, as spans: what it brought from where, below whose trace."""

import asyncio
import time

import pytest
from kvterrace.kvstore.otlp import OtlpTracer
from kvterrace.kvstore.tracing import NO_SPAN, OFF, current
from kvterrace.kvstore.types import Origin
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytestmark = pytest.mark.unit

B = 4
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = TRACE[:-1] + "0"


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return OtlpTracer(provider, begins=False, clock=time.monotonic)


@pytest.fixture
def traced(lower, tracer):
    """A bench whose store traces."""
    bench = lower(8)
    bench.session.tracer = tracer
    return bench


async def ask(bench, tokens, traceparent, deadline_s=1.0):
    return await bench.session.acquire(tokens, skip=0, deadline_s=deadline_s, origin=Origin("r", traceparent))


async def test_an_acquire_is_a_span_and_what_it_brought_a_part_of_it(traced, spans):
    await traced.saved(traced.prompt(1, 6))
    await traced.push_out(8)
    await ask(traced, traced.prompt(1, 7), TRACE)
    found = {span.name: span for span in spans.get_finished_spans()}
    assert set(found) == {"acquire", "match", "nvme"}
    acquire = found["acquire"]
    assert f"{acquire.context.trace_id:032x}" == TRACE.split("-")[1]
    assert f"{acquire.parent.span_id:016x}" == TRACE.split("-")[2]
    assert acquire.attributes == {"kvterrace.tokens.nvme": 6 * B, "kvterrace.reason": "never_seen"}
    for part in (found["match"], found["nvme"]):
        assert part.parent.span_id == acquire.context.span_id
        assert acquire.start_time <= part.start_time <= part.end_time <= acquire.end_time
    assert found["nvme"].attributes["kvterrace.blocks"] == 6


async def test_an_answer_without_a_wait_is_one_span(traced, spans):
    await traced.saved(traced.prompt(1, 6))
    traced.session.acquire_now(traced.prompt(1, 6), skip=0, deadline_s=1.0, origin=Origin("r", TRACE))
    (span,) = spans.get_finished_spans()
    assert (span.name, span.attributes["kvterrace.tokens.dram"]) == ("acquire", 6 * B)


@pytest.mark.parametrize("traceparent", ["", UNSAMPLED, "no trace", "00-" + "0" * 32 + "-b7ad6b7169203331-01"])
async def test_who_is_not_traced_leaves_no_span(traced, spans, traceparent):
    await traced.saved(traced.prompt(1, 6))
    await traced.push_out(8)
    assert (await ask(traced, traced.prompt(1, 6), traceparent)).tiers == {"nvme": 6 * B}
    assert spans.get_finished_spans() == ()
    assert current() is NO_SPAN


async def test_two_requests_at_once_have_each_their_own_parts(traced, spans):
    other = TRACE.replace("0af7", "1bf8")
    await traced.saved(traced.prompt(1, 3))
    await traced.saved(traced.prompt(2, 3))
    await traced.push_out(8)
    await asyncio.gather(ask(traced, traced.prompt(1, 3), TRACE), ask(traced, traced.prompt(2, 3), other))
    parents = {span.context.span_id: span for span in spans.get_finished_spans() if span.name == "acquire"}
    reads = [span for span in spans.get_finished_spans() if span.name == "nvme"]
    assert len(parents) == len(reads) == 2
    assert all(parents[each.parent.span_id].context.trace_id == each.context.trace_id for each in reads)
    assert len({each.context.trace_id for each in reads}) == 2


async def test_a_request_that_is_cancelled_ends_its_span_in_error(traced, spans):
    await traced.saved(traced.prompt(1, 3))
    await traced.push_out(8)
    traced.tier.gate.clear()
    asking = asyncio.create_task(ask(traced, traced.prompt(1, 3), TRACE, deadline_s=60.0))
    await asyncio.sleep(0.02)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    traced.tier.gate.set()
    (span,) = [span for span in spans.get_finished_spans() if span.name == "acquire"]
    assert span.status.description == "CancelledError"


async def test_a_store_that_traces_nothing_still_passes_a_trace_on(lower):
    bench, seen = lower(8), []
    await bench.saved(bench.prompt(1, 6))
    await bench.push_out(8)
    get = bench.tier.get

    async def watched(wanted, *, deadline_s):
        seen.append(current().traceparent)
        return await get(wanted, deadline_s=deadline_s)

    bench.tier.get = watched
    assert bench.session.tracer is OFF
    await ask(bench, bench.prompt(1, 3), TRACE)
    await ask(bench, bench.prompt(1, 6), "")
    assert seen == [TRACE, ""]
