"""Configuration: one order of precedence, and no key that is silently ignored."""

import pytest
from kvterrace.engine.config import load_config

pytestmark = pytest.mark.unit


def test_flags_win_over_environment_over_file(tmp_path, monkeypatch):
    file = tmp_path / "engine.toml"
    file.write_text('model = "file.gguf"\nmax_queue = 1\nmax_running = 2\nmax_step_tokens = 100\n')
    monkeypatch.setenv("KVTERRACE_ENGINE_MAX_QUEUE", "10")
    monkeypatch.setenv("KVTERRACE_ENGINE_MAX_RUNNING", "20")
    config = load_config(file, max_queue=99)
    assert (config.max_queue, config.max_running, config.max_step_tokens) == (99, 20, 100)
    assert config.model.name == "file.gguf"


@pytest.mark.parametrize("place", ["flag", "environment", "file"])
def test_an_unknown_key_stops_the_start_and_is_named(tmp_path, monkeypatch, place):
    file = tmp_path / "engine.toml"
    file.write_text("max_quue = 1\n" if place == "file" else "")
    if place == "environment":
        monkeypatch.setenv("KVTERRACE_ENGINE_MAX_QUUE", "1")
    flags = {"max_quue": 1} if place == "flag" else {}
    with pytest.raises(ValueError, match=r"(?i)max_quue"):
        load_config(file, model="m", **flags)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"max_queue": 0}, "max_queue"),
        ({"kv_connector": "magic"}, "kv_connector"),
        ({"max_running": 600}, "max_step_tokens"),
        ({"prefix_cache": False}, "prefix_cache"),
        ({"kv_codec": "int4"}, "kv_codec"),
        ({"kv_codec": "int8", "kv_connector": "none"}, "kv_codec needs a kv_connector"),
        ({"max_queue_wait_s": "soon"}, "max_queue_wait_s"),
        ({"receipts": 0}, "receipts"),
        ({"slo_ttft_s": 0}, "slo_ttft_s"),
        ({"slo_itl_s": -1}, "slo_itl_s"),
        ({"kv_token_file": "t"}, "kv_token_file.* for kv_connector sidecar"),
        ({"kv_tls_cert": "c", "kv_connector": "sidecar"}, "kv_tls_cert and kv_tls_key"),
    ],
)
def test_a_bad_value_is_named(values, named):
    with pytest.raises(ValueError, match=named):
        load_config(model="m", **values)


def test_it_cannot_be_changed_afterwards():
    with pytest.raises(ValueError, match="frozen"):
        load_config(model="m").max_queue = 5
