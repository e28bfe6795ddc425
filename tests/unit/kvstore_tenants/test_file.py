"""The tenants file: what is in it counts, and what cannot be says where."""

import pytest
from kvterrace.kvstore.config import load_config
from kvterrace.kvstore.errors import ConfigError
from kvterrace.kvstore.tenants.claims import Claims
from kvterrace.kvstore.tenants.file import load_tenants
from kvterrace.kvstore.tenants.salt import tenant_salt
from kvterrace.kvstore.tenants.setup import open_tenants
from kvterrace.kvstore.tenants.tenants import Limits
from kvterrace.radix import pack_tokens

pytestmark = pytest.mark.unit

MIB = 1 << 20
GOOD = """
secret_file = "secret"

[[tenant]]
name = "search"
dram_quota = "8MiB"
dram_floor = "1MiB"
nvme_quota = "100MiB"
nvme_floor = 1048576

[[tenant]]
name = "chat"

[[shared_head]]
tokens = [1, 2, -3]
written_by = ["search"]

[[shared_head]]
file = "head.txt"
written_by = ["*"]
"""


@pytest.fixture
def load(tmp_path):
    """Call it with the file's text, and what else differs."""
    secret, head = tmp_path / "secret", tmp_path / "head.txt"
    secret.write_bytes(b"0123456789abcdef" * 2 + b"\n")
    secret.chmod(0o600)
    head.write_text("[7, 8,\n9]")

    def make(text=GOOD, *, dram=16 * MIB, nvme=256 * MIB, mode=0o600, secret_bytes=None):
        if secret_bytes is not None:
            secret.write_bytes(secret_bytes)
        secret.chmod(mode)
        path = tmp_path / "tenants.toml"
        path.write_text(text)
        return load_tenants(path, dram_bytes=dram, nvme_bytes=nvme, claims=Claims(()))

    return make


def test_what_it_says(load):
    tenants = load()
    assert tenants.named("search").limits == Limits(8 * MIB, MIB, 100 * MIB, MIB)
    assert tenants.named("chat").limits == Limits()
    assert tenants.named("search").salt == tenant_salt(b"0123456789abcdef" * 2, "search")
    assert [each.tokens for each in tenants.heads] == [pack_tokens([1, 2, -3]), pack_tokens([7, 8, 9])]
    assert [each.written_by for each in tenants.heads] == [{"search"}, {"*"}]
    assert [each.name for each in tenants] == ["search", "chat", "", "*"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "chat"', 'name = "search"', r"tenant\[1\].name: 'search' is given twice"),
        ('name = "chat"', 'name = "a/b"', r"tenant\[1\].name: 'a/b' cannot be the name"),
        ('name = "chat"', 'name = ""', r"tenant\[1\].name"),
        ('name = "chat"', 'name = "*"', r"tenant\[1\].name"),
        ('name = "chat"', "", r"tenant\[1\].name: Field required"),
        ("dram_floor", "dram_flor", r"tenant\[0\].dram_flor: there is no such key"),
        ('"8MiB"', '"8 parsecs"', r"tenant\[0\].dram_quota: .*parsecs"),
        ('"8MiB"', '"512KiB"', r"'search': dram_quota of 524288 bytes is below dram_floor"),
        ('dram_floor = "1MiB"', 'dram_floor = "17MiB"', r"'search': dram_"),
        ('name = "chat"', 'name = "chat"\ndram_floor = "15.5MiB"', r"dram_floor of .* is above the"),
        ("nvme_floor = 1048576", 'nvme_floor = "1TiB"', r"nvme_"),
        ('secret_file = "secret"', "", "secret_file: Field required"),
        ('secret_file = "secret"', 'secret_file = "none"', "secret_file: .*none cannot be read"),
        ("tokens = [1, 2, -3]", "tokens = [1, 99999999999]", r"shared_head\[0\].tokens\[1\]"),
        ("tokens = [1, 2, -3]", "", r"shared_head\[0\]: needs either tokens or file"),
        ("tokens = [1, 2, -3]", 'tokens = [1]\nfile = "head.txt"', r"shared_head\[0\]: needs either tokens or file"),
        ('file = "head.txt"', 'file = "nowhere"', r"shared_head\[1\].file: .*nowhere cannot be read"),
        ('written_by = ["search"]', "", r"shared_head\[0\].written_by: Field required"),
        ('written_by = ["search"]', "written_by = []", r"shared_head\[0\].written_by"),
        ('written_by = ["search"]', 'written_by = ["serch"]', r"written_by: there is no tenant 'serch'"),
        ("[[tenant]]", "[tenant", "is not TOML"),
    ],
)
def test_what_cannot_be_is_named(load, old, new, said):
    text = GOOD.replace(old, new)
    assert text != GOOD
    with pytest.raises(ConfigError, match=said) as caught:
        load(text)
    assert "--tenants" in str(caught.value)
    assert "tenants.toml" in str(caught.value)


def test_a_secret_that_all_may_read_or_that_is_too_short_is_refused(load):
    with pytest.raises(ConfigError, match="everybody may read"):
        load(mode=0o604)
    load(mode=0o640)
    with pytest.raises(ConfigError, match="31 bytes, and 32"):
        load(secret_bytes=b"x" * 31 + b"\n")


def test_limits_for_a_tier_that_is_not_there_are_refused(load):
    with pytest.raises(ConfigError, match="limits for NVMe, and --nvme is not given"):
        load(nvme=0)


def test_no_file_and_a_file_that_others_may_write(load, tmp_path):
    with pytest.raises(ConfigError, match=r"--tenants: .* cannot be read"):
        load_tenants(tmp_path / "none", dram_bytes=MIB, nvme_bytes=0, claims=Claims(()))
    load()
    path = tmp_path / "tenants.toml"
    path.chmod(0o606)
    with pytest.raises(ConfigError, match="everybody may write"):
        load_tenants(path, dram_bytes=MIB, nvme_bytes=0, claims=Claims(()))


@pytest.mark.parametrize("given", [True, False])
def test_an_identity_of_a_tenant_that_there_is_not_stops_the_start(load, tmp_path, given):
    load('secret_file = "secret"\n[[tenant]]\nname = "search"\n')
    people = tmp_path / "identities.toml"
    people.write_text(
        f'[[identity]]\nname = "eva"\ntenant = "sales"\nroles = ["engine"]\ntoken_sha256 = "{"0" * 64}"\n'
    )
    people.chmod(0o600)
    flags = {"identities": str(people), "tenants": str(tmp_path / "tenants.toml") if given else None}
    with pytest.raises(ConfigError, match="eva is of tenant 'sales', which --tenants does not name"):
        open_tenants(load_config(flags), 16 * MIB)
