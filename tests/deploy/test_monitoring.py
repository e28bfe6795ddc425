"""Alert and recording rules: understood by Prometheus, tried on made-up series, and each explained to who is woken."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.unit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RULES = ROOT / "deploy/helm/kvterrace/files/rules.yaml"
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if "alert" in rule]


def run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_do_what_their_test_says(tool: Callable[[str], str], tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    shutil.copy(HERE / "rules.test.yaml", tmp_path)
    run(tool("promtool"), "check", "rules", "rules.yaml", cwd=tmp_path)
    run(tool("promtool"), "test", "rules", "rules.test.yaml", cwd=tmp_path)


def test_prometheus_takes_the_configuration_of_compose(tool: Callable[[str], str], tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    shutil.copy(ROOT / "deploy/compose/prometheus.yaml", tmp_path)
    run(tool("promtool"), "check", "config", "prometheus.yaml", cwd=tmp_path)


def test_prometheus_understands_every_query_of_the_dashboards(tool: Callable[[str], str], tmp_path: Path) -> None:
    queries = [
        target["expr"].replace("$__rate_interval", "5m").replace("$job", ".*")
        for path in sorted((RULES.parent / "dashboards").glob("*.json"))
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", [])
    ]
    assert len(queries) > 40
    rules = [{"record": f"dashboard:query_{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    run(tool("promtool"), "check", "rules", "queries.yaml", cwd=tmp_path)


def test_every_alert_is_tried_and_explained() -> None:
    tried = (HERE / "rules.test.yaml").read_text()
    explained = re.findall(r"^\| (Kvterrace\w+) \|", (ROOT / "docs/operate.md").read_text(), re.MULTILINE)
    names = [rule["alert"] for rule in ALERTS]
    assert sorted(explained) == sorted(names)
    assert not [name for name in names if name not in tried]


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_needs_to(rule: dict) -> None:
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert set(rule["annotations"]) == {"summary", "description"}
    used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    kept = re.findall(r"sum by \(([^)]*)\)", rule["expr"]) or re.findall(r"\bby \(([^)]*)\)", rule["expr"])
    if kept:
        assert used <= set(kept[0].split(", ")), "a label that the expression sums away is empty in the message"
