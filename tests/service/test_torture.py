"""A short `make torture`: a writer of the NVMe tier is killed again and again, and nothing that was stored is lost."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.service

SCRIPT = Path(__file__).parents[1] / "torture" / "torture.py"


def test_thirty_kills_lose_nothing(tmp_path):
    command = [sys.executable, str(SCRIPT), "--rounds", "30", "--seed", "1", "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "30 kills" in done.stderr
