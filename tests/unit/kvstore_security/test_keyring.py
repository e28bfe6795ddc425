"""Keys as they are given, and the cipher that they drive."""

import base64
import os
import threading

import pytest
from kvterrace.kvstore.errors import ConfigError
from kvterrace.kvstore.security.keyring import Clear, KeyRing, TenantKey, make
from kvterrace.proto.encrypted import TAG_BYTES

pytestmark = pytest.mark.unit

ONE, TWO, THREE = (bytes([n]) * 31 + b"k" for n in (1, 2, 3))


def b64(secret: bytes) -> str:
    return base64.b64encode(secret).decode()


def keyfile(path, text: str, mode: int = 0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_file_gives_each_tenant_its_keys_the_newest_first(tmp_path):
    text = f'default = "{ONE.hex()}"\nalice = ["{b64(TWO)}", "{b64(THREE)}"]\n"b.o.b" = "clear"\n'
    ring = KeyRing.load(keyfile(tmp_path / "keys.toml", text), {})
    assert ring.writing("").secret == ONE
    assert ring.writing("alice").secret == TWO
    assert isinstance(ring.writing("b.o.b"), Clear)
    assert ring.writing("carol") is None
    assert ring.find(TenantKey("", THREE).ident).tenant == "alice"
    assert ring.find(bytes(8)) is None
    assert ring.some_clear
    assert not KeyRing.load(keyfile(tmp_path / "more.toml", f'a = "{ONE.hex()}"'), {}).some_clear


def test_the_environment_gives_one_key_or_several():
    def of(text):
        return KeyRing.load(None, {"KVTERRACE_KEYRING": text})

    assert of(b64(ONE)).writing("").secret == ONE
    ring = of(f"alice={b64(TWO)}, default={ONE.hex()},alice={b64(THREE)},bob=clear")
    assert (ring.writing("").secret, ring.writing("alice").secret) == (ONE, TWO)
    assert ring.find(TenantKey("", THREE).ident).tenant == "alice"
    assert isinstance(ring.writing("bob"), Clear)
    assert KeyRing.load(None, {}) is None
    assert KeyRing.load(None, {"KVTERRACE_KEYRING": ""}) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_can_read_is_refused(tmp_path, mode):
    path = keyfile(tmp_path / "keys.toml", f'default = "{ONE.hex()}"', mode)
    with pytest.raises(ConfigError, match=f"--nvme-keys: {path} can be read by others.*chmod 600"):
        KeyRing.load(path, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alice = 5", "alice: a key, a list of keys"),
        ('alice = ["x", 5]', "alice: a key, a list of keys"),
        ("alice = []", "alice has no key; leave the tenant out"),
        ("", "there is no key in it"),
        ('alice = "SECRETSECRET"', "alice: a key is 32 bytes"),
        (f'alice = "{b64(ONE)[:-4]}"', "alice: a key is 32 bytes"),
        ('alice = "SECRETSECRET', "is not TOML"),
        (f'alice = "{ONE.hex()}"\nbob = "{ONE.hex()}"', "alice and bob share a key"),
        (f'{"x" * 300} = "{ONE.hex()}"', "1 to 256 characters"),
        (f'alice = "{ONE.hex()}"\nalice = "{TWO.hex()}"', "is not TOML"),
        (f'alice = ["{ONE.hex()}", "clear"]', "alice: a key is 32 bytes"),
    ],
)
def test_a_file_that_cannot_be_used_says_why_and_tells_no_key(tmp_path, text, said):
    path = keyfile(tmp_path / "keys.toml", text)
    with pytest.raises(ConfigError, match=said) as caught:
        KeyRing.load(path, {})
    assert str(path) in str(caught.value)
    assert "SECRET" not in str(caught.value)
    assert ONE.hex() not in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(ConfigError, match="--nvme-keys"):
            KeyRing.load(path, {})
    with pytest.raises(ConfigError, match="both given"):
        KeyRing.load(tmp_path / "keys", {"KVTERRACE_KEYRING": b64(ONE)})
    big = keyfile(tmp_path / "big", "#" * (1 << 20) + "\n")
    with pytest.raises(ConfigError, match="more than"):
        KeyRing.load(big, {})


def test_no_key_is_in_a_repr():
    ring = make({"alice": [ONE.hex()]}, "test")
    for said in (repr(ring), repr(ring.writing("alice")), str(ring.writing("alice"))):
        assert ONE.hex() not in said
        assert repr(ONE) not in said


@pytest.mark.parametrize(
    ("secret", "extra", "expected"),
    [
        (b"\x01" * 32, b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        (b"\x03" * 32, b"c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"),
    ],
    ids=["carry clear", "carry set"],
)
def test_the_cipher_is_the_published_one(secret, extra, expected):
    """Test vectors of the specification, https://c2sp.org/XAES-256-GCM."""
    key = TenantKey("", secret, lambda count: b"ABCDEFGHIJKLMNOPQRSTUVWX"[:count])
    out = bytearray(12 + TAG_BYTES)
    nonce = key.seal_into(b"XAES-256-GCM", extra, out)
    assert (nonce, out.hex()) == (b"ABCDEFGHIJKLMNOPQRSTUVWX", expected)
    plain = bytearray(12)
    assert key.open_into(nonce, out, extra, plain)
    assert plain == b"XAES-256-GCM"
    for at in range(len(out)):
        damaged = bytearray(out)
        damaged[at] ^= 1
        assert not key.open_into(nonce, damaged, extra, plain)
    assert not key.open_into(nonce, out, extra + b"!", plain)
    assert not key.open_into(bytes([nonce[0] ^ 1]) + nonce[1:], out, extra, plain)
    assert not TenantKey("", ONE).open_into(nonce, out, extra, plain)


def test_a_key_is_used_from_many_threads_at_once():
    key = TenantKey("", os.urandom(32))
    wrong: list[int] = []

    def work(number: int) -> None:
        plain = bytes([number]) * 5000
        for _ in range(50):
            out, back = bytearray(len(plain) + TAG_BYTES), bytearray(len(plain))
            nonce = key.seal_into(plain, b"x", out)
            if not key.open_into(nonce, out, b"x", back) or back != plain:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_names_tell_nothing_without_the_key():
    one, other = TenantKey("", ONE), TenantKey("", TWO)
    assert one.name(b"k" * 32) == one.name(b"k" * 32)
    assert len({one.name(b"k" * 32), other.name(b"k" * 32), one.name(b"l" * 32)}) == 3
