"""KeyRing: the keys that blocks are sealed with at rest, by tenant. Erasing a tenant's key erases what it sealed.

The cipher is XAES-256-GCM (https://c2sp.org/XAES-256-GCM): AES-256-GCM with 24-byte nonces, of which the first half
makes a key for one message only. Nonces are random. A key may seal 2^80 messages so, by any number of nodes that know
nothing of each other; with bare GCM it would be 2^32 in all, which a fleet's disks reach.

Immutable after it was made; used from any thread. Keys are in no repr and no message.
"""

import base64
import binascii
import hashlib
import hmac
import os
import stat
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ...proto.encrypted import NONCE_BYTES, Bytes
from ...proto.record import KEY_ID_BYTES
from ..errors import ConfigError

KEY_BYTES = 32
MAX_FILE_BYTES = 1 << 20
MAX_TENANT_CHARS = 256
DEFAULT_TENANT = "default"  # how the tenant "" is spelt where keys are given
CLEAR_WORD = "clear"
ENVIRONMENT = "KVTERRACE_KEYRING"
OPTION = "--nvme-keys"
_FORM = "32 bytes as 64 hexadecimal digits or in base64"
_GCM_NONCE_BYTES = 12


class Clear:
    """What a tenant has instead of a key when its blocks are to be written as they are."""


CLEAR: Final = Clear()


@dataclass(frozen=True, slots=True)
class TenantKey:
    """A RecordKey (proto/encrypted.py). ident: tells it from others in a record's header, and nothing else about it."""

    tenant: str
    secret: bytes = field(repr=False)
    entropy: Callable[[int], bytes] = field(repr=False, default=os.urandom)
    ident: bytes = field(init=False)
    _subkey: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        assert len(self.secret) == KEY_BYTES
        object.__setattr__(self, "ident", hashlib.sha256(b"kvterrace key id\0" + self.secret).digest()[:KEY_ID_BYTES])
        # K1 of CMAC: AES(0) doubled in GF(2^128).
        doubled = int.from_bytes(self._aes(bytes(16))) << 1
        reduced = (doubled ^ (0x87 if doubled >> 128 else 0)) & (1 << 128) - 1
        object.__setattr__(self, "_subkey", reduced.to_bytes(16))

    def seal_into(self, plain: Bytes, extra: bytes, out: Bytes) -> bytes:
        """See RecordKey."""
        nonce = self.entropy(NONCE_BYTES)
        self._message(nonce).encrypt_into(nonce[-_GCM_NONCE_BYTES:], plain, extra, out)
        return nonce

    def open_into(self, nonce: bytes, sealed: Bytes, extra: bytes, out: Bytes) -> bool:
        """See RecordKey."""
        try:
            self._message(nonce).decrypt_into(nonce[-_GCM_NONCE_BYTES:], sealed, extra, out)
        except InvalidTag:
            return False
        return True

    def name(self, block_key: bytes) -> str:
        """Of a block, where names can be read: nobody without the key finds out which prompt it belongs to."""
        return hmac.digest(self.secret, b"kvterrace name\0" + block_key, "sha256").hex()

    def _message(self, nonce: bytes) -> AESGCM:
        """The cipher of one message."""
        assert len(nonce) == NONCE_BYTES
        head = nonce[: NONCE_BYTES - _GCM_NONCE_BYTES]
        blocks = b"".join(_xor(bytes((0, counter, 0x58, 0)) + head, self._subkey) for counter in (1, 2))
        return AESGCM(self._aes(blocks))

    def _aes(self, blocks: bytes) -> bytes:
        """Whole blocks through the block cipher itself, for deriving keys only."""
        return Cipher(algorithms.AES(self.secret), modes.ECB()).encryptor().update(blocks)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


