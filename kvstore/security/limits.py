"""How long each text, byte string and list of a request may be. Checked at the edge, before anything is done with it.

Texts count in characters, lists in items. What is not named here may have DEFAULT; a test wants every field of every
request named. Tokens, and what a channel's message limit bounds more tightly than anybody needs, are left to that.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from ...proto import FieldError

DEFAULT = 256
_BY_MESSAGE_LIMIT = 16 << 20  # service/channel.py
_DIGEST_BYTES = 64
_NAME_CHARS = 128
_BLOCKS = 1 << 18  # of one prompt: 4 million tokens

LIMITS: dict[str, int] = {
    "ClientFrame.before": 1024,
    "Open.package_version": _NAME_CHARS,
    "Open.hash_name": 32,
    "Open.client": 256,
    "Open.fingerprint": _DIGEST_BYTES,
    "NamespaceSpec.weights_digest": 256,
    "NamespaceSpec.adapter_digest": 256,
    "NamespaceSpec.dtype": 64,
    "NamespaceSpec.producer": 256,
    "NamespaceSpec.label": 256,
    "Lookup.tokens": _BY_MESSAGE_LIMIT,
    "Acquire.tokens": _BY_MESSAGE_LIMIT,
    "Release.corrupt": _BLOCKS,
    "Reserve.tokens": _BY_MESSAGE_LIMIT,
    "Reserve.retention": 256,
    "Commit.checksums": 8 * _BLOCKS,
    "Prefetch.tokens": _BY_MESSAGE_LIMIT,
    "Retain.tokens": _BY_MESSAGE_LIMIT,
    "Retain.retention": 256,
    "Observe.prefills": 1024,
    "ClearRequest.fingerprint": _DIGEST_BYTES,
    "ClearRequest.tenant": _NAME_CHARS,
    "QuotaRequest.tenant": _NAME_CHARS,
    "QuotaRequest.set": 4,
    "RetainRequest.fingerprint": _DIGEST_BYTES,
    "RetainRequest.tokens": _BY_MESSAGE_LIMIT,
    "RetainRequest.set": 8,
    "FetchRequest.fingerprint": _DIGEST_BYTES,
    "FetchRequest.tokens": _BY_MESSAGE_LIMIT,
    "FetchRequest.node": _NAME_CHARS,
    "SharedSpace.hash_name": 32,
    "SharedSpace.tenant": _NAME_CHARS,
    "SharedSpace.fingerprint": _DIGEST_BYTES,
    "HottestRequest.node": _NAME_CHARS,
    "HotPath.tokens": _BY_MESSAGE_LIMIT,
    "HotPath.retention": 256,
    "TakeOverRequest.node": _NAME_CHARS,
    "HbmReport.changes": 65_536,
    "HbmChange.numbers": 4 * _BLOCKS,
    "HbmChange.tokens": _BY_MESSAGE_LIMIT,
    "EventsRequest.epoch": _DIGEST_BYTES,
    "EventsRequest.fingerprint": _DIGEST_BYTES,
    "EventsRequest.tiers": 16,
    "ClearRequest.key": _DIGEST_BYTES,
    "ClearRequest.tokens": _BY_MESSAGE_LIMIT,
    "RetainRequest.key": _DIGEST_BYTES,
    "RetainRequest.tenant": _NAME_CHARS,
    "Acquire.request_id": 256,
    "Acquire.traceparent": 64,
    "FetchRequest.traceparent": 64,
    "Receipt.request_id": 256,
    "Receipt.tokens": 16,
    "Receipt.prompt": _BY_MESSAGE_LIMIT,
    "Receipt.fingerprint": _DIGEST_BYTES,
    "Receipt.label": 256,
    "Receipt.tenant": _NAME_CHARS,
    "Receipt.client": 256,
    "Miss.reason": 64,
    "Miss.tier": 32,
    "Miss.fields": 16,
    "Miss.cached": 4096,
    "ReceiptsRequest.request_id": 256,
    "ReceiptsRequest.reason": 64,
    "ReceiptsRequest.fingerprint": _DIGEST_BYTES,
    "ExplainRequest.fingerprint": _DIGEST_BYTES,
    "ExplainRequest.tokens": _BY_MESSAGE_LIMIT,
    "ExplainRequest.namespace": 256,
    "PrefixesRequest.fingerprint": _DIGEST_BYTES,
    "PrefixesRequest.tenant": _NAME_CHARS,
    "PrefixesRequest.key": _DIGEST_BYTES,
    "PrefixesRequest.sort": 16,
    "InsightRequest.fingerprint": _DIGEST_BYTES,
    "WarmRequest.fingerprint": _DIGEST_BYTES,
    "WarmRequest.tokens": _BY_MESSAGE_LIMIT,
    "ScoreRequest.fingerprint": _DIGEST_BYTES,
    "ScoreRequest.tokens": _BY_MESSAGE_LIMIT,
    "ScoreRequest.namespace": 256,
}
_ITEM = DEFAULT  # of one text or byte string in a list

_Check: TypeAlias = Callable[[Any], None]
_plans: dict[str, list[_Check]] = {}


def check(message: Message) -> None:
    """FieldError names the first field of `message`, or of what is in it, that is too long."""
    for each in _plan(cast(Descriptor, message.DESCRIPTOR)):
        each(message)


def _plan(descriptor: Descriptor) -> list[_Check]:
    plan = _plans.get(descriptor.full_name)
    if plan is None:
        plan = _plans[descriptor.full_name] = []  # known before it is made: messages nest
        plan += [each for field in descriptor.fields if (each := _check_of(field)) is not None]
    return plan


def _check_of(field: FieldDescriptor) -> _Check | None:
    limit = LIMITS.get(f"{cast(Descriptor, field.containing_type).name}.{field.name}", DEFAULT)
    if field.is_repeated:
        return _list_check(field, limit)
    if field.message_type is not None:
        return _message_check(field)
    if field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES) or limit >= _BY_MESSAGE_LIMIT:
        return None
    name, unit = field.name, "characters" if field.type == FieldDescriptor.TYPE_STRING else "bytes"

    def within(message: Any) -> None:
        size = len(getattr(message, name))
        if size > limit:
            raise FieldError(name, f"has {size} {unit}; {limit} are the most")

    return within


def _message_check(field: FieldDescriptor) -> _Check:
    name = field.name

    def inside(message: Any) -> None:
        if message.HasField(name):
            check(getattr(message, name))

    return inside


def _list_check(field: FieldDescriptor, limit: int) -> _Check:
    name = field.name
    a_map = field.message_type is not None and field.message_type.GetOptions().map_entry  # whose keys are texts here
    sized = a_map or field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    nested = field.message_type is not None and not a_map

    def within(message: Any) -> None:
        items = getattr(message, name)
        if len(items) > limit:
            raise FieldError(name, f"has {len(items)} items; {limit} are the most")
        for item in items if sized else ():
            if len(item) > _ITEM:
                raise FieldError(name, f"has an item of length {len(item)}; {_ITEM} is the most")
        for item in items if nested else ():
            check(item)

    return within
