"""Every `kvterrace` command line in a deploy file is one that the program takes, with values that it takes."""

import os
import re
import shlex
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from kvterrace.kvstore.cli import app
from kvterrace.kvstore.config import load_config
from kvterrace.kvstore.errors import ConfigError

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
VALUES = sorted(path.name.removesuffix("-values.yaml") for path in (DEPLOY / "helm/kvterrace/ci").glob("*.yaml"))
CLUSTER = "redis://valkey:6379"


@pytest.fixture(scope="module")
def program() -> Any:
    return typer.main.get_group(app)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("KVTERRACE_"):
            monkeypatch.delenv(name)


def parse(program: Any, words: list[str]) -> dict[str, Any]:
    """The options of a command line. A UsageError names what the program does not know."""
    name, *rest = words
    assert name in program.commands, f"there is no kvterrace {name}"
    command = program.commands[name]
    return command.make_context(name, rest, resilient_parsing=False).params


def check(program: Any, words: list[str], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = [re.sub(r"\$\(POD_NAME\)", "rel-kvterrace-0", each) for each in words]
    words = [re.sub(r"\$\(POD_IP\)", "10.1.2.3", each) for each in words]
    params = parse(program, words)
    if words[0] != "serve":
        return
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    given = {name: value for name, value in params.items() if value not in (None, (), [], False)}
    given.pop("config", None)
    load_config(given)


def chart_lines(objects: list[dict[str, Any]]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Of the pods' containers, their hooks and probes; with the KVTERRACE_ variables of the container."""
    for each in objects:
        if each["kind"] not in {"Deployment", "StatefulSet"}:
            continue
        pod = each["spec"]["template"]["spec"]
        for one in [*pod.get("initContainers", []), *pod["containers"]]:
            said = {
                env["name"]: env.get("value", CLUSTER)
                for env in one.get("env", [])
                if env["name"].startswith("KVTERRACE_")
            }
            if one["image"].startswith("kvterrace-") and one.get("args"):
                yield one["args"], said
            hook = one.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
            if hook[:1] == ["kvterrace"]:
                yield hook[1:], {}


@pytest.mark.parametrize("values", VALUES)
def test_of_the_chart(
    values: str,
    rendered: Callable[..., list[dict[str, Any]]],
    program: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = list(chart_lines(rendered(values)))
    assert {words[0] for words, _ in lines} >= {"serve"}
    for words, variables in lines:
        with monkeypatch.context() as patch:
            check(program, words, variables, patch)


def test_of_compose(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    services = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())["services"]
    lines = [
        [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in each["command"]]
        for each in services.values()
        if each["image"].startswith(("${SIDECAR", "${ENGINE")) and "entrypoint" not in each
    ]
    assert sorted(words[0] for words in lines) == ["engine", "engine", "serve", "serve"]
    for words in lines:
        check(program, words, {}, monkeypatch)


def test_of_the_images(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        words = yaml.safe_load(line)
        if words != ["engine", "--help"]:
            check(program, words, {}, monkeypatch)


def test_of_systemd(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    units = [*(DEPLOY / "systemd").rglob("*.service"), *(DEPLOY / "systemd").rglob("*.conf")]
    found = [
        (path, shlex.split(line))
        for path in units
        for line in re.findall(r"^Exec\w+=-?/opt/kvterrace/bin/kvterrace (.*)$", path.read_text(), re.MULTILINE)
    ]
    assert sorted(words[0] for _, words in found) == ["drain", "engine", "serve"]
    places = {"${MODEL}": "/srv/model", "${HOST}": "127.0.0.1", "${PORT}": "8000"}
    for _, words in found:
        check(program, [places.get(each, each) for each in words if each != "$FLAGS"], {}, monkeypatch)


def test_why_pods_have_no_service_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Kubernetes would put into the environment for a Service named kvterrace."""
    monkeypatch.setenv("KVTERRACE_PORT", "tcp://10.96.0.7:8000")
    with pytest.raises(ConfigError, match="KVTERRACE_PORT"):
        load_config({})


@pytest.mark.parametrize("all_of_it", [False, True], ids=["as it is", "uncommented"])
def test_the_sample_of_serve_toml_is_understood(all_of_it: bool, tmp_path: Path) -> None:
    text = (DEPLOY / "systemd/serve.toml").read_text()
    if all_of_it:
        text = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
        text += f'cluster = "{CLUSTER}"\n'
    (tmp_path / "serve.toml").write_text(text)
    config = load_config({}, tmp_path / "serve.toml")
    assert config.dram == 8 << 30
    assert (config.listen is not None) is all_of_it


def test_of_the_page_for_operators(program: Any) -> None:
    """Commands in docs/operate.md: known, with known options. What stands for a value there is in capitals."""
    page = (ROOT / "docs/operate.md").read_text()
    shown = re.findall(r"`(kvterrace [^`]+)`", page)
    shown += [line for block in re.findall(r"```\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    checked = 0
    for line in shown:
        found = re.search(r"(?:^|-- |/bin/)kvterrace ([a-z].*)", line)
        if found is None:
            continue
        words = shlex.split(found[1].split(" #")[0].split(" | ")[0], comments=False)
        assert words[0] in program.commands, line
        command = program.commands[words[0]]
        known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)} | {"--help"}
        # --tls-ca and so on are taken before the command runs.
        unknown = [word for word in words[1:] if word.startswith("--") and word.split("=")[0] not in known]
        assert not unknown, line
        checked += 1
    assert checked > 10


def test_entry_points_are_what_is_checked() -> None:
    """`engine` comes from another folder; were it missing, its command lines would not be checked."""
    assert "engine" in {each.name for each in entry_points(group="kvterrace.commands")}
