"""`kvterrace pin`, `unpin`, `ttl` and `priority`: what stored prefixes are worth keeping."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ...proto import FieldError, Retention
from ...radix import pack_tokens
from ..errors import ConfigError
from ..service.admin import retain_blocks
from ..token_file import read_token_ids
from .common import (
    CALL_TIMEOUT_S,
    AddressOption,
    NamespaceOption,
    TokensOption,
    address_of,
    ask,
    fail,
    fingerprint_of,
)


def pin(namespace: NamespaceOption, tokens: TokensOption = None, address: AddressOption = None) -> None:
    """Let blocks leave last, within the store's budget for pins (--pin-share of serve)."""
    _retain("pin", address, namespace, tokens, pinned=True)


def unpin(namespace: NamespaceOption, tokens: TokensOption = None, address: AddressOption = None) -> None:
    """Take back a pin."""
    _retain("unpin", address, namespace, tokens, pinned=False)


def ttl(
    seconds: Annotated[float, typer.Argument(help="Without use, until a block leaves first; 0 = no limit.")],
    namespace: NamespaceOption,
    tokens: TokensOption = None,
    address: AddressOption = None,
) -> None:
    """Let blocks leave first once nobody has used them for so long."""
    _retain("ttl", address, namespace, tokens, ttl_s=seconds)


def priority(
    value: Annotated[int, typer.Argument(help="0 (first to leave) to 100; 50 is everyone's.")],
    namespace: NamespaceOption,
    tokens: TokensOption = None,
    address: AddressOption = None,
) -> None:
    """Say how much blocks are worth keeping."""
    _retain("priority", address, namespace, tokens, priority=value)


def _retain(command: str, address: str | None, namespace: str, tokens: Path | None, **said: Any) -> None:
    """Set one field of the retention of a prefix or a namespace."""
    try:
        wish = Retention(**said)
        packed = pack_tokens(read_token_ids(tokens)) if tokens is not None else b""
    except (FieldError, ConfigError) as error:
        fail(command, str(error), 2)
    call = retain_blocks(
        address_of(address), fingerprint_of(command, namespace), packed, wish, list(said), timeout_s=CALL_TIMEOUT_S
    )
    typer.echo(f"{ask(command, call)} blocks")
