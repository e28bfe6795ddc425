"""ChatTemplate: a model's own Jinja template, rendered in a sandbox.

Templates come with downloaded models and are not trusted: ImmutableSandboxedEnvironment, no loader, and only plain
data (dicts, lists, strings, numbers) as input.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import ChatTemplateError


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    # Jinja's own filter escapes for HTML, which would put < into a prompt.
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, **options)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class ChatTemplate:
    """source: one template, or templates by name ("default", "tool_use"). special: bos_token and so on, as text."""

    def __init__(self, source: str | Mapping[str, str], special: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        sources = {"default": source} if isinstance(source, str) else source
        try:
            self._templates = {name: environment.from_string(text) for name, text in sources.items()}
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the model's chat template does not parse: {error}") from None
        self._special = dict(special)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        """Raises ChatTemplateError with the template's own words, if it refuses these messages."""
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise ChatTemplateError(f"the model has no {name} chat template, only {', '.join(self._templates)}")
        # Templates test for missing keys, and print None where a client sent null.
        given = [{key: value for key, value in message.items() if value is not None} for message in messages]
        try:
            return self._templates[name].render(
                messages=given, tools=tools, add_generation_prompt=add_generation_prompt, **self._special
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise ChatTemplateError(f"the chat template refused these messages: {error}") from error
