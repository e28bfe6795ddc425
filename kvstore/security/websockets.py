"""WebSockets at the HTTP edge. Importing it needs the library `websockets`, which comes with the extra `dashboard`."""

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from .http import Certified


class CertifiedWebSocket(Certified, WebSocketsSansIOProtocol):  # pyright: ignore[reportIncompatibleMethodOverride]
    """uvicorn's own, and the names in the client's certificate."""
