"""What `serve` does with the options of KV events by ZeroMQ."""

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..scores import Holdings
from ..settings.events import EventsSettings
from .feed import Feed

if TYPE_CHECKING:
    from .zmq_publisher import ZmqPublisher


@contextlib.asynccontextmanager
async def publishing(
    config: EventsSettings, feed: Feed, holdings: Holdings
) -> AsyncGenerator[tuple["ZmqPublisher | None", list[str]]]:
    """Publish for as long as the body runs, if asked to: the publisher, and where it listens. KvterraceError says why
    it cannot."""
    if config.events_zmq is None:
        yield None, []
        return
    try:
        from .zmq_publisher import ZmqOptions, ZmqPublisher  # noqa: PLC0415  # an extra that most do not install
    except ImportError as error:
        raise ConfigError(f"--events-zmq: {error.name} is missing; pip install 'kvterrace[events]'") from None
    options = ZmqOptions(
        endpoint=config.events_zmq,
        replay_endpoint=config.events_zmq_replay or "",
        topic=config.events_zmq_topic,
        encoding=config.events_zmq_encoding,
        hashes=config.events_zmq_hashes,
        label=config.events_zmq_label,
        media=config.events_zmq_media,
    )
    publisher = ZmqPublisher(feed, holdings.hbm, holdings.label_of, options)
    try:
        yield publisher, await publisher.start()
    finally:
        await publisher.stop()
