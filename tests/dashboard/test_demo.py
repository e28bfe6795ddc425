"""`kvterrace demo --keep` leaves a dashboard behind and says where; a demo that ends serves none."""

from pathlib import Path

import pytest
from kvterrace.engine.demo.host import DemoOptions, Host
from kvterrace.engine.demo.run import _show_addresses
from rich.console import Console

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("keep", [True, False])
def test_the_demo_serves_a_dashboard_when_it_stays(tmp_path: Path, keep: bool) -> None:
    host = Host(DemoOptions(tmp_path / "model", (), keep=keep), tmp_path)
    try:
        flags = host.sidecar._arguments
        assert ("--http" in flags) is keep
        if keep:
            console = Console(record=True, width=200)
            _show_addresses(host, console)
            assert f"http://{flags[flags.index('--http') + 1]}/" in console.export_text()
    finally:
        host.close()
