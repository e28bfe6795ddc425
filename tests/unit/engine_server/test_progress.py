"""What the user sees while a model loads."""

import io

import pytest
from kvterrace.engine.server.progress import LoadingDisplay
from rich.console import Console

pytestmark = pytest.mark.unit


def show(*, terminal: bool) -> str:
    out = io.StringIO()
    with LoadingDisplay(Console(file=out, force_terminal=terminal, width=80)) as display:
        for percent in range(101):
            display.update(percent / 100, f"layer {percent} [of 100]")
    return out.getvalue()


def test_plain_lines_are_few_and_end_at_the_whole():
    lines = show(terminal=False).splitlines()
    assert len(lines) == 11
    assert lines[0] == "  0% layer 0 [of 100]"
    assert lines[-1] == "100% layer 100 [of 100]"


def test_a_terminal_gets_a_bar_that_vanishes():
    text = show(terminal=True)
    assert "━" in text
    assert "layer 100 [of 100]" in text
    assert text.endswith("\x1b[2K")  # the line is erased
