"""Tracing, as the engine sees it: the store's own, so that one trace goes through both."""

from ..kvstore.tracing import NO_SPAN, OFF, Span, Tracer, make_tracer

__all__ = ["NO_SPAN", "OFF", "Span", "Tracer", "make_tracer"]
