"""Credentials: what a client shows, and whom it believes, from files that are read again once they change."""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from ..errors import ConfigError
from .files import Watched, read_file
from .identities import MAX_TOKEN_CHARS
from .tls import load_ca, load_pair

log = logging.getLogger(__name__)

SYSTEM = "system"
"""In place of a CA's file: whom this host believes."""


@dataclass(frozen=True, slots=True)
class CredentialFiles:
    """token: one line. ca: PEM, or "system"; None = no TLS, unless there is a certificate. cert, key: PEM."""

    token: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @property
    def tls(self) -> bool:
        return self.ca is not None or self.cert is not None

    @property
    def system(self) -> bool:
        return self.ca is None or str(self.ca) == SYSTEM


@dataclass(frozen=True, slots=True)
class _Read:
    token: str
    channel: grpc.ChannelCredentials | None
    context: ssl.SSLContext | None


@dataclass(frozen=True, slots=True)
class OptionNames:
    """What the options of the files are called, for errors."""

    token: str = "--token-file"
    ca: str = "--tls-ca"
    cert: str = "--tls-cert"
    key: str = "--tls-key"


class Credentials:
    """ConfigError: a file cannot be read or used."""

    def __init__(self, files: CredentialFiles, names: OptionNames = OptionNames()) -> None:
        if (files.cert is None) != (files.key is None):
            given, missing = (names.cert, names.key) if files.key is None else (names.key, names.cert)
            raise ConfigError(f"{given} needs {missing}: a certificate and its key are given together")
        self._files, self._names = files, names
        paths = [path for path in (files.token, files.cert, files.key) if path is not None]
        if files.ca is not None and not files.system:
            paths.append(files.ca)
        self._watched = Watched(paths, self._load)

    @property
    def version(self) -> int:
        """Another once a file has changed: connections from before show what is old."""
        self._watched.get()
        return self._watched.version

    @property
    def files(self) -> CredentialFiles:
        """What they were read from."""
        return self._files

    @property
    def tls(self) -> bool:
        return self._files.tls

    @property
    def token(self) -> str:
        """Empty when there is none."""
        return self._watched.get().token

    @property
    def channel(self) -> grpc.ChannelCredentials | None:
        """For gRPC; None = in clear."""
        return self._watched.get().channel

    def context(self) -> ssl.SSLContext | None:
        """For a socket; None = in clear."""
        return self._watched.get().context

    def _load(self) -> _Read:
        files = self._files
        token = read_token(files.token, self._names.token) if files.token is not None else ""
        if not files.tls:
            return _Read(token, None, None)
        context = ssl.create_default_context() if files.system else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        roots = cert = key = None
        if files.ca is not None and not files.system:
            load_ca(context, files.ca, self._names.ca)
            roots = read_file(files.ca, self._names.ca)
        if files.cert is not None and files.key is not None:
            cert, key = load_pair(context, files.cert, files.key, self._names.cert, self._names.key)
        return _Read(token, grpc.ssl_channel_credentials(roots, key, cert), context)


def read_token(path: Path, option: str) -> str:
    """The one line of a file. ConfigError: there is no token in it."""
    data = read_file(path, option, secret=True).strip()
    try:
        token = data.decode("ascii")
    except UnicodeDecodeError:
        token = ""
    if not token.isprintable() or not 0 < len(token) <= MAX_TOKEN_CHARS or " " in token:
        raise ConfigError(f"{option}: {path} must hold one token of 1 to {MAX_TOKEN_CHARS} printable characters")
    return token
