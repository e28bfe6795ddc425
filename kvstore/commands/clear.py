"""`kvterrace clear` and `kvterrace flush`."""

from typing import Annotated

import typer

from ..service.admin import clear_store, flush_store
from .common import CALL_TIMEOUT_S, AddressOption, address_of, ask, fail, fingerprint_of


def clear(
    address: AddressOption = None,
    namespace: Annotated[str | None, typer.Option(help="Fingerprint in hex of the one to clear; else all.")] = None,
    tenant: Annotated[str, typer.Option(help="Clear all namespaces of this tenant.")] = "",
) -> None:
    """Drop what a sidecar holds, in every tier and for good; blocks being read go when their readers are done."""
    fingerprint = fingerprint_of("clear", namespace)
    call = clear_store(address_of(address), fingerprint, timeout_s=CALL_TIMEOUT_S, tenant=tenant)
    dropped = ask("clear", call)
    typer.echo(f"dropped {dropped} blocks")


def flush(
    address: AddressOption = None,
    deadline: Annotated[float, typer.Option(help="Seconds it may take.")] = 60.0,
) -> None:
    """Write what waits for the NVMe tier and sync it. Exit code 1 when that was not done by the deadline."""
    reply = ask("flush", flush_store(address_of(address), deadline_s=deadline, timeout_s=CALL_TIMEOUT_S))
    if not reply.done:
        fail("flush", f"{reply.pending_blocks} blocks are not written yet", 1)
    typer.echo("everything is written")
