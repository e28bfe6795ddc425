"""Spans of a request in the engine: queue, with the waits for the store in it, prefill, decode. On the engine's thread
and clock. The span of the request begins with its submission, so that the store's can be below it."""

from ..connector.tracing import Span, Tracer
from .request import FinishReason, Request
from .sequence import Group, Sequence, State

_WAITS = {State.FETCHING: "fetch", State.LOADING: "load"}


def begin(tracer: Tracer, request: Request, at_s: float) -> Span:
    """A request was submitted."""
    return tracer.start(
        "engine request",
        request.traceparent,
        at_s=at_s,
        request_id=request.request_id,
        prompt_tokens=len(request.prompt_ids),
    )


def waited(seq: Sequence, began_s: float, ended_s: float) -> None:
    """A sequence waited for the store, in the state that it is still in."""
    if seq.group.span.recorded:
        seq.group.span.part(_WAITS.get(seq.state, "wait"), began_s, ended_s)


def finish(group: Group, reason: FinishReason, now_s: float) -> None:
    """The last sample of a request has ended."""
    span = group.span
    if span.recorded:
        began_s = group.submitted_s
        for name, until_s in (("queue", group.first_run_s), ("prefill", group.first_token_s), ("decode", None)):
            span.part(name, began_s, now_s if until_s is None else until_s)
            if until_s is None:
                break
            began_s = until_s
        receipt = group.receipt
        if receipt is not None:
            span.set(**{f"tokens.{tier}": count for tier, count in receipt.tokens.items()})
            span.set(miss_reason=receipt.miss.reason if receipt.miss is not None else "")
        span.set(output_tokens=group.output_tokens, finish_reason=reason)
    span.end(now_s, error="" if reason in {"stop", "length"} else reason)