class KeyRing:
    """keys: of each tenant, the newest first, which is the one that seals; CLEAR: this tenant's blocks are written as
    they are. A tenant that is not there has no key."""

    def __init__(self, keys: Mapping[str, Sequence[TenantKey] | Clear]) -> None:
        self._writing = {tenant: value if isinstance(value, Clear) else value[0] for tenant, value in keys.items()}
        self._known = {key.ident: key for value in keys.values() if not isinstance(value, Clear) for key in value}

    @classmethod
    def load(cls, path: Path | None, environment: Mapping[str, str]) -> "KeyRing | None":
        """From a file, or else from the environment; None: no keys are given. ConfigError names what is wrong."""
        said = environment.get(ENVIRONMENT, "")
        if path is not None and said:
            raise ConfigError(f"{OPTION} and {ENVIRONMENT} are both given; leave one out")
        if path is not None:
            return make(_from_file(path), f"{OPTION}: {path}")
        return make(_from_text(said), ENVIRONMENT) if said else None

    def writing(self, tenant: str) -> TenantKey | Clear | None:
        """What a tenant's blocks are sealed with; None: they must not be written."""
        return self._writing.get(tenant)

    def find(self, ident: bytes) -> TenantKey | None:
        """The key that sealed a record; None: it is not there, or not any more."""
        return self._known.get(ident)

    @property
    def some_clear(self) -> bool:
        """Whether any tenant's blocks may lie in clear."""
        return any(isinstance(value, Clear) for value in self._writing.values())

    def __repr__(self) -> str:
        return f"KeyRing({len(self._writing)} tenants, {len(self._known)} keys)"


def make(texts: Mapping[str, Sequence[str]], where: str, *, entropy: Callable[[int], bytes] = os.urandom) -> KeyRing:
    """A ring of keys as they are written, each tenant's newest first. where: for messages. ConfigError."""
    ring: dict[str, list[TenantKey] | Clear] = {}
    owners: dict[bytes, str] = {}
    for spelt, values in texts.items():
        if not spelt or len(spelt) > MAX_TENANT_CHARS:
            raise ConfigError(f"{where}: a tenant's name has 1 to {MAX_TENANT_CHARS} characters")
        tenant = "" if spelt == DEFAULT_TENANT else spelt
        if list(values) == [CLEAR_WORD]:
            ring[tenant] = CLEAR
            continue
        keys = [TenantKey(tenant, _decode(text, f"{where}: {spelt}"), entropy) for text in values]
        if not keys:
            raise ConfigError(f"{where}: {spelt} has no key; leave the tenant out to erase it")
        for key in keys:
            if owners.setdefault(key.secret, spelt) != spelt:
                raise ConfigError(f"{where}: {owners[key.secret]} and {spelt} share a key, so neither could be erased")
        ring[tenant] = keys
    if not ring:
        raise ConfigError(f"{where}: there is no key in it")
    return KeyRing(ring)


def _decode(text: str, where: str) -> bytes:
    try:
        secret = bytes.fromhex(text) if len(text) == 2 * KEY_BYTES else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        secret = b""
    if len(secret) != KEY_BYTES:
        raise ConfigError(f"{where}: a key is {_FORM}; make one with: openssl rand -base64 32")
    return secret


def _from_file(path: Path) -> dict[str, list[str]]:
    """TOML: tenant = "key", tenant = ["newest key", "older key"] or tenant = "clear"."""
    where = f"{OPTION}: {path}"
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{where} is not a file")
            if status.st_mode & 0o077:
                raise ConfigError(f"{where} can be read by others than its owner; chmod 600 {path}")
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{where} has more than {MAX_FILE_BYTES} bytes")
    try:
        table = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):  # its text might quote a key
        raise ConfigError(f'{where} is not TOML with lines such as: alice = "KEY"') from None
    return {tenant: _texts(value, f"{where}: {tenant}") for tenant, value in table.items()}


def _texts(value: object, where: str) -> list[str]:
    values = cast("list[object]", value) if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in values):
        raise ConfigError(f"{where}: a key, a list of keys with the newest first, or {CLEAR_WORD!r}")
    return cast("list[str]", values)


def _from_text(said: str) -> dict[str, list[str]]:
    """One key, which is the default tenant's, or tenant=key with commas; a tenant may come again, its newest first."""
    found: dict[str, list[str]] = {}
    for part in filter(None, (each.strip() for each in said.split(","))):
        tenant, equals, text = part.partition("=")
        if not equals or not text.strip("="):  # base64 may end with =
            tenant, text = DEFAULT_TENANT, part
        found.setdefault(tenant.strip(), []).append(text.strip())
    return found
