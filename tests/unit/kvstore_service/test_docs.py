"""What a user can say to the program stands in the documents."""

from pathlib import Path

import pytest
import typer
from kvterrace.kvstore.cli import app
from kvterrace.kvstore.config import ServeConfig
from kvterrace.kvstore.options import flag

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
DOCS = "\n".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])


@pytest.mark.parametrize("name", ServeConfig.model_fields)
def test_every_option_of_serve_is_documented_and_describes_itself(name: str) -> None:
    assert flag(name) in DOCS
    assert ServeConfig.model_fields[name].description


@pytest.mark.parametrize("name", typer.main.get_group(app).commands)
def test_every_command_is_documented(name: str) -> None:
    assert f"kvterrace {name}" in DOCS or f"`{name}`" in DOCS
