"""Runs the product's own Lua scripts as Valkey does, on whatever answers `redis.call`. Strings are bytes."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from lupa.lua51 import LuaRuntime

_lua: Any = LuaRuntime(encoding=None, unpack_returned_tuples=False)
_compiled: dict[str, Any] = {}


class ReplyError(Exception):
    """An error that Valkey answers with."""


class Status(bytes):
    """A simple string, such as OK."""


def run(text: str, keys: Sequence[bytes], args: Sequence[bytes], call: Callable[[list[bytes]], object]) -> object:
    """What the script returns, as a client sees it. ReplyError."""
    function = _compiled.get(text)
    if function is None:
        wrapped = f"return function(redis, KEYS, ARGV)\n{text}\nend"
        function = _compiled[text] = _lua.execute(wrapped.encode())
    redis = _lua.table_from({b"call": _caller(call), b"pcall": _protected(call)})
    return _from_lua(function(redis, _lua.table_from(list(keys)), _lua.table_from(list(args))))


def _caller(call: Callable[[list[bytes]], object]) -> Callable[..., object]:
    return lambda *parts: _to_lua(call([_text(part) for part in parts]))


def _protected(call: Callable[[list[bytes]], object]) -> Callable[..., object]:
    def pcall(*parts: object) -> object:
        try:
            return _to_lua(call([_text(part) for part in parts]))
        except ReplyError as error:
            return _lua.table_from({b"err": str(error).encode()})

    return pcall


def _text(value: object) -> bytes:
    return value if isinstance(value, bytes) else f"{value:.17g}".encode()


def _to_lua(value: object) -> object:
    if value is None:
        return False
    if isinstance(value, Status):
        return _lua.table_from({b"ok": bytes(value)})
    if isinstance(value, list):
        return _lua.table_from([_to_lua(each) for each in cast("list[object]", value)])
    return value


def _from_lua(value: Any) -> object:
    if value is None or value is False:
        return None
    if value is True:
        return 1
    if isinstance(value, float):
        return int(value)
    if isinstance(value, bytes | int):
        return value
    if value[b"err"] is not None:
        raise ReplyError(value[b"err"].decode())
    if value[b"ok"] is not None:
        return Status(value[b"ok"])
    rows: list[object] = []
    while (each := value[len(rows) + 1]) is not None:  # as Valkey: up to the first nil
        rows.append(_from_lua(each))
    return rows
