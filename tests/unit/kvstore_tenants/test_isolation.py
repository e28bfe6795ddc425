"""A tenant sees nothing of another's: no hit, no reason, no refusal, no step that differs."""

import asyncio
import hashlib
import hmac
import json
import struct
from pathlib import Path

import pytest
from kvterrace.kvstore.errors import SessionRefused
from kvterrace.kvstore.tenants.salt import tenant_salt
from kvterrace.proto import BlockLayout, Namespace

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "tenant_salt.json"


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text())["cases"], ids=lambda case: case["name"] or "default")
def test_the_salt_is_as_others_derive_it(case):
    secret = bytes.fromhex(case["secret"])
    assert tenant_salt(secret, case["name"]).hex() == case["salt"]
    if case["name"]:
        name = case["name"].encode()
        assert hmac.new(secret, struct.pack("<I", len(name)) + name, hashlib.sha256).hexdigest() == case["salt"]


def test_the_same_prompt_and_weights_are_never_a_hit_for_another_tenant(bench):
    b = bench(64, {"a": (None, 0), "b": (None, 0)})
    ours, theirs, nobodys = b.open("a"), b.open("b"), b.open()
    b.save(ours, b.prompt(1, 6))
    for other in (theirs, nobodys):
        assert other.fingerprint != ours.fingerprint
        assert other.lookup(b.prompt(1, 6)).tiers == {}
        got = b.acquire(other, b.prompt(1, 6))
        assert (got.lease, len(got.slots), got.reason) == (0, 0, "never_seen")
    assert b.has(ours, b.prompt(1, 6)) == 6


def test_the_default_tenants_namespace_is_that_of_an_install_without_tenants(bench):
    b = bench(8, {"a": (None, 0)})
    session = b.open()
    assert session.namespace.tenant_salt == b""
    assert session.fingerprint == Namespace(b"weights-0", session.namespace.layout).fingerprint()


@pytest.mark.parametrize("left", ["evicted", "cleared", "corrupt", "being written"])
def test_why_another_tenants_block_is_gone_is_not_told(bench, left):
    b = bench(6, {"a": (None, 0), "b": (None, 0)})
    ours, theirs = b.open("a"), b.open("b")
    if left == "being written":
        assert b.reserve(ours, b.prompt(1, 4)).lease
    else:
        b.save(ours, b.prompt(1, 4))
    if left == "evicted":
        b.save(ours, b.prompt(2, 6))
    elif left == "cleared":
        asyncio.run(b.store.clear(ours.fingerprint))
    elif left == "corrupt":
        got = b.acquire(ours, b.prompt(1, 4))
        ours.release(got.lease, [0])
    assert b.acquire(ours, b.prompt(1, 4)).reason in {left, "not_committed"}
    assert b.acquire(theirs, b.prompt(1, 4)).reason == "never_seen"


def test_a_miss_of_another_tenants_block_takes_the_same_steps_as_any_miss(bench, monkeypatch):
    """Timing cannot tell them apart, because nothing is done in one case that is not done in the other."""
    b = bench(64, {"a": (None, 0), "b": (None, 0)})
    ours, theirs = b.open("a"), b.open("b")
    b.save(ours, b.prompt(1, 6))
    b.save(theirs, b.prompt(3, 2))

    def steps(tokens):
        seen = []

        def note(frame, event, arg):
            if event == "call" and "kvterrace" in frame.f_globals.get("__name__", ""):
                seen.append(frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name)

        before = b.counters
        import sys

        sys.setprofile(note)
        try:
            got = theirs.acquire_now(tokens, skip=0, deadline_s=1.0)
            found = theirs.lookup(tokens)
        finally:
            sys.setprofile(None)
        after = b.counters
        moved = {reason: count - before.miss_tokens[reason] for reason, count in after.miss_tokens.items()}
        return seen, got.reason, found, moved

    assert steps(b.prompt(1, 6)) == steps(b.prompt(2, 6))


def test_the_geometry_of_another_tenants_weights_is_not_told(bench):
    b = bench(64, {"a": (None, 0), "b": (None, 0)})
    other = BlockLayout(kv_heads=1, layers=2, planes=2, block_tokens=4, head_dim=64, dtype="float16")
    b.open("a")
    b.open("b", layout=other)
    with pytest.raises(SessionRefused, match="layers"):
        b.open("a", layout=other)


def test_the_fingerprint_is_compared_as_the_client_derives_it(bench):
    b = bench(8, {"a": (None, 0)})
    namespace = Namespace(b"weights-0", b.open("a").namespace.layout)
    salted = Namespace(b"weights-0", namespace.layout, tenant_salt=b.tenants.named("a").salt)
    with pytest.raises(SessionRefused) as caught:
        b.store.open_session(namespace, client="test", fingerprint=salted.fingerprint(), tenant="a")
    assert caught.value.field == "fingerprint"


def test_a_tenant_cannot_be_entered_by_its_salt(bench):
    """In a sidecar no salt comes over the wire; a named tenant's is replaced in any case."""
    b = bench(8, {"a": (None, 0), "b": (None, 0)})
    ours = b.open("a")
    theirs = b.open("b", tenant_salt=b.tenants.named("a").salt)
    assert theirs.fingerprint not in {ours.fingerprint, b.open().fingerprint}


@pytest.mark.parametrize("name", ["c", "*", "A", "a "])
def test_a_tenant_that_is_not_known_is_refused(bench, name):
    b = bench(8, {"a": (None, 0)})
    with pytest.raises(SessionRefused) as caught:
        b.open(name)
    assert caught.value.field == "tenant"
    assert b.store.stats().sessions == ()


def test_whose_a_namespace_is(bench):
    b = bench(8, {"a": (None, 0)})
    assert b.store.tenancy.tenant_of(b.open("a").fingerprint) == "a"
    assert b.store.tenancy.tenant_of(b.open().fingerprint) == ""
    assert b.store.tenancy.tenant_of(bytes(32)) is None


def test_clearing_a_tenant_takes_all_of_its_namespaces_and_no_other(bench):
    b = bench(64, {"a": (None, 0), "b": (None, 0)})
    first, second, other = b.open("a"), b.open("a", weights=b"weights-1"), b.open("b")
    for session in (first, second, other):
        b.save(session, b.prompt(1, 3))
    assert asyncio.run(b.store.clear_tenant("a")) == 6
    assert [b.has(each, b.prompt(1, 3)) for each in (first, second, other)] == [0, 0, 3]
    assert b.acquire(first, b.prompt(1, 3)).reason == "cleared"
    for name in ("c", ""):
        with pytest.raises(SessionRefused):
            asyncio.run(b.store.clear_tenant(name))
