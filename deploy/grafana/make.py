"""Grafana's dashboards, of dashboards.toml: `python deploy/grafana/make.py` writes them into the chart's files.

A test compares the files with this, and each metric with docs/metrics.md.
"""

import json
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLES = Path(__file__).with_name("dashboards.toml")
FOLDER = Path(__file__).parents[1] / "helm" / "kvterrace" / "files" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
JOBS = 'job=~"$job"'
WIDTH, HEIGHT = 24, 8
TIER_COLOURS = {
    "hbm": "green",
    "dram": "blue",
    "nvme": "purple",
    "peer": "orange",
    "remote": "yellow",
    "computed": "#8e8e8e",
}


@dataclass(frozen=True, slots=True)
class Panel:
    """queries: (legend, PromQL) each. kind: Grafana's. stack: areas that sum up. width: of 24."""

    title: str
    text: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    stack: bool = False
    width: int = 12


@dataclass(frozen=True, slots=True)
class Row:
    """A heading, and the panels below it."""

    title: str
    panels: tuple[Panel, ...]


def tables(path: Path = TABLES) -> dict[str, tuple[str, tuple[Row, ...]]]:
    """Title and rows by UID."""
    return {
        each["uid"]: (
            each["title"],
            tuple(Row(row["title"], tuple(_panel(panel) for panel in row["panel"])) for row in each["row"]),
        )
        for each in tomllib.loads(path.read_text())["dashboard"]
    }


def _panel(said: dict[str, Any]) -> Panel:
    queries = tuple((legend, query.replace("$J", JOBS)) for legend, query in said.pop("queries"))
    return Panel(queries=queries, **said)


def dashboard(uid: str, title: str, rows: tuple[Row, ...]) -> dict[str, Any]:
    """Grafana's model of one."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": row.title, "collapsed": False, "panels": []}
            | {"gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}}
        )
        x, y = 0, y + 1
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + HEIGHT
            place = {"x": x, "y": y, "w": panel.width, "h": HEIGHT}
            panels.append(panel_model(len(panels) + 1, panel, place))
            x += panel.width
        y += HEIGHT
    return {
        "uid": uid,
        "title": title,
        "tags": ["kvterrace"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "30s",
        "links": [
            {"type": "dashboards", "title": "kvterrace", "tags": ["kvterrace"], "asDropdown": True, "keepTime": True}
        ],
        "templating": {"list": variables()},
        "panels": panels,
    }


def panel_model(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    """Grafana's model of one."""
    custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 70 if panel.stack else 8, "showPoints": "never"}
    if panel.stack:
        custom["stacking"] = {"mode": "normal"}
    colours = [
        {
            "matcher": {"id": "byName", "options": tier},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for tier, colour in TIER_COLOURS.items()
        if any(legend == "{{tier}}" for legend, _ in panel.queries)
    ]
    time_series = {"custom": custom, "color": {"mode": "palette-classic"}}
    model: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0 if panel.stack else None}
            | (time_series if panel.kind == "timeseries" else {}),
            "overrides": colours,
        },
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for index, (legend, query) in enumerate(panel.queries)
        ],
    }
    model["options"] = (
        {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
        if panel.kind == "timeseries"
        else {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area", "colorMode": "value"}
    )
    if model["fieldConfig"]["defaults"]["min"] is None:
        del model["fieldConfig"]["defaults"]["min"]
    return model


def variables() -> list[dict[str, Any]]:
    """What a viewer chooses: where from, and of which jobs."""
    everybody = 'label_values({__name__=~"kvterrace_engine_ready|kvterrace_store_acquires_total"}, job)'
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "job",
            "label": "Job",
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": everybody, "refId": "job"},
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
            "refresh": 2,
        },
    ]


def texts() -> dict[str, str]:
    """File name: content."""
    return {
        f"{uid}.json": json.dumps(dashboard(uid, title, rows), indent=1, ensure_ascii=False) + "\n"
        for uid, (title, rows) in tables().items()
    }


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
