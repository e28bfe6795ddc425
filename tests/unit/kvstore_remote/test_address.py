"""URLs of the store of last resort, and the options around it."""

from pathlib import Path

import pytest
from kvterrace.kvstore.config import load_config
from kvterrace.kvstore.errors import ConfigError
from kvterrace.kvstore.remote.setup import open_remote
from kvterrace.kvstore.tiers.remote import DirectoryAddress, S3Address, ValkeyAddress, parse_remote

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("file:///mnt/shared/kv", DirectoryAddress(Path("/mnt/shared/kv"))),
        ("file:///mnt/with%20space", DirectoryAddress(Path("/mnt/with space"))),
        ("s3://bucket", S3Address("bucket", "", "", "")),
        ("s3://my.bucket-1/a/b/", S3Address("my.bucket-1", "a/b/", "", "")),
        (
            "s3://bucket/kv?endpoint=http://127.0.0.1:9000&region=eu-central-1",
            S3Address("bucket", "kv/", "http://127.0.0.1:9000", "eu-central-1"),
        ),
        ("redis://10.0.0.5:6379/1", ValkeyAddress("redis://10.0.0.5:6379/1")),
        ("rediss://:secret@host", ValkeyAddress("rediss://:secret@host")),
        ("redis+cluster://a:1,b:2", ValkeyAddress("redis+cluster://a:1,b:2")),
    ],
)
def test_addresses(url, address):
    assert parse_remote(url) == address


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("nfs://host/path", "'nfs'"),
        ("/mnt/kv", "scheme"),
        ("file://host/path", "'host'"),
        ("file://relative", "'relative'"),
        ("file:///", "'/'"),
        ("file:///mnt?x=1", "x=1"),
        ("s3://", "''"),
        ("s3://Bucket", "'Bucket'"),
        ("s3://bucket?zone=1", "'zone'"),
        ("s3://bucket?endpoint=host:9000", "endpoint"),
        ("s3://bucket?endpoint=http://u:topsecret@h", "endpoint"),
        ("s3://bucket?region=!!", "'!!'"),
        ("s3://key:topsecret@bucket", "credentials"),
        ("s3://bucket/" + "x" * 600, "prefix"),
        ("redis://host:99999999", "99999999"),
        ("redis://host/x", "'x'"),
        ("rediss://:topsecret@host?ssl=1", "'ssl'"),
    ],
)
def test_a_bad_address_names_its_part_and_no_secret(url, part):
    with pytest.raises(ConfigError, match="--remote") as error:
        open_remote(load_config({"remote": url}))
    assert part in str(error.value)
    assert "topsecret" not in str(error.value)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"remote_capacity": "1GiB"}, "--remote"),
        ({"remote_admission": "second_hit"}, "--remote"),
        ({"remote": "s3://bucket", "remote_capacity": "1GiB"}, "--remote-capacity: .*lifecycle"),
        ({"remote": "file:///mnt/kv", "remote_deadline": "0"}, "--remote-deadline"),
        ({"remote": "file:///mnt/kv", "remote_admission": "some"}, "--remote-admission"),
    ],
)
def test_options_that_make_no_sense_are_refused(flags, said):
    with pytest.raises(ConfigError, match=said):
        load_config(flags)


def test_without_boto3_it_says_which_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"kvterrace\[s3\]"):
        open_remote(load_config({"remote": "s3://bucket"}))


async def test_what_was_asked_for_is_what_there_is(tmp_path):
    made = open_remote(load_config({"remote": f"file://{tmp_path}/kv", "remote_capacity": "1MiB"}))
    assert made.tier.usage().capacity_bytes == 1 << 20
    assert not list(tmp_path.iterdir()), "a mount that hangs does not hang the start"
    await made.tier.close()
    assert open_remote(load_config({})) is None
