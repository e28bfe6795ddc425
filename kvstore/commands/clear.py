"""`kvterrace clear` and `kvterrace flush`."""

from typing import Annotated

import typer

from ...proto import kv_pb2 as pb
from ..service.admin import clear_blocks, flush_store
from ..status_view import count, format_bytes, plain
from .common import (
    CALL_TIMEOUT_S,
    CHANGE_TIMEOUT_S,
    AddressOption,
    DryRunOption,
    JsonOption,
    NamespaceOption,
    PrefixOption,
    TenantOption,
    TokensOption,
    address_of,
    ask,
    fail,
    fingerprint_of,
    key_of,
    packed_tokens,
    print_json,
)


def clear(
    address: AddressOption = None,
    namespace: NamespaceOption = None,
    prefix: PrefixOption = None,
    tokens: TokensOption = None,
    tenant: TenantOption = "",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Drop what a sidecar holds, in every tier and for good: all, a namespace, a tenant's, what begins with some
    tokens, or a prefix of `kvterrace ls` with what hangs below it. Blocks being read go when their readers are done."""
    if tokens is not None and namespace is None:
        fail("clear", "--tokens needs --namespace: token ids mean something only there", 2)
    to = address_of(address)
    request = pb.ClearRequest(
        fingerprint=fingerprint_of("clear", to, namespace),
        key=key_of("clear", "--prefix", prefix),
        tokens=packed_tokens("clear", tokens),
        tenant=tenant,
        dry_run=dry_run,
    )
    reply = ask("clear", clear_blocks(to, request, timeout_s=CHANGE_TIMEOUT_S))
    if as_json:
        print_json(plain(reply) | {"dry_run": dry_run})
        return
    would = "would drop" if dry_run else "dropped"
    typer.echo(f"{would} {count(reply.blocks, 'block')} ({format_bytes(reply.bytes)})")


def flush(
    address: AddressOption = None,
    deadline: Annotated[float, typer.Option(help="Seconds it may take.")] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Write what waits for the NVMe tier and sync it. Exit code 1 when that was not done by the deadline."""
    reply = ask("flush", flush_store(address_of(address), deadline_s=deadline, timeout_s=CALL_TIMEOUT_S))
    if as_json:
        print_json(plain(reply))
    if not reply.done:
        fail("flush", f"not written yet: {count(reply.pending_blocks, 'block')}", 1)
    if not as_json:
        typer.echo("everything is written")
