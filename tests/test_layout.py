"""The folder map of README.md holds: packages listed, import arrows kept, torch where it belongs, files short."""

import ast
import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "radix": set(),
    "proto": set(),
    "kernels": set(),
    "kvstore": {"radix", "proto"},
    "connector": {"kvstore", "radix", "proto", "kernels"},
    "engine": {"connector", "radix", "kernels"},
}
NO_TORCH = {"radix", "proto", "kvstore"}
ENGINE_EXTRA = {"torch", "triton", "tokenizers", "safetensors", "gguf", "transformers", "jinja2", "httpx"}
EXTRAS = {"kvstore/text.py": {"tokenizers"}}  # of the extra `text`, imported when it is asked for
MAX_LINES = 400


def sources(folder: str) -> Iterator[Path]:
    return (path for path in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in path.name)


def imports(path: Path, folder: str) -> Iterator[tuple[str, int]]:
    """Absolute names of what `path` imports, as ("kvterrace.radix", line) or ("torch", line)."""
    package = ["kvterrace", folder, *path.relative_to(ROOT / folder).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield prefix, node.lineno
            yield from ((f"{prefix}.{alias.name}", node.lineno) for alias in node.names)


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_import_arrows_hold(folder: str) -> None:
    wrong = []
    for path in sources(folder):
        for name, line in imports(path, folder):
            parts = name.split(".")
            if parts[0] == "kvterrace" and len(parts) > 1 and parts[1] not in MAY_IMPORT[folder] | {folder}:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong


@pytest.mark.parametrize("folder", sorted(NO_TORCH))
def test_base_install_needs_no_engine_dependency(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(folder)
        for name, line in imports(path, folder)
        if name.split(".")[0] in ENGINE_EXTRA - EXTRAS.get(path.relative_to(ROOT).as_posix(), set())
    ]
    assert not wrong


def test_every_package_folder_is_listed_for_the_wheel() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {
        "kvterrace." + ".".join(path.parent.relative_to(ROOT).parts)
        for folder in MAY_IMPORT
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert set(config["packages"]) == found


@pytest.mark.parametrize("name", sorted(MAY_IMPORT))
def test_bare_folder_names_are_not_importable(name: str) -> None:
    assert importlib.util.find_spec(name) is None, f"the repository root is on sys.path: {sys.path}"


def test_files_stay_short() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for folder in [*MAY_IMPORT, "tests", "bench", "deploy"]
        for path in sources(folder)
        if (lines := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert not long
