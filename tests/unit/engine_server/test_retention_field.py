"""The `kvterrace` field of a body: obeyed, or refused by name."""

import pytest
from kvterrace.engine.request import TokenRetention

pytestmark = pytest.mark.unit

FULL = {"start": 0, "end": 512, "priority": 90, "ttl_s": 3600, "pin": True}


async def test_it_reaches_the_engine_with_its_defaults(chat, complete, engine):
    field = {"retention": [FULL, {}, {"start": 7, "ttl_s": 0.5}, {"end": None}]}
    expected = (
        TokenRetention(0, 512, 90, 3600.0, True),
        TokenRetention(),
        TokenRetention(start=7, ttl_s=0.5),
        TokenRetention(),
    )
    for post in (chat, complete):
        assert (await post(kvterrace=field)).status_code == 200
    assert [request.retention for request in engine.requests] == [expected, expected]


async def test_it_holds_for_each_prompt_of_a_call(complete, engine):
    await complete(prompt=["one", "two"], kvterrace={"retention": [FULL]})
    assert [len(request.retention) for request in engine.requests] == [1, 1]


@pytest.mark.parametrize("field", [None, {}, {"retention": []}])
async def test_asking_for_nothing_is_fine(chat, engine, field):
    assert (await chat(kvterrace=field)).status_code == 200
    assert engine.requests[0].retention == ()


@pytest.mark.parametrize(("param", "field"), [
    ("kvterrace", 5), ("kvterrace", []), ("kvterrace.pin", {"pin": True}), ("kvterrace.retention", {"retention": {}}),
    ("kvterrace.retention", {"retention": [{}] * 65}), ("kvterrace.retention[0]", {"retention": ["all"]}),
    ("kvterrace.retention[1].until", {"retention": [{}, {"until": 5}]}),
    *[(f"kvterrace.retention[0].{name}", {"retention": [{name: value}]}) for name, value in [
        ("start", -1), ("start", 1.5), ("start", "0"), ("start", None), ("start", True),
        ("end", 0), ("end", -5), ("end", "x"), ("priority", 101), ("priority", -1), ("priority", 50.5),
        ("priority", True), ("ttl_s", -1), ("ttl_s", 1e10), ("ttl_s", "1h"), ("pin", 1), ("pin", "yes"),
    ]],
    ("kvterrace.retention[0].end", {"retention": [{"start": 5, "end": 5}]}),
])  # fmt: skip
async def test_anything_else_is_refused_by_name(chat, complete, engine, param, field):
    for post in (chat, complete):
        response = await post(kvterrace=field)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param
        assert param in error["message"]
    assert engine.requests == []
