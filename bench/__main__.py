"""`make bench [ONLY=NAME]`: run the benchmarks of this folder, print each figure, write bench/results/NAME.json.

A benchmark is a module here with `run() -> list[dict]`, each entry {"metric", "value", "unit", "of"}: medians of five
or more interleaved repeats; for a ratio, `of` names what it was taken against in the same run.
"""

import importlib
import json
import platform
import sys
import time
import types
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
PACKAGE = "kvterrace_bench"


def names() -> list[str]:
    """The benchmarks here, by module name."""
    return sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))


def run(name: str) -> list[dict[str, object]]:
    """Run one benchmark and write its results file."""
    module = importlib.import_module(f"{PACKAGE}.{name}")
    results: list[dict[str, object]] = module.run()
    target = HERE / "results" / f"{name}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(results, indent=1) + "\n")
    return results


def make_package() -> None:
    """Make this folder importable under a name of its own: on sys.path its radix.py would answer to `import radix`."""
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(HERE)]
    sys.modules[PACKAGE] = package


def main(only: list[str]) -> int:
    console = Console()
    unknown = [name for name in only if name not in names()]
    if unknown:
        console.print(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(names())}")
        return 2
    console.print(f"{platform.machine()}, {platform.processor() or 'cpu'}, Python {platform.python_version()}")
    make_package()
    for name in only or names():
        began = time.monotonic()
        table = Table(title=name)
        for column in ("metric", "value", "unit", "of"):
            table.add_column(column, justify="right" if column == "value" else "left")
        for row in run(name):
            table.add_row(str(row["metric"]), f"{row['value']:.4g}", str(row["unit"]), str(row["of"]))
        console.print(table)
        console.print(f"{name}: {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
