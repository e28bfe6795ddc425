"""Texts: tokens as people read them, where the operator allows it. Needs the extra `text`."""

from collections.abc import Sequence


class Texts:
    """files: LABEL=FILE or FILE (of every label), each a tokenizer.json. ConfigError names the one that is wrong."""

    def __init__(self, files: Sequence[str] = ()) -> None:
        self._files = files

    def of(self, label: str, tokens: bytes) -> str:
        """Text of packed tokens of a namespace of that label; "" where it is not allowed."""
        return ""
