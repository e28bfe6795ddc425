"""The remote tier and the store: what is asked of it, what is written to it."""

from .asking import LastResort
from .attached import Attached
from .finder import Finder
from .remote import Remote
from .uploader import Uploader

__all__ = ["Attached", "Finder", "LastResort", "Remote", "Uploader"]
