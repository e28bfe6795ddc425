"""The processes and clients of tests/service/sidecar."""

import importlib.util
import sys
from pathlib import Path

SIDECAR = Path(__file__).parents[1] / "sidecar" / "conftest.py"
spec = importlib.util.spec_from_file_location("kvterrace_cli_sidecar", SIDECAR)
assert spec is not None
assert spec.loader is not None
module = sys.modules["kvterrace_cli_sidecar"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

folder, own, connect, namespace, tools = module.folder, module.own, module.connect, module.namespace, module.tools
