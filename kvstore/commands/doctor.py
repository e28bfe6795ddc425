"""`kvterrace doctor`: what stands in the way, and what to do about it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..doctor.finding import Finding, Level
from ..doctor.run import Wanted, examine_all, worst
from ..service.channel import address_parts, target_of
from .common import AddressOption, JsonOption, fail, print_json
from .engines import CaOption, EnginesOption, KeyOption, engines_of

ENGINE_TIMEOUT_S = 5.0
_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def doctor(
    address: AddressOption = None,
    engine: EnginesOption = None,
    nvme: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH[:SIZE]", help="A path of the NVMe tier; may be given several times."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of `kvterrace serve`.")] = None,
    api_key_file: KeyOption = None,
    engine_ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at this machine, a configuration, a sidecar and engines: what is wrong, and what to do. Exit code 1 when
    something fails. It changes nothing."""
    if address is not None:
        try:
            target_of(address_parts(address)[0])
        except ValueError as error:
            fail("doctor", f"--address: {error}", 2)
    engines = engines_of("doctor", engine, api_key_file, engine_ca, ENGINE_TIMEOUT_S)
    found = examine_all(Wanted(address, engines, nvme or (), config))
    if as_json:
        rows = [{"what": each.what, "level": each.level.value, "said": each.said, "do": each.do} for each in found]
        print_json({"level": worst(found).value, "findings": rows})
    else:
        show(found, Console())
    if worst(found) is Level.FAIL:
        sys.exit(1)


def show(found: Sequence[Finding], console: Console) -> None:
    """A line each, worst last, so that it is what one sees; then how many of each."""
    order = list(_COLOURS)
    for each in sorted(found, key=lambda one: order.index(one.level)):
        line = Text(f"{each.level.value:<5}", style=_COLOURS[each.level])
        console.print(line + Text(each.what, style="bold") + Text(f": {each.said}", style="default"), soft_wrap=True)
        if each.do:
            console.print(Text(f"     -> {each.do}", style="default"), soft_wrap=True)
    counts = {level: sum(each.level is level for each in found) for level in Level}
    console.print(", ".join(f"{counts[level]} {level.value}" for level in Level), highlight=False)
