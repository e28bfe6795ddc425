"""What operators ask: health, readiness, models, status, metrics, clearing."""

import dataclasses
from types import SimpleNamespace

import httpx
import pytest
from kvterrace.connector.base import ConnectorStatus
from kvterrace.engine.server.app import make_app
from kvterrace.engine.server.backend import Backend
from kvterrace.engine.stats import EngineStats, Histogram
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.unit


def client_of(app, peer="127.0.0.1"):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app, client=(peer, 5)), base_url="http://t")


async def test_health_is_about_the_process_and_ready_about_serving(http, backend, engine):
    loading = Backend("fake", "1")
    loading.progress = (0.5, "reading tensors")
    async with client_of(make_app(loading)) as early:
        assert (await early.get("/health")).status_code == 200
        response = await early.get("/ready")
        assert response.status_code == 503
        assert "reading tensors, 50%" in response.json()["detail"]
    response = await http.get("/ready")
    assert response.status_code == 200
    assert response.json()["connector"] == {"kind": "sidecar", "connected": True}
    engine.connector = SimpleNamespace(status=lambda: ConnectorStatus("sidecar", connected=False))
    response = await http.get("/ready")
    assert response.status_code == 200  # the engine serves without its store
    assert response.json()["connector"]["connected"] is False
    engine.alive = False
    assert (await http.get("/ready")).status_code == 503
    assert (await http.get("/health")).status_code == 200


async def test_ready_is_503_while_stopping(http, backend):
    backend.stopping()
    assert (await http.get("/ready")).status_code == 503


async def test_models(http):
    listed = (await http.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["fake"]
    assert listed["data"][0]["max_model_len"] == 2_501
    assert (await http.get("/v1/models/fake")).json() == listed["data"][0]
    response = await http.get("/v1/models/org/other")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


async def test_status_json_holds_the_engines_and_the_connectors_numbers(http, engine):
    engine.counted.running = 3
    status = (await http.get("/status.json")).json()
    assert status["engine"]["running"] == 3
    assert status["connector"]["kind"] == "sidecar"
    assert status["phase"] == "ready"
    assert status["max_prompt_tokens"] == 2_500
    engine.connector = None
    assert (await http.get("/status.json")).json()["connector"] is None


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.5.0.1", "::1", "::ffff:127.0.0.1"])
async def test_clear_answers_this_machine(app, peer):
    async with client_of(app, peer) as http:
        response = await http.post("/admin/hbm/clear")
    assert response.status_code == 200
    assert response.json() == {"dropped_blocks": 7}


@pytest.mark.parametrize(
    ("peer", "headers"),
    [
        ("10.0.0.1", {}), ("::ffff:10.0.0.1", {}), ("testclient", {}),
        ("127.0.0.1", {"origin": "http://evil.example"}), ("127.0.0.1", {"x-forwarded-for": "127.0.0.1"}),
        ("127.0.0.1", {"forwarded": "for=10.0.0.1"}), ("10.0.0.1", {"x-forwarded-for": "127.0.0.1"}),
    ],
)  # fmt: skip
async def test_clear_refuses_others(app, engine, peer, headers):
    engine.clear_hbm = None
    async with client_of(app, peer) as http:
        response = await http.post("/admin/hbm/clear", headers=headers)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "forbidden"


def samples(text):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def everything_moved() -> EngineStats:
    """Each field with a value of its own."""
    stats = EngineStats()
    for number, field in enumerate(dataclasses.fields(stats)):
        value = getattr(stats, field.name)
        if isinstance(value, Histogram):
            value.observe(0.003 * (number + 1))
        elif isinstance(value, dict):
            setattr(stats, field.name, dict.fromkeys([*value, "extra"], number + 1))
        else:
            setattr(stats, field.name, number + 100)
    return stats


def connector_moved() -> ConnectorStatus:
    values = {}
    for number, field in enumerate(dataclasses.fields(ConnectorStatus)):
        if field.name not in ("kind", "connected"):
            by_reason = field.name in ("misses", "failures", "dropped_saves")
            values[field.name] = {"deadline": number + 300} if by_reason else number + 200
    return ConnectorStatus("sidecar", connected=False, **values)


async def test_every_metric_moves_and_every_number_is_shown(http, engine):
    before = samples((await http.get("/metrics")).text)
    engine.counted = everything_moved()
    engine.connector = SimpleNamespace(status=connector_moved)
    after = samples((await http.get("/metrics")).text)
    constant = {key for key in before if before[key] == after.get(key)}
    ready = ("kvterrace_engine_ready", ())
    disconnects = ("kvterrace_engine_http_disconnects_total", ())  # moved in the test of disconnects
    lowest = {key for key in constant if key[0].endswith("_bucket")}  # bounds below what was observed
    assert constant == {ready, disconnects} | lowest
    assert all(name.startswith("kvterrace_engine_") or name == "kvterrace_prompt_tokens_total" for name, _ in after)
    shown = set(after.values())
    for field in dataclasses.fields(EngineStats):
        value = getattr(engine.counted, field.name)
        number = (
            value.sum_s if isinstance(value, Histogram) else max(value.values()) if isinstance(value, dict) else value
        )
        assert number in shown, f"{field.name} is in no metric"
    for field in dataclasses.fields(ConnectorStatus):
        value = getattr(connector_moved(), field.name)
        number = value["deadline"] if isinstance(value, dict) else value
        assert field.name == "kind" or number in shown, f"{field.name} is in no metric"


async def test_prompt_tokens_are_told_by_tier(http, engine):
    engine.counted.prompt_tokens = {"hbm": 32, "dram": 16, "nvme": 0, "peer": 0, "computed": 7}
    after = samples((await http.get("/metrics")).text)
    tiers = {
        dict(labels)["tier"]: value
        for (name, labels), value in after.items()
        if name == "kvterrace_prompt_tokens_total"
    }
    assert tiers == engine.counted.prompt_tokens


async def test_histograms_are_cumulative(http, engine):
    for seconds in (0.0001, 0.02, 0.02, 1_000):
        engine.counted.ttft_miss.observe(seconds)
    after = samples((await http.get("/metrics")).text)
    name = "kvterrace_engine_ttft_seconds"
    miss = ("cache", "miss")
    assert after[name + "_bucket", (miss, ("le", "0.01"))] == 1
    assert after[name + "_bucket", (miss, ("le", "0.025"))] == 3
    assert after[name + "_bucket", (miss, ("le", "300.0"))] == 3
    assert after[name + "_bucket", (miss, ("le", "+Inf"))] == after[name + "_count", (miss,)] == 4
    assert after[name + "_count", (("cache", "hit"),)] == 0


async def test_responses_are_counted_by_route_with_bounded_labels(http, chat):
    await chat()
    await chat(temperature=9)
    await http.get("/v1/models/a")
    await http.get("/v1/models/b")
    await http.get("/whatever/1")
    await http.get("/whatever/2")
    after = samples((await http.get("/metrics")).text)
    counted = {
        tuple(dict(k[1]).values()): v for k, v in after.items() if k[0] == "kvterrace_engine_http_responses_total"
    }
    assert counted == {
        ("/v1/chat/completions", "200"): 1,
        ("/v1/chat/completions", "400"): 1,
        ("/v1/models/{name:path}", "404"): 2,
        ("other", "404"): 2,
    }


async def test_not_ready_is_a_metric(http, engine, backend):
    key = ("kvterrace_engine_ready", ())
    assert samples((await http.get("/metrics")).text)[key] == 1
    engine.alive = False
    assert samples((await http.get("/metrics")).text)[key] == 0
