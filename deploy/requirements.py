"""The requirements of some extras: `python deploy/requirements.py pyproject.toml dashboard,events`, one a line.

For container builds, where packages are installed in a layer of their own, before the source is there.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """Of the base install and of these extras. KeyError: there is no such extra."""
    project = tomllib.loads(pyproject.read_text())["project"]
    known = project["optional-dependencies"]
    found = list(project["dependencies"])
    for extra in extras:
        if extra not in known:
            raise KeyError(f"there is no extra {extra!r}; there are {', '.join(sorted(known))}")
        found += known[extra]
    return sorted(set(found))


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    extras = [each for each in sys.argv[2].split(",") if each]
    try:
        print("\n".join(requirements(Path(sys.argv[1]), extras)))
    except KeyError as error:
        print(f"requirements.py: {error.args[0]}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
