"""Fixtures around the scripted endpoint."""

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest


def load_file(name, path):
    """Tests are no package: what several files share is loaded by its path."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HERE = Path(__file__).parent
scripted = load_file("kvterrace_load_scripted", HERE / "scripted.py")
certificates = load_file("kvterrace_load_certificates", HERE.parents[1] / "certificates.py")

OPTIONS = {
    "scenario": None, "trace": None, "rate": 40.0, "duration": None, "requests": 8, "alone": 2, "concurrency": 64,
    "prompt_tokens": 40, "output_tokens": 3, "shared": 0.5, "groups": 2, "turns": 3, "think": 0.01, "speed": 1.0,
    "token_scale": 1.0, "slo": "", "timeout": 5.0, "model": "", "api": "chat", "ignore_eos": False, "seed": 1,
    "min_goodput": None, "against": None,
}  # fmt: skip


@pytest.fixture
def script():
    return scripted.Script()


@pytest.fixture
async def url(script):
    async with scripted.serving(script) as where:
        yield where


@pytest.fixture
def run(url):
    """Measures the scripted endpoint; keyword arguments are options of `kvterrace load`."""
    from kvterrace.kvstore.load.plan import make_plan, measure

    async def go(*, key="", tls=None, stop=None, watch=lambda runner: None, at=None, **options):
        plan = make_plan({**OPTIONS, "url": at or url, **options}, [])
        return await measure(plan, api_key=key, tls=tls, stop=stop or asyncio.Event(), watch=watch)

    return go


@pytest.fixture
def words_of():
    return scripted.words_of


@pytest.fixture
def serving():
    return scripted.serving


@pytest.fixture
def authority(tmp_path):
    return certificates.Authority(tmp_path)
