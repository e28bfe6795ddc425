"""Cipher: which blocks of a tier are encrypted, and with whose key. A tier without keys has none of these."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ....proto.encrypted import FindKey, RecordKey
from ....proto.footer import Group
from ...security.keyring import Clear, KeyRing, TenantKey

TenantOf: TypeAlias = Callable[[bytes], str | None]
"""The tenant of a namespace, by fingerprint; None = not known now."""


@dataclass(slots=True)
class Cipher:
    """Where there are keys, nothing is in clear that was not meant to. Owned by the event loop, but for `find`, which
    any thread may call."""

    ring: KeyRing
    tenant_of: TenantOf
    _owners: dict[bytes, str] = field(default_factory=dict[bytes, str])  # of namespaces that recovery has found

    @property
    def find(self) -> FindKey:
        return self.ring.find

    def learn(self, group: Group) -> None:
        """Records of this kind are there."""
        key = self.ring.find(group.key_id)
        if key is not None:
            self._owners[group.fingerprint] = key.tenant

    def writing(self, fingerprint: bytes) -> RecordKey | str | None:
        """The key for a new record; None: it is written in clear, on purpose; or why it must not be written:
        "no_tenant", "no_key"."""
        value = self._of(fingerprint)
        if isinstance(value, TenantKey):
            return value
        return None if isinstance(value, Clear) else value

    def verdict(self, group: Group) -> Literal["give", "drop", "miss"]:
        """What to do with a record of this kind that is asked for. Those in clear are given out only where that is what
        the tenant is meant to have: else bytes could be slipped in by leaving out the encryption."""
        if group.key_id:
            return "give" if self.ring.find(group.key_id) is not None else "drop"
        value = self._of(group.fingerprint)
        if value == "no_tenant":
            return "miss"
        return "give" if isinstance(value, Clear) else "drop"

    def keeps(self, group: Group, *, locked: bool) -> bool:
        """The same at start, when tenants are not known yet: whether it is worth keeping."""
        return not locked if group.key_id else self.ring.some_clear

    def _of(self, fingerprint: bytes) -> TenantKey | Clear | str:
        tenant = self.tenant_of(fingerprint)
        if tenant is None:
            tenant = self._owners.get(fingerprint)
        if tenant is None:
            return "no_tenant"
        return self.ring.writing(tenant) or "no_key"
