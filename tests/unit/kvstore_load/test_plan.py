"""What is wrong with a command line is told by the flag, before anything is sent."""

import sys

import pytest
from kvterrace.kvstore.cli import app
from kvterrace.kvstore.load.endpoint import base_url
from typer.testing import CliRunner

pytestmark = pytest.mark.unit

URL = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--scenario", "rush"], "--scenario: there is no 'rush'; there are steady, burst, mixed, conversation, trace"),
        (["--scenario", "trace"], "--scenario trace needs --trace FILE"),
        (["--scenario", "burst", "--trace", "x"], "--trace is for --scenario trace, not burst"),
        (["--trace", "/none/such"], "/none/such cannot be read"),
        (["--api", "responses"], "--api: 'responses' is neither chat nor completions"),
        (["--slo", "ttft=soon"], "--slo: 'ttft=soon'"),
        (["--min-goodput", "0.9"], "--min-goodput needs --slo"),
        (["--out", "report.pdf"], "--out: report.pdf must end in .json or .html"),
        (["--out", "/none/such/run.json"], "--out: there is no directory /none/such"),
        (["--tls-ca", "x.pem"], "--tls-ca is for an endpoint of https://"),
    ],
)
def test_a_wrong_flag_names_itself(flags, says):
    result = CliRunner().invoke(app, ["load", URL, *flags])
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_a_missing_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("kvterrace.kvstore.load.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    result = CliRunner().invoke(app, ["load", URL])
    assert result.exit_code == 2
    assert "pip install 'kvterrace[load]'" in result.stderr


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/", "http://h:8000/v1"),
        ("https://h/openai/v1/", "https://h/openai/v1"),
        ("http://[::1]:8000/v1/chat/completions", "http://[::1]:8000/v1"),
    ],
)
def test_urls_that_are_understood(given, base):
    assert base_url(given) == base


@pytest.mark.parametrize("given", ["h:8000", "ftp://h", "http://", "http://h:99999", "http://u:p@h", "http://h?key=1"])
def test_urls_that_are_none(given):
    with pytest.raises(ValueError, match=r"is not a URL|only scheme, host"):
        base_url(given)
