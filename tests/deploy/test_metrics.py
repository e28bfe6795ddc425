"""Dashboards, rules and autoscalers name metrics, labels and records that exist."""

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "kvterrace"
SERIES = re.compile(r"\b(kvterrace_\w+|kvterrace:[\w:]+)")
# What Prometheus itself adds, to a target of a PodMonitor or of a plain list.
TARGET = {"job", "instance", "namespace", "pod", "container", "endpoint", "le"}


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


CATALOG = load(ROOT / "tests" / "metrics_catalog.py", "kvterrace_metrics_catalog").ALL_METRICS
MAKE = load(ROOT / "deploy" / "grafana" / "make.py", "kvterrace_grafana_make")
RULES = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
RECORDS = {rule["record"]: rule["expr"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule}


def expressions() -> Iterator[tuple[str, str]]:
    for group in RULES["groups"]:
        yield from ((rule.get("alert") or rule["record"], rule["expr"]) for rule in group["rules"])
    for path in sorted((CHART / "files" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            yield from ((f"{path.name}: {panel['title']}", each["expr"]) for each in panel.get("targets", []))
    for rule in yaml.safe_load((ROOT / "deploy/prometheus/adapter.yaml").read_text())["rules"]:
        yield "adapter.yaml", rule["seriesQuery"]
        yield "adapter.yaml", rule["metricsQuery"]


def wrong_labels(expression: str) -> Iterator[str]:
    for name, said in re.findall(r"\b(kvterrace_\w+)\{([^}]*)\}", expression):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", said))
        yield from (f"{name}{{{label}}}" for label in labels - set(CATALOG[name].labels) - TARGET)
    used = {name for name in SERIES.findall(expression) if name in CATALOG}
    used |= {each for record, text in RECORDS.items() if record in expression for each in SERIES.findall(text)}
    there = TARGET | {label for name in used if name in CATALOG for label in CATALOG[name].labels}
    for by in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression.replace("<<.GroupBy>>", "pod")):
        yield from (f"by ({label})" for label in re.split(r",\s*", by) if label not in there)


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_names_and_labels_exist(where: str, expression: str) -> None:
    unknown = [name for name in SERIES.findall(expression) if name not in CATALOG and name not in RECORDS]
    assert not unknown, where
    assert not list(wrong_labels(expression)), where


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_counters_are_rated_and_gauges_are_not(where: str, expression: str) -> None:
    for name in SERIES.findall(expression):
        if name not in CATALOG or where == "adapter.yaml":
            continue
        rated = re.search(rf"(?:rate|increase)\({name}", expression) is not None
        is_counter = name.endswith(("_total", "_bucket", "_sum", "_count"))
        assert rated == is_counter, f"{where}: {name}"


def test_legends_use_labels_that_the_query_leaves() -> None:
    for uid, (_, rows) in MAKE.tables().items():
        for panel in (panel for row in rows for panel in row.panels):
            for legend, query in panel.queries:
                by = {label for each in re.findall(r"by \(([^)]*)\)", query) for label in each.split(", ")}
                left = by or TARGET | {label for name in SERIES.findall(query) for label in CATALOG[name].labels}
                assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= left, f"{uid}: {panel.title}: {legend}"


def test_dashboards_are_what_their_tables_say() -> None:
    files = {path.name: path.read_text() for path in (CHART / "files" / "dashboards").glob("*.json")}
    assert files == MAKE.texts(), "run: python deploy/grafana/make.py"


def test_panels_do_not_overlap_and_have_words() -> None:
    for text in MAKE.texts().values():
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(text)["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & taken
            assert at["x"] + at["w"] <= 24
            taken |= cells
            assert panel["type"] == "row" or panel["description"]


def test_autoscalers_name_what_is_served(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    adapter = yaml.safe_load((ROOT / "deploy/prometheus/adapter.yaml").read_text())["rules"]
    served = {rule.get("name", {}).get("as") or SERIES.findall(rule["seriesQuery"])[0] for rule in adapter}
    hpa = next(each for each in rendered("sidecar-tls") if each["kind"] == "HorizontalPodAutoscaler")
    assert {each["pods"]["metric"]["name"] for each in hpa["spec"]["metrics"]} == served
    keda = next(each for each in rendered("cluster") if each["kind"] == "ScaledObject")
    for trigger in keda["spec"]["triggers"]:
        assert set(SERIES.findall(trigger["metadata"]["query"])) <= CATALOG.keys()
        assert 'namespace="ns",pod=~"rel-kvterrace-.*"' in trigger["metadata"]["query"]


def test_the_deletion_cost_reads_metrics_that_exist() -> None:
    text = (ROOT / "deploy" / "deletion_cost.py").read_text()
    names = set(re.findall(r'^\w+ = ["\'](kvterrace_\w+)', text, re.MULTILINE))
    assert names == {"kvterrace_cluster_hot_last_copy_bytes", "kvterrace_store_tier_used_bytes"}
    assert names <= CATALOG.keys()
