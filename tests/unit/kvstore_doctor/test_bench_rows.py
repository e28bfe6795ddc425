"""How bench forms its figures."""

import pytest
from kvterrace.kvstore.bench.row import Row, take_turns
from kvterrace.kvstore.commands.bench import as_document, table

pytestmark = pytest.mark.unit


def test_a_ratio_is_the_share_of_what_is_possible_for_rates_and_times() -> None:
    assert Row("a", 2.0, "GB/s", 4.0, "memcpy").ratio == 0.5
    assert Row("a", 4.0, "ms", 1.0, "socket").ratio == 0.25
    assert Row("a", 4.0, "GB/s").ratio is None


def test_turns_are_taken_and_the_median_of_each_is_told() -> None:
    now = [0.0]
    calls: list[str] = []

    def act(name: str, *seconds: float):
        left = iter([9.0, *seconds])  # the first is not counted

        def action() -> None:
            calls.append(name)
            now[0] += next(left)

        return action

    assert take_turns([act("a", 1.0, 5.0, 2.0), act("b", 3.0, 4.0, 90.0)], 0.0, lambda: now[0]) == [2.0, 4.0]
    assert "".join(calls) == "abababab"


def test_a_table_and_json_have_every_row() -> None:
    rows = [Row("memcpy", 5.0, "GB/s"), Row("read", 2.5, "GB/s", 5.0, "memcpy")]
    assert table(rows).row_count == 2
    said = as_document(rows, 1.23)
    assert said["seconds"] == 1.2
    assert [row["ratio"] for row in said["rows"]] == [None, 0.5]  # type: ignore[union-attr,index]
