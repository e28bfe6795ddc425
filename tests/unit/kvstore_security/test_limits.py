"""Every call has its roles, and every text, byte string and list of a request its limit: checked against kv.proto."""

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from kvterrace.kvstore.security.limits import LIMITS, check
from kvterrace.kvstore.security.permissions import CALLS, call_of
from kvterrace.proto import FieldError
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.unit

SERVICE = pb.DESCRIPTOR.services_by_name["KVStore"]
TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def test_every_call_of_the_service_has_roles_and_nothing_else_has() -> None:
    assert CALLS.keys() == {method.name for method in SERVICE.methods}
    assert all(call.roles for call in CALLS.values())


@pytest.mark.parametrize("method", ["/kvterrace.v1.KVStore/Nothing", "/other.Service/Clear", "Clear", ""])
def test_what_is_no_call_of_ours_has_no_roles(method: str) -> None:
    assert call_of(method) is None


def fields(message: Descriptor, seen: set[str]) -> Iterator[FieldDescriptor]:
    if message.full_name in seen:
        return
    seen.add(message.full_name)
    for field in message.fields:
        if field.type in TEXTS or field.is_repeated:
            yield field
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from fields(field.message_type, seen)


REQUESTS = [field for seen in [set()] for method in SERVICE.methods for field in fields(method.input_type, seen)]


def test_every_field_of_a_request_that_can_be_long_has_a_limit_and_nothing_else_has() -> None:
    assert {f"{field.containing_type.name}.{field.name}" for field in REQUESTS} == LIMITS.keys()


@pytest.mark.parametrize("field", REQUESTS, ids=lambda field: f"{field.containing_type.name}.{field.name}")
def test_what_is_at_the_limit_passes_and_what_is_above_names_the_field(field: FieldDescriptor) -> None:
    limit = LIMITS[f"{field.containing_type.name}.{field.name}"]
    for length in (limit, limit + 1):
        message = getattr(pb, field.containing_type.name)()
        if field.is_repeated:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                for number in range(length):
                    getattr(message, field.name)[str(number)] = 1
            elif field.message_type is not None:
                for _ in range(length):
                    getattr(message, field.name).add()
            else:
                getattr(message, field.name).extend(["x" if field.type in TEXTS else 1] * length)
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, "x" * length)
        else:
            setattr(message, field.name, b"x" * length)
        if length <= limit or limit >= 16 << 20:  # what a message may have as a whole bounds it
            check(message)
        else:
            with pytest.raises(FieldError) as trouble:
                check(message)
            assert trouble.value.field == field.name


def test_what_rides_along_and_what_is_inside_is_checked_too() -> None:
    check(pb.ClientFrame(before=[pb.ClientFrame(release=pb.Release(corrupt=[1, 2]))]))
    long = pb.ClientFrame(open=pb.Open(namespace=pb.NamespaceSpec(label="x" * 1000)))
    for frame in (long, pb.ClientFrame(before=[long])):
        with pytest.raises(FieldError, match="label: has 1000 characters"):
            check(frame)
    with pytest.raises(FieldError, match="tokens: has an item of length 1000"):
        check(pb.ClientFrame(served=pb.Receipt(tokens={"x" * 1000: 1})))
    with pytest.raises(FieldError, match="set: has an item of length 1000"):
        check(pb.RetainRequest(set=["x" * 1000]))
