"""docs/metrics.md is what the program has: a metric that is new, gone or says something else makes this fail."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]


def _load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_program_has():
    pytest.importorskip("torch", reason="the engine's metrics want the engine extra")
    script = _load(ROOT / "deploy" / "metrics_doc.py")
    assert script.TARGET.read_text() == script.page(), "run python deploy/metrics_doc.py"


def test_the_catalog_has_every_row_of_the_page():
    families = _load(ROOT / "tests" / "metrics_catalog.py").families()
    rows = (ROOT / "docs" / "metrics.md").read_text().count("\n| `kvterrace_")
    assert len(families) == len({each.name for each in families}) == rows > 150
    assert all(each.name.endswith("_total") == (each.kind == "counter") for each in families)
    units = ("_bytes", "_seconds", "_tokens", "_blocks")
    assert all(each.name.endswith(units) for each in families if each.kind == "histogram")
