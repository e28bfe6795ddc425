"""ClientTyper: commands that talk to a sidecar show who calls, without each of them having the flags for it."""

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from ..options import default_uds
from ..service.channel import Place
from .credentials import CredentialFiles, Credentials

# In the environment these have a prefix of their own: KVTERRACE_TLS_CERT is the server's.
_FLAGS: dict[str, Any] = {
    "token_file": Annotated[
        Path | None, typer.Option(envvar="KVTERRACE_CLIENT_TOKEN_FILE", help="File of the token to show.")
    ],
    "tls_ca": Annotated[
        Path | None,
        typer.Option(envvar="KVTERRACE_CLIENT_TLS_CA", help="Speak TLS: PEM file of the server's CA, or 'system'."),
    ],
    "tls_cert": Annotated[
        Path | None, typer.Option(envvar="KVTERRACE_CLIENT_TLS_CERT", help="PEM file of the certificate to show.")
    ],
    "tls_key": Annotated[
        Path | None, typer.Option(envvar="KVTERRACE_CLIENT_TLS_KEY", help="PEM file of the key of --tls-cert.")
    ],
}


class ClientTyper(typer.Typer):
    """A command with a parameter `address` also gets --token-file, --tls-ca, --tls-cert and --tls-key. When one of them
    is given, its address is a Place."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        add = super().command(name, **options)

        def register(function: Callable[..., None]) -> Callable[..., None]:
            add(_with_credentials(name or function.__name__, function))
            return function

        return register


def _with_credentials(command: str, function: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(function)
    if "address" not in signature.parameters:
        return function

    @functools.wraps(function)
    def call(**given: Any) -> None:
        token, ca, cert, key = (given.pop(flag) for flag in _FLAGS)
        files = CredentialFiles(token, ca, cert, key)
        if files != CredentialFiles():
            try:
                given["address"] = Place(given["address"] or f"unix:{default_uds()}", Credentials(files))
            except ConfigError as error:
                typer.echo(f"kvterrace {command}: {error}", err=True)
                sys.exit(2)
        function(**given)

    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _FLAGS.items()
    ]
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()]
    call.__signature__ = signature.replace(parameters=[*named, *more])  # pyright: ignore[reportAttributeAccessIssue]
    return call
