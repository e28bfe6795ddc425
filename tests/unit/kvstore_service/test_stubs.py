"""The committed stubs are what protoc makes of proto/kv.proto."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
STUBS = ("kv_pb2.py", "kv_pb2.pyi", "kv_pb2_grpc.py")


def test_regenerating_the_stubs_changes_nothing(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    source = ["-I", f"kvterrace/proto={ROOT / 'proto'}", "kvterrace/proto/kv.proto"]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", *source[:2], *outputs, source[2]], check=True, timeout=60
    )
    stale = [
        name
        for name in STUBS
        if (tmp_path / "kvterrace" / "proto" / name).read_text() != (ROOT / "proto" / name).read_text()
    ]
    assert not stale, "run `make stubs` and commit"
