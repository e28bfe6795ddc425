"""`kvterrace pin`, `unpin`, `ttl` and `priority`: what stored prefixes are worth keeping."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ...proto import FieldError, Retention
from ...proto import kv_pb2 as pb
from ..service.admin import retain
from ..service.channel import Address
from ..status_view import count, plain
from .common import (
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

BelowOption = Annotated[
    bool, typer.Option("--below", help="With --prefix or --tokens: also all that begins with that prefix.")
]


_SAYS = {
    "pin": ("pinned", "would pin"),
    "unpin": ("unpinned", "would unpin"),
    "ttl": ("set the ttl of", "would set the ttl of"),
    "priority": ("set the priority of", "would set the priority of"),
}


@dataclass(frozen=True, slots=True)
class _Flags:
    """What the four have in common."""

    namespace: str | None
    prefix: str | None
    tokens: Path | None
    tenant: str
    below: bool
    dry_run: bool
    as_json: bool
    address: Address | None


def pin(
    namespace: NamespaceOption = None,
    prefix: PrefixOption = None,
    tokens: TokensOption = None,
    tenant: TenantOption = "",
    below: BelowOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    address: AddressOption = None,
) -> None:
    """Let blocks leave last, within the store's budget for pins (--pin-share of serve)."""
    _retain("pin", _Flags(namespace, prefix, tokens, tenant, below, dry_run, as_json, address), pinned=True)


def unpin(
    namespace: NamespaceOption = None,
    prefix: PrefixOption = None,
    tokens: TokensOption = None,
    tenant: TenantOption = "",
    below: BelowOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    address: AddressOption = None,
) -> None:
    """Take back a pin."""
    _retain("unpin", _Flags(namespace, prefix, tokens, tenant, below, dry_run, as_json, address), pinned=False)


def ttl(  # noqa: PLR0913, PLR0917  # a flag is a parameter
    seconds: Annotated[float, typer.Argument(help="Without use, until a block leaves first; 0 = no limit.")],
    namespace: NamespaceOption = None,
    prefix: PrefixOption = None,
    tokens: TokensOption = None,
    tenant: TenantOption = "",
    below: BelowOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    address: AddressOption = None,
) -> None:
    """Let blocks leave first once nobody has used them for so long."""
    _retain("ttl", _Flags(namespace, prefix, tokens, tenant, below, dry_run, as_json, address), ttl_s=seconds)


def priority(  # noqa: PLR0913, PLR0917  # a flag is a parameter
    value: Annotated[int, typer.Argument(help="0 (first to leave) to 100; 50 is everyone's.")],
    namespace: NamespaceOption = None,
    prefix: PrefixOption = None,
    tokens: TokensOption = None,
    tenant: TenantOption = "",
    below: BelowOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    address: AddressOption = None,
) -> None:
    """Say how much blocks are worth keeping."""
    _retain("priority", _Flags(namespace, prefix, tokens, tenant, below, dry_run, as_json, address), priority=value)


def _retain(command: str, flags: _Flags, **said: Any) -> None:
    """Set one field of the retention of what the flags mean."""
    if not (flags.namespace or flags.prefix or flags.tenant):
        fail(command, "say which blocks: --prefix KEY, --namespace NAME (with or without --tokens) or --tenant NAME", 2)
    if flags.tokens is not None and flags.namespace is None:
        fail(command, "--tokens needs --namespace: token ids mean something only there", 2)
    try:
        wish = Retention(**said)
    except FieldError as error:
        fail(command, str(error), 2)
    to = address_of(flags.address)
    request = pb.RetainRequest(
        fingerprint=fingerprint_of(command, to, flags.namespace),
        key=key_of(command, "--prefix", flags.prefix),
        tokens=packed_tokens(command, flags.tokens),
        tenant=flags.tenant,
        below=flags.below,
        dry_run=flags.dry_run,
        retention=pb.RetentionSpec(priority=wish.priority, ttl_s=wish.ttl_s, pinned=wish.pinned),
        set=list(said),
    )
    reply = ask(command, retain(to, request, timeout_s=CHANGE_TIMEOUT_S))
    if flags.as_json:
        print_json(plain(reply) | {"dry_run": flags.dry_run})
    else:
        done, would = _SAYS[command]
        typer.echo(f"{would if flags.dry_run else done} {count(reply.blocks, 'block')}")
