"""The Triton kernels without a GPU: their arithmetic in the interpreter, and that the compiler takes them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attention_cases import CASES

pytestmark = pytest.mark.unit


def run(script: str, *arguments: str, interpret: bool, cache: Path) -> Any:
    """The JSON that a script of this folder writes. Triton decides at its first import whether to interpret."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment |= {"PYTHONSAFEPATH": "1", "TRITON_CACHE_DIR": str(cache)} | (
        {"TRITON_INTERPRET": "1"} if interpret else {}
    )
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script)), *arguments],
        env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[float, bool]]:
    return run("attention_cases.py", interpret=True, cache=tmp_path_factory.mktemp("triton"))


@pytest.mark.parametrize("name", CASES)
def test_like_the_reference(interpreted: dict[str, tuple[float, bool]], name: str):
    difference, same_pool = interpreted[name]
    assert difference <= 1e-5
    assert same_pool


def test_block_moves_like_the_plain_ones(tmp_path: Path):
    assert run("triton_programs.py", "move", interpret=True, cache=tmp_path)


def test_kv_codecs_like_the_plain_ones(tmp_path: Path):
    assert run("quantise_cases.py", interpret=True, cache=tmp_path) == []


def test_kernels_compile_for_a_gpu(tmp_path: Path):
    """The interpreter takes Python that the compiler refuses."""
    kernels = run("triton_programs.py", "compile", interpret=False, cache=tmp_path)
    attention = {"write_kernel", "chunk_kernel", "decode_kernel", "merge_kernel"}
    assert set(kernels) == attention | {"move_kernel", "encode_kernel", "recover_kernel"}


def test_kernels_import_without_triton():
    hidden = "import sys; sys.modules['triton'] = None; from kvterrace.kernels import make_backend; make_backend('cpu')"
    subprocess.run([sys.executable, "-c", hidden], check=True, timeout=120)
