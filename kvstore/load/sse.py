"""Server-sent events, as far as chat endpoints use them: the data of each event, from bytes as they come."""

from collections.abc import Iterator

MAX_EVENT_BYTES = 4 << 20


class TooLong(ValueError):
    """An event of more than MAX_EVENT_BYTES."""


class EventParser:
    """feed() what was read, get the data of the events that are complete. Comments and other fields are passed over."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """TooLong when an event or a line does not end."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise TooLong(f"a line of more than {MAX_EVENT_BYTES >> 20} MiB")
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line:
                yield from self._flush()
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._data_bytes += len(line)
                if self._data_bytes > MAX_EVENT_BYTES:
                    raise TooLong(f"an event of more than {MAX_EVENT_BYTES >> 20} MiB")

    def _flush(self) -> Iterator[bytes]:
        if self._data:
            data, self._data, self._data_bytes = b"\n".join(self._data), [], 0
            yield data
