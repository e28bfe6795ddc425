"""Bucket: objects in S3 or what speaks its protocol, by boto3.

What may stay for how long is the bucket's to say, by a lifecycle rule: nothing is removed here to make room, and what
`usage` says is a count taken now and then.
"""

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Protocol, cast

from ..base import Usage
from .address import S3Address
from .envelope import FORMAT
from .objects import Name, Trouble
from .threads import ASKERS, READERS, WRITERS

MOST_LISTED = 100_000_000  # objects; a listing is over after them
PAGE_OBJECTS = 1000  # what the protocol allows in one listing, and in one deletion
_ABSENT = ("404", "NoSuchKey", "NotFound")
_DENIED = ("403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "NoSuchBucket")
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError", "CredentialRetrievalError")
_UNREACHABLE = ("EndpointConnectionError", "ConnectTimeoutError", "ConnectionClosedError", "ReadTimeoutError")


class Missing(Exception):
    """boto3 is not installed."""


class _Body(Protocol):
    def readinto(self, into: memoryview) -> int: ...

    def close(self) -> None: ...


class Client(Protocol):
    """The verbs of boto3's client that are used here."""

    def get_object(self, **request: Any) -> dict[str, Any]: ...

    def put_object(self, **request: Any) -> dict[str, Any]: ...

    def head_object(self, **request: Any) -> dict[str, Any]: ...

    def delete_object(self, **request: Any) -> dict[str, Any]: ...

    def delete_objects(self, **request: Any) -> dict[str, Any]: ...

    def list_objects_v2(self, **request: Any) -> dict[str, Any]: ...


def make_client(address: S3Address, timeout_s: float) -> Client:
    """boto3's client; credentials from its usual chain. timeout_s: of connecting, and of silence. Missing."""
    try:
        import boto3  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
        from botocore.config import Config  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise Missing("s3:// needs boto3: pip install 'kvterrace[s3]'") from None
    config = Config(
        connect_timeout=timeout_s,
        read_timeout=timeout_s,
        retries={"total_max_attempts": 1},  # whoever asks knows better what a late answer is worth
        max_pool_connections=READERS + WRITERS + ASKERS + 1,
        request_checksum_calculation="when_required",  # the blocks have their own; other stores do not know these
        response_checksum_validation="when_required",
    )
    session = cast("Any", boto3).session.Session()
    made = session.client(
        "s3", endpoint_url=address.endpoint or None, region_name=address.region or None, config=config
    )
    return cast("Client", made)


class Bucket:
    """Any thread."""

    def __init__(self, address: S3Address, client: Client) -> None:
        self.text = f"s3://{address.bucket}/{address.prefix}"
        self.evicted = 0
        self._place = {"Bucket": address.bucket}
        self._prefix = f"{address.prefix}{FORMAT}/"
        self._client = client
        self._lock = threading.Lock()
        self._used_bytes = 0
        self._blocks = 0

    def read(self, name: Name, head: memoryview, payload: memoryview) -> int | None:
        with _troubles():
            answer = _unless_absent(self._client.get_object, **self._place, Key=self._key(name))
            if answer is None:
                return None
            body, size = cast("_Body", answer["Body"]), int(answer["ContentLength"])
            try:  # no more is read than was asked for, however large it is
                whole = _fill(body, head) and _fill(body, payload)
            finally:
                body.close()
            return size if whole or size < len(head) + len(payload) else 0

    def write(self, name: Name, head: bytes, payload: memoryview, *, replace: bool) -> bool:
        size, there = len(head) + len(payload), self._size(name)
        if there == size and not replace:
            return False
        with _troubles():
            self._client.put_object(**self._place, Key=self._key(name), Body=b"".join((head, payload)))
        self._moved(size - (there or 0), int(there is None))
        return True

    def exists(self, name: Name) -> bool:
        return self._size(name) is not None

    def remove(self, name: Name) -> bool:
        size = self._size(name)
        if size is None:
            return False
        with _troubles():
            self._client.delete_object(**self._place, Key=self._key(name))
        self._moved(-size, -1)
        return True

    def clear(self, fingerprint: bytes) -> int:
        count = 0
        for page in self._pages(f"{self._prefix}{fingerprint.hex()}/"):
            keys = [{"Key": key} for key, _ in page]
            if keys:
                with _troubles():
                    self._client.delete_objects(**self._place, Delete={"Objects": keys, "Quiet": True})
                self._moved(-sum(size for _, size in page), -len(page))
                count += len(page)
        return count

    def count(self) -> None:
        sizes = [0, 0]
        for page in self._pages(self._prefix):
            sizes = [sizes[0] + sum(size for _, size in page), sizes[1] + len(page)]
        with self._lock:
            self._used_bytes, self._blocks = sizes

    def usage(self) -> Usage:
        with self._lock:
            return Usage(0, self._used_bytes, self._blocks, self._used_bytes)

    def _key(self, name: Name) -> str:
        return self._prefix + name.text

    def _size(self, name: Name) -> int | None:
        """None: it is not there."""
        with _troubles():
            answer = _unless_absent(self._client.head_object, **self._place, Key=self._key(name))
        return None if answer is None else int(answer["ContentLength"])

    def _pages(self, prefix: str) -> Iterator[list[tuple[str, int]]]:
        """(key, size) of what begins so, a thousand at a time."""
        token: dict[str, str] = {}
        for _ in range(MOST_LISTED // PAGE_OBJECTS):
            with _troubles():
                page = self._client.list_objects_v2(**self._place, Prefix=prefix, MaxKeys=PAGE_OBJECTS, **token)
            found = cast("Sequence[dict[str, Any]]", page.get("Contents", ()))
            yield [(str(each["Key"]), int(each["Size"])) for each in found]
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": str(page["NextContinuationToken"])}

    def _moved(self, size: int, blocks: int) -> None:
        with self._lock:
            self._used_bytes = max(self._used_bytes + size, 0)
            self._blocks = max(self._blocks + blocks, 0)


def _fill(body: _Body, into: memoryview) -> bool:
    """Whether there was enough for all of it."""
    at = 0
    while at < len(into):
        got = body.readinto(into[at:])
        if not got:
            return False
        at += got
    return True


def _unless_absent(verb: Callable[..., dict[str, Any]], **request: Any) -> dict[str, Any] | None:
    try:
        return verb(**request)
    except Exception as error:
        if _code(error) in _ABSENT:
            return None
        raise


def _code(error: Exception) -> str:
    """Of an error that S3 answered; "" for others."""
    answer = cast("dict[str, Any]", getattr(error, "response", None) or {})
    return str(answer.get("Error", {}).get("Code", ""))


@contextlib.contextmanager
def _troubles() -> Generator[None]:
    """boto3's errors have two roots, which only it can name, and urllib3's come through when a body breaks off."""
    try:
        yield
    except Trouble:
        raise
    except Exception as error:  # noqa: BLE001  (the client's own trouble must not become a request's)
        code, said = _code(error), f"{type(error).__name__}: {error}"
        if code in _DENIED or type(error).__name__ in _NO_CREDENTIALS:
            raise Trouble("denied", said, sure=True) from None
        if type(error).__name__ in _UNREACHABLE:
            raise Trouble("unreachable", said) from None
        raise Trouble("io", said) from None
