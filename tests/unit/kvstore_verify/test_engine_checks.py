"""What verify says of an engine that is right, and of each way to be wrong."""

import importlib.util
import sys
from pathlib import Path

import pytest
from kvterrace.kvstore.engine_http import EngineError, EngineHttp
from kvterrace.kvstore.verify import engine_checks
from kvterrace.kvstore.verify.report import Outcome
from kvterrace.kvstore.verify.run import Plan, run_checks

pytestmark = pytest.mark.unit

spec = importlib.util.spec_from_file_location("verify_fake_engine", Path(__file__).with_name("fake_engine.py"))
assert spec is not None
assert spec.loader is not None
fakes = sys.modules["verify_fake_engine"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fakes)
Fake, serving = fakes.Fake, fakes.serving


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_checks, "POLL_S", 0.0)


def checked(*given, **options) -> dict[str, tuple[Outcome, str]]:
    """What came of each check, by its name without the engine's address."""
    engines = [EngineHttp(fake.url, timeout_s=5.0) for fake in given]
    report = run_checks(Plan(None, engines, **options))
    return {check.name.rpartition(": ")[2]: (check.outcome, check.said) for check in report.checks}


def test_a_right_engine_passes_and_the_cache_is_asked_to_stay_out_of_the_reference() -> None:
    with serving(Fake()) as fake, serving(Fake()) as second:
        second.known = fake.known  # one store
        found = checked(fake, second)
        assert {outcome for outcome, _ in found.values()} == {Outcome.PASS}, found
        assert {f"{n} tokens shared" for n in (47, 48, 49)} < set(found)
        assert "32 reused" in found["47 tokens shared"][1]
        assert "48 reused" in found["49 tokens shared"][1]
        wishes = [body["kvterrace"] for body in fake.asked]
        assert {"cache": False} in wishes
        assert {"retention": [{"start": 0, "priority": 0, "ttl_s": 120.0}]} in wishes
        assert all(body["temperature"] == 0.0 for body in fake.asked)


def test_wrong_bytes_change_an_answer_and_fail() -> None:
    with serving(Fake(fault="wrong bytes")) as fake:
        found = checked(fake)
    assert found["cold and warm"][0] is Outcome.FAIL
    assert "'other', 4.00 nats apart" in found["cold and warm"][1]
    assert found["48 tokens shared"][0] is Outcome.FAIL


def test_tokens_that_are_as_likely_but_for_rounding_are_no_failure_and_are_told() -> None:
    with serving(Fake(fault="tie")) as fake:
        outcome, said = checked(fake)["cold and warm"]
    assert outcome is Outcome.PASS
    assert "1 parted where two tokens were as likely" in said


def test_half_a_block_counted_as_reused_fails() -> None:
    with serving(Fake(fault="counts half blocks")) as fake:
        found = checked(fake)
    assert found["47 tokens shared"] == (
        Outcome.FAIL,
        "37 tokens reused of a head of 47, whose full blocks have 32",
    )


def test_a_cache_that_never_hits_fails() -> None:
    with serving(Fake(kept=False)) as fake:
        found = checked(fake)
    assert "reused nothing the second time (never_seen)" in found["cold and warm"][1]
    assert "0 tokens reused, although full blocks of 32 are shared" in found["47 tokens shared"][1]


def test_engines_that_do_not_share_fail() -> None:
    with serving(Fake()) as fake, serving(Fake()) as alone:
        outcome, said = checked(fake, alone)["one computes, others answer"]
    assert outcome is Outcome.FAIL
    assert "are they on one sidecar?" in said


def test_another_engines_reference_is_asked_for_with_a_salt() -> None:
    with serving(Fake("vllm")) as fake:
        found = checked(fake)
        assert {outcome for name, (outcome, _) in found.items() if name != "one computes, others answer"} == {
            Outcome.PASS
        }
        assert len({body["cache_salt"] for body in fake.asked if "cache_salt" in body}) == 5


def test_an_engine_that_cannot_compute_without_its_cache_is_compared_with_its_first_answer() -> None:
    with serving(Fake("plain", logprobs=False, tokenizes=False)) as fake:
        found = checked(fake)
    assert found["cold and warm"][0] is Outcome.PASS
    assert "as a new prompt" in found["cold and warm"][1]
    assert found["48 tokens shared"][0] is Outcome.SKIP
    assert "cannot be asked to compute without its cache" in found["48 tokens shared"][1]
    assert found["one computes, others answer"] == (Outcome.SKIP, "give --engine several times")


def test_an_engine_that_is_away_or_serves_another_model_fails_in_a_line() -> None:
    with serving(Fake()) as fake:
        assert "serves fake, not mine" in checked(fake, model="mine")["answers"][1]
        gone = EngineHttp(fake.url, timeout_s=1.0)
    with pytest.raises(EngineError, match="no engine answers at http"):
        gone.get("/v1/models")


def test_hbm_that_cannot_be_emptied_is_said() -> None:
    with serving(Fake()) as fake:
        outcome, said = checked(fake, clear_hbm=True)["cold and warm"]
    assert outcome is Outcome.SKIP
    assert said.startswith("--clear-hbm: ")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://h", "http://", "http://h/v1?x=1"])
def test_an_address_that_is_none_is_said(url: str) -> None:
    with pytest.raises(ValueError, match="is not the address of an engine"):
        EngineHttp(url)


def test_the_path_of_the_api_may_be_given_or_not() -> None:
    assert str(EngineHttp("http://h:8000/v1")) == str(EngineHttp("http://h:8000/")) == "http://h:8000"
    assert str(EngineHttp("https://gate/llm/v1/")) == "https://gate/llm"
    assert "word" not in str(EngineHttp("http://me:word@h:1"))
