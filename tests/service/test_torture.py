"""A short `make torture`: a writer of the NVMe tier is killed again and again, and nothing that was stored is lost."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.service

SCRIPT = Path(__file__).parents[1] / "torture" / "torture.py"


@pytest.mark.parametrize(("rounds", "flags"), [(20, []), (10, ["--encrypted"])], ids=["clear", "encrypted"])
def test_thirty_kills_lose_nothing(tmp_path, rounds, flags):
    command = [sys.executable, str(SCRIPT), "--rounds", str(rounds), "--seed", "1", "--dir", str(tmp_path), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{rounds} kills" in done.stderr
