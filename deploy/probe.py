#!/usr/bin/env python3
"""A health check for containers: `kvterrace-probe URL`; exit code 0 when the answer is 200.

It runs every few seconds, so that it imports little: an HTTP client costs four times as much as the whole of this.
Certificates are not verified, since it asks this very container, by an address that no certificate names.
"""

import socket
import sys

TIMEOUT_S = 2.5
MAX_ANSWER_BYTES = 1024


def probe(url: str, timeout_s: float = TIMEOUT_S) -> str:
    """ "" when all is well, else what is wrong. ValueError: not an address that can be asked."""
    scheme, host, port, path = split(url)
    request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
    try:
        with socket.create_connection((host.strip("[]"), port), timeout_s) as plain:
            connection = plain if scheme == "http" else _encrypted(plain)
            with connection:
                connection.sendall(request.encode())
                said = _read(connection).decode(errors="replace")
    except OSError as error:
        return f"{url}: {error}"
    status, _, rest = said.partition("\r\n")
    words = status.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith("HTTP/1."):
        return f"{url}: no HTTP answer"
    body = rest.partition("\r\n\r\n")[2]
    return "" if words[1] == "200" else f"{url}: {words[1]} {body}".strip()


def split(url: str) -> tuple[str, str, int, str]:
    """Scheme, host (IPv6 in brackets), port and path. ValueError says what a URL must be."""
    scheme, _, rest = url.partition("://")
    place, _, path = rest.partition("/")
    host, _, port = place.rpartition(":")
    if scheme not in ("http", "https") or not host or not port.isdecimal():
        raise ValueError(f"{url!r} is not http://HOST:PORT/PATH or https://HOST:PORT/PATH")
    return scheme, host, int(port), f"/{path}"


def _read(connection: socket.socket) -> bytes:
    """All of it, MAX_ANSWER_BYTES at most: status, headers and body come in pieces."""
    said = b""
    while len(said) < MAX_ANSWER_BYTES and (piece := connection.recv(MAX_ANSWER_BYTES)):
        said += piece
    return said


def _encrypted(plain: socket.socket) -> socket.socket:
    import ssl  # noqa: PLC0415  it takes longer to import than the rest takes to run

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain)


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        trouble = probe(sys.argv[1])
    except ValueError as error:
        print(f"kvterrace-probe: {error}", file=sys.stderr)
        return 2
    if trouble:
        print(f"kvterrace-probe: {trouble}", file=sys.stderr)
    return 1 if trouble else 0


if __name__ == "__main__":
    sys.exit(main())
