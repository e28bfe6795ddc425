"""The salt that keeps one tenant's keys apart from another's. tests/golden/tenant_salt.json pins it.

Derived by the server, from who the client is and a secret that no client has: whoever does not know the secret cannot
name another tenant's blocks, whatever it sends.
"""

import hmac
import struct

MIN_SECRET_BYTES = 32


def tenant_salt(secret: bytes, name: str) -> bytes:
    """HMAC-SHA256 under the secret of the name in UTF-8 behind its length as uint32 little-endian; b"" for the default
    tenant "", whose blocks are those of an install without tenants."""
    if not name:
        return b""
    encoded = name.encode()
    return hmac.digest(secret, struct.pack("<I", len(encoded)) + encoded, "sha256")
