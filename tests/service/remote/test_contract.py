"""The suite of every tier, against real servers."""

import importlib.util
import sys
import uuid
from pathlib import Path

import pytest
from kvterrace.kvstore.tiers.remote import OnThreads, RemoteTier, parse_remote
from kvterrace.kvstore.tiers.remote.s3 import Bucket
from kvterrace.kvstore.tiers.remote.valkey import OVERHEAD_BYTES, ValkeyObjects
from redis import Redis

SUITE = Path(__file__).parents[2] / "unit" / "kvstore" / "test_tier_contract.py"


def _load():
    spec = importlib.util.spec_from_file_location("tier_contract", SUITE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["tier_contract"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


suite = _load()
globals().update({name: test for name, test in vars(suite).items() if name.startswith("test_")})

pytestmark = pytest.mark.service

BLOCK_BYTES, PAGE = suite.BLOCK_BYTES, suite.PAGE
VALKEY_BYTES = 10 * (BLOCK_BYTES + PAGE + OVERHEAD_BYTES)


def flip_valkey(tier, key):
    with Redis(port=tier.server.port) as client:
        (name,) = client.keys(f"*{key.hex()}")
        data = bytearray(client.get(name))
        data[PAGE + 100] ^= 1
        client.set(name, bytes(data))


def flip_s3(tier, key):
    client, bucket = tier.client, tier.bucket
    (found,) = [each["Key"] for each in client.list_objects_v2(Bucket=bucket)["Contents"] if key.hex() in each["Key"]]
    data = bytearray(client.get_object(Bucket=bucket, Key=found)["Body"].read())
    data[PAGE + 100] ^= 1
    client.put_object(Bucket=bucket, Key=found, Body=bytes(data))


def make_valkey(server):
    with Redis(port=server.port) as client:
        client.flushall()
    tier = RemoteTier(ValkeyObjects(server.url, VALKEY_BYTES, timeout_s=5.0), deadline_s=5.0)
    tier.server = server
    return tier


def make_s3(server):
    name = f"b-{uuid.uuid4()}"
    address = parse_remote(server.bucket(name))
    tier = RemoteTier(OnThreads(Bucket(address, server.client)), deadline_s=5.0)
    tier.client, tier.bucket = server.client, name
    return tier


KINDS = {
    "valkey": suite.Case(make_valkey, True, flip_valkey, VALKEY_BYTES, evicts=True),
    "s3": suite.Case(make_s3, True, flip_s3, 0, bounded=False),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def case(kind):
    return KINDS[kind]


@pytest.fixture
async def tier(case, kind, request):
    made = case.make(request.getfixturevalue({"valkey": "valkey", "s3": "moto"}[kind]))
    yield made
    await made.close()
