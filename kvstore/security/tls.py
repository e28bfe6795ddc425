"""Tls: certificate, key and CA of a listener, for gRPC, HTTP and the bulk channel. New connections use new files."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc

from ..errors import ConfigError
from .files import Watched, read_file


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. ca: of those whose client certificates are believed; None = none is asked for."""

    cert: Path
    key: Path
    ca: Path | None = None

    @property
    def all(self) -> list[Path]:
        return [path for path in (self.cert, self.key, self.ca) if path is not None]


class Tls:
    """ConfigError: a file cannot be read or used."""

    @classmethod
    def of(cls, cert: Path | None, key: Path | None, ca: Path | None) -> "Tls | None":
        """None: a listener without a certificate speaks no TLS."""
        return cls(TlsFiles(cert, key, ca)) if cert is not None and key is not None else None

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._optional = Watched(files.all, lambda: self._context(ssl.CERT_OPTIONAL))
        self._required = Watched(files.all, lambda: self._context(ssl.CERT_REQUIRED))
        self._grpc = Watched(files.all, self._configuration)
        self._grpc_version = 1

    @property
    def verifies(self) -> bool:
        """Whether clients must show a certificate."""
        return self._files.ca is not None

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Of a gRPC port."""
        # Its annotation leaves out that the function may answer None.
        newer = cast("Callable[[], grpc.ServerCertificateConfiguration]", self._newer)
        return grpc.dynamic_ssl_server_credentials(self._grpc.get(), newer, require_client_authentication=self.verifies)

    def context(self, *, optional: bool = False) -> ssl.SSLContext:
        """Of a socket. optional: without a certificate a client gets in all the same; one that it shows is verified."""
        watched = self._optional if optional else self._required
        fixed = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._fill(fixed, ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED)

        def newest(connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, old: ssl.SSLContext) -> None:
            del name, old
            connection.context = watched.get()

        fixed.sni_callback = newest  # called in each handshake, whatever name the client asks for
        return fixed

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        """On a thread of gRPC's, in each handshake. None: as before."""
        configuration = self._grpc.get()
        if self._grpc.version == self._grpc_version:
            return None
        self._grpc_version = self._grpc.version
        return configuration

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        self._context(ssl.CERT_REQUIRED)  # OpenSSL says what is wrong with them; gRPC would only fail each handshake
        files = self._files
        pair = read_file(files.key, "--tls-key", secret=True), read_file(files.cert, "--tls-cert")
        roots = read_file(files.ca, "--tls-ca") if files.ca is not None else None
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=roots)

    def _context(self, verify: ssl.VerifyMode) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._fill(context, verify)
        return context

    def _fill(self, context: ssl.SSLContext, verify: ssl.VerifyMode) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        load_pair(context, self._files.cert, self._files.key)
        if self._files.ca is not None:
            load_ca(context, self._files.ca, "--tls-ca")
            context.verify_mode = verify


def load_pair(
    context: ssl.SSLContext, cert: Path, key: Path, cert_option: str = "--tls-cert", key_option: str = "--tls-key"
) -> tuple[bytes, bytes]:
    """The two files' bytes. ConfigError: they cannot be read, or do not belong together."""
    pair = read_file(cert, cert_option), read_file(key, key_option, secret=True)

    def no_password() -> str:
        raise ConfigError(f"{key_option}: {key} is encrypted, and nobody can be asked for its password")

    try:
        context.load_cert_chain(cert, key, password=no_password)
    except ssl.SSLError as error:
        said = f"{cert_option}, {key_option}: {cert} and {key} are no certificate and its key"
        raise ConfigError(f"{said}: {error}") from None
    return pair


def load_ca(context: ssl.SSLContext, ca: Path, option: str) -> None:
    """ConfigError: it has no certificate."""
    try:
        context.load_verify_locations(cadata=read_file(ca, option).decode())
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{option}: {ca} has no certificates: {error}") from None


def names_of(certificate: object) -> list[str]:
    """The names in what SSLSocket.getpeercert() gives for a verified certificate: common name, then DNS and URI."""
    if not isinstance(certificate, dict):
        return []
    fields = cast("dict[str, tuple[tuple[object, ...], ...]]", certificate)
    pairs = [pair for row in fields.get("subject", ()) for pair in cast("tuple[tuple[str, str], ...]", row)]
    common = [value for kind, value in pairs if kind == "commonName"]
    others = cast("tuple[tuple[str, str], ...]", fields.get("subjectAltName", ()))
    return common + [value for kind, value in others if kind in ("DNS", "URI")]
