"""The store's errors, one small tree. A miss, a full arena or a lost connection is a result, not an error.

KvterraceError
├── ConfigError      a configuration that cannot be used; the message names the key and its place
├── ArenaError       the shared-memory file cannot be made or attached
├── NvmeError        a path of the NVMe tier that only its user can mend; the message names the path
├── SessionRefused   a session that cannot be opened; `field` names what stands against it
└── SessionClosed    a verb on a session that has ended
"""


class KvterraceError(Exception):
    """Root of all errors of kvterrace."""


class ConfigError(KvterraceError):
    """A configuration that cannot be used."""


class ArenaError(KvterraceError):
    """The arena cannot be made or attached."""


class NvmeError(KvterraceError):
    """A path of the NVMe tier cannot be used as it is: no directory, taken by another store, too small."""


class SessionRefused(KvterraceError):
    """A session that cannot be opened. `ours` and `theirs` are the store's and the client's value, as text, or ""."""

    def __init__(self, field: str, message: str, *, ours: str = "", theirs: str = "") -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
        self.ours = ours
        self.theirs = theirs


class SessionClosed(KvterraceError):
    """The session has ended; its leases are gone."""
