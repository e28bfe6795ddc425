"""`kvterrace bench`: what this machine gives kvterrace, within half a minute."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..arena import DEFAULT_DIRECTORY
from ..bench.disk import measure_disk
from ..bench.memory import measure_memory
from ..bench.network import measure_network
from ..bench.row import BenchError, Row
from ..bench.sidecar import measure_sidecar, own_sidecar
from ..errors import KvterraceError
from ..service.channel import Address, address_parts, target_of
from ..verify.report import machine_facts
from .common import JsonOption, fail, print_json

PART_S = 1.0  # of a figure, about


def bench(
    address: Annotated[
        str | None,
        typer.Option("--address", help="Measure this sidecar (unix:/PATH or HOST:PORT), not one started for it."),
    ] = None,
    nvme: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Also a disk, by a folder on it; writes a few hundred MB.")
    ] = None,
    arena_dir: Annotated[
        Path, typer.Option(help="Where the sidecar started for it has its arena.")
    ] = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Measure memory, a sidecar, the network stack and, if asked, a disk: each beside what the machine does at best.
    Half a minute at most, and no more than a first look; `make bench` of the sources is thorough."""
    if address is not None:
        try:
            target_of(address_parts(address)[0])
        except ValueError as error:
            fail("bench", f"--address: {error}", 2)
    if nvme is not None and not nvme.is_dir():
        fail("bench", f"--nvme: {nvme} is not a folder", 2)
    began = time.monotonic()
    try:
        rows = list(_rows(address, nvme, arena_dir, Console(stderr=True)))
    except BenchError as error:
        fail("bench", str(error), 1)
    except (KvterraceError, OSError) as error:
        fail("bench", str(error), 1)
    if as_json:
        print_json(as_document(rows, time.monotonic() - began))
    else:
        Console().print(table(rows))


def as_document(rows: list[Row], seconds: float) -> dict[str, object]:
    """For --json."""
    return {
        "machine": machine_facts(),
        "seconds": round(seconds, 1),
        "rows": [
            {
                "name": row.name,
                "value": row.value,
                "unit": row.unit,
                "limit": row.limit or None,
                "limit_name": row.limit_name,
                "ratio": row.ratio,
            }
            for row in rows
        ],
    }


def table(rows: list[Row]) -> Table:
    """Ratio: 1.00 is all that is possible."""
    shown = Table("what", "measured", "limit", "of it", "the limit is")
    for row in rows:
        limit = f"{row.limit:.3g} {row.unit}" if row.limit else ""
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else ""
        shown.add_row(row.name, f"{row.value:.3g} {row.unit}", limit, ratio, row.limit_name)
    return shown


def _rows(address: Address | None, nvme: Path | None, arena_dir: Path, console: Console) -> Iterator[Row]:
    with console.status("sidecar") as status:  # first: what cannot be measured is told at once
        given = contextlib.nullcontext(address) if address is not None else own_sidecar(arena_dir)
        with given as where:
            rows = asyncio.run(measure_sidecar(where, PART_S))
        status.update("memory")
        yield from measure_memory(PART_S)
        yield from rows
        status.update("network")
        yield measure_network(PART_S)
        if nvme is not None:
            status.update("disk")
            yield from measure_disk(nvme, PART_S)
