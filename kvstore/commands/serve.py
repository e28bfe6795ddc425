"""`kvterrace serve`."""

import asyncio
from pathlib import Path

import typer

from ..config import load_config
from ..errors import KvterraceError
from ..serve import serve as run_serve
from ..serve_flags import add_serve
from .common import fail

serve_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def _serve(config: Path | None, **flags: object) -> None:
    """Run the store of this host until SIGTERM or Ctrl-C. Flags win over KVTERRACE_* variables over --config."""
    try:
        asyncio.run(run_serve(load_config(flags, config), announce=typer.echo))
    except KvterraceError as error:
        fail("serve", str(error), 2)


add_serve(serve_app, _serve)
