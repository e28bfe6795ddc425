"""The flags of `kvterrace serve`: one for each field of ServeConfig, in the words of its description."""

import inspect
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from .config import ServeConfig
from .options import flag

CONFIG = Annotated[Path | None, typer.Option(help="TOML file with any of these as keys.")]


def add_serve(program: typer.Typer, run: Callable[..., None]) -> None:
    """Make `run(config, **flags)` the command `serve`. A flag that is not given is None."""

    def serve(**given: Any) -> None:
        run(given.pop("config"), **given)

    fields = [_parameter(name, field) for name, field in ServeConfig.model_fields.items()]
    config = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=CONFIG)
    serve.__signature__ = inspect.Signature([*fields, config])  # pyright: ignore[reportFunctionMemberAccess]
    serve.__annotations__ = {}
    serve.__doc__ = run.__doc__
    program.command("serve")(serve)


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    kind = _kind(field.annotation)
    # A bool's own name, so that typer makes no --no-... of it.
    option = typer.Option(flag(name), help=field.description, show_default=False)
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _kind(annotation: Any) -> Any:
    """What the command line takes for a field of that type: text, which is for the field to understand, unless it is
    a switch or may be given several times."""
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) in (tuple, list):
        return list[str]
    return bool if annotation is bool else str
