"""The connector: the piece between an engine and the store. Engines need what is listed here, and nothing below it."""

from ..kvstore.errors import KvterraceError, SessionRefused
from ..kvstore.security.credentials import CredentialFiles
from ..proto import Retention, RetentionRange
from .base import ConnectorStatus, Event, KVConnector, LoadDone, Miss, Offer, Origin, SaveDone
from .factory import Kind, LayoutMismatch, Model, Place, default_address, make_connector
from .limits import ConnectorLimits
from .null import NullConnector

__all__ = [
    "ConnectorLimits",
    "ConnectorStatus",
    "CredentialFiles",
    "Event",
    "KVConnector",
    "Kind",
    "KvterraceError",
    "LayoutMismatch",
    "LoadDone",
    "Miss",
    "Model",
    "NullConnector",
    "Offer",
    "Origin",
    "Place",
    "Retention",
    "RetentionRange",
    "SaveDone",
    "SessionRefused",
    "default_address",
    "make_connector",
]
