"""A certificate authority for tests: real certificates, made on the spot."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Authority:
    """Writes into `folder`. `file` is its own certificate."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        builder = _builder(name, name, self._key, -DAY, 2 * DAY).add_extension(constraints, critical=True)
        self._name = name
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, file: str = "", uri: str = "", expired: bool = False) -> tuple[Path, Path]:
        """Files of a certificate for 127.0.0.1 and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        names += [x509.UniformResourceIdentifier(uri)] if uri else []
        builder = _builder(name, self._name, key, -2 * DAY, -DAY if expired else DAY)
        made = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        cert = self.folder / f"{file or name}.crt"
        cert.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        own = self.folder / f"{file or name}.key"
        own.touch(0o600)
        plain = serialization.NoEncryption()
        own.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
        return cert, own


def _builder(name: str, issuer: str, key: ec.EllipticCurvePrivateKey, after, until) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + after)
        .not_valid_after(now + until)
    )
