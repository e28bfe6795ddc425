"""Sizes on the command line."""

import pytest
import typer
from kvterrace.engine.cli import parse_size

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 << 30), ("512 mib", 512 << 20), ("1.5GB", 1_500_000_000), ("100", 100), ("0", 0), ("2TiB", 2 << 40)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "4 potatoes", "1e9", "nan", "4GiBs"])
def test_what_is_no_size(text):
    with pytest.raises(typer.BadParameter, match="is not a size"):
        parse_size(text)
