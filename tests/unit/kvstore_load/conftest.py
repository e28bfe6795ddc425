"""An endpoint without a socket, on a clock that only its script moves."""

import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from kvterrace.kvstore.load.endpoint import Asking, Endpoint


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class Http:
    """post() plays `chunks`: (seconds before it, bytes). An exception in place of bytes is raised."""

    def __init__(self, clock, chunks, status=200, content_type="text/event-stream"):
        self.clock, self.chunks, self.status, self.content_type = clock, chunks, status, content_type
        self.posted = []

    @asynccontextmanager
    async def post(self, url, *, json, allow_redirects):
        assert allow_redirects is False
        self.posted.append((url, json))
        yield SimpleNamespace(status=self.status, content_type=self.content_type, content=self)

    async def iter_any(self):
        for wait_s, data in self.chunks:
            self.clock.now_s += wait_s
            if isinstance(data, BaseException):
                raise data
            yield data

    async def read(self, most):
        return b"".join(data for _, data in self.chunks)[:most]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make_endpoint(clock):
    def make(chunks, status=200, content_type="text/event-stream", **asking):
        http = Http(clock, chunks, status, content_type)
        return Endpoint(http, "http://test/v1", Asking(model="m", **asking))

    return make


def event(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def content(text):
    return event(choices=[{"index": 0, "delta": {"content": text}}])


@pytest.fixture
def sse():
    return SimpleNamespace(
        event=event,
        content=content,
        role=event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}]),
        end=event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]),
        done=b"data: [DONE]\n\n",
    )
