"""Helpers beside this file: tests are no package."""

import importlib.util
import sys
from pathlib import Path

import pytest
from kvterrace.kvstore.peer.client import PeerClient
from kvterrace.kvstore.peer.counts import FetchCounts
from kvterrace.kvstore.peer.tier import PeerTier


def _load(name: str):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


BENCH = _load("peer_bench")


@pytest.fixture(scope="session")
def peer_bench():
    """The module."""
    return BENCH


@pytest.fixture
def tokens(peer_bench):
    return peer_bench.prompt(1, 8)


@pytest.fixture
async def open_tier():
    """Call it with an address and options; they are closed after the test. Its `counts` are the tier's."""
    made = []

    def make(address: str, **options) -> PeerTier:
        made.append(PeerTier(PeerClient(address), "b", None, FetchCounts(), **options))
        return made[-1]

    yield make
    for each in made:
        await each.close()
        assert each.in_flight_bytes == 0


@pytest.fixture
async def scripted(peer_bench, open_tier):
    """Call it with how Fetch is answered: the servicer, and a tier that asks it."""
    servers = []

    async def make(answer, **options):
        servicer = peer_bench.Scripted(answer)
        servers.append(await peer_bench.Server(servicer).__aenter__())
        return servicer, open_tier(servers[-1].address, **options)

    yield make
    for each in servers:
        await each.__aexit__()
