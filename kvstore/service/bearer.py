"""A channel that shows a token with every call."""

from functools import partial
from typing import Any, cast

import grpc
import grpc.aio


class BearerChannel:
    """What callers use of a grpc.aio.Channel, with `token` in the metadata of each call."""

    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        self._channel = channel
        self._with = {"metadata": (("authorization", f"Bearer {token}"),)}

    def unary_unary(self, *args: Any, **options: Any) -> Any:
        """See grpc.aio.Channel."""
        return partial(cast(Any, self._channel).unary_unary(*args, **options), **self._with)

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        """See grpc.aio.Channel."""
        return partial(cast(Any, self._channel).unary_stream(*args, **options), **self._with)

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        """See grpc.aio.Channel."""
        return partial(cast(Any, self._channel).stream_unary(*args, **options), **self._with)

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        """See grpc.aio.Channel."""
        return partial(cast(Any, self._channel).stream_stream(*args, **options), **self._with)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def __aenter__(self) -> "BearerChannel":
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *trouble: Any) -> None:
        await self._channel.__aexit__(*trouble)
