"""Token ids in a file, for the command line."""

import re
from pathlib import Path

from .errors import ConfigError


def read_token_ids(path: Path) -> list[int]:
    """The whole numbers in a file, whatever is between them. ConfigError when it cannot be read or has none."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--tokens: {path} cannot be read: {error}") from None
    ids = [int(found) for found in re.findall(r"-?\d+", text)]
    if not ids or not all(-(2**31) <= each < 2**31 for each in ids):
        raise ConfigError(f"--tokens: {path} must hold token ids, whole numbers of 32 bits")
    return ids
