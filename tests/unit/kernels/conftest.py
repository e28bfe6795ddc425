"""Makes this folder's case tables importable, without putting the folder on the path."""

import importlib.util
import sys
from pathlib import Path


def load(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


load("attention_cases")
load("quantise_cases")
