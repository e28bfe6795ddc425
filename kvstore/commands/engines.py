"""Options of commands that ask engines, and what they come to."""

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..engine_http import EngineAccess, EngineHttp
from ..errors import ConfigError
from ..security.credentials import read_token
from .common import fail

EnginesOption = Annotated[
    list[str] | None,
    typer.Option("--engine", metavar="URL", help="An engine, http://HOST:PORT; may be given several times."),
]
KeyOption = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file", envvar="KVTERRACE_CLIENT_API_KEY_FILE", help="File of the API key to show to engines."
    ),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--engine-ca", envvar="KVTERRACE_CLIENT_ENGINE_CA", help="PEM file of the CA of engines that speak TLS."
    ),
]


def engines_of(
    command: str, urls: Sequence[str] | None, key: Path | None, ca: Path | None, timeout_s: float
) -> list[EngineHttp]:
    """The end of the command for an address that is none, or a file that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=str(ca)) if ca is not None else None
    except (OSError, ssl.SSLError) as error:
        fail(command, f"--engine-ca: {ca} cannot be used: {error}", 2)
    try:
        access = EngineAccess(read_token(key, "--api-key-file") if key is not None else "", context)
        return [EngineHttp(url, access, timeout_s=timeout_s) for url in urls or ()]
    except (ConfigError, ValueError) as error:
        text = str(error)
        fail(command, text if text.startswith("--") else f"--engine: {text}", 2)
