"""Rows that are found by their keys first: what a change does is the same, and what is read as a whole is less."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf
from spark.change.conftest import Held
from spark.change.models import Row, changed, rows_of

import persist
from pyspark_persist.change import choosing, target

Says = Callable[[Row], bool]
ROWS = [(key, None if key % 11 == 0 else f"n{key % 5}", key % 7) for key in range(400)]
CONDITIONS: list[tuple[Any, Says, bool]] = [
    ("n % 3 = 2", lambda row: row[2] % 3 == 2, True),
    ("not (name <=> 'n1') and id % 50 = 3", lambda row: row[1] != "n1" and row[0] % 50 == 3, True),
    (lambda: sf.col("N") * 2 == 12, lambda row: row[2] == 6, True),
    ("name is null and n % 2 = 0", lambda row: row[1] is None and row[2] % 2 == 0, False),
]
"""Conditions, what they mean, and whether they are about fewer columns than there are."""


@pytest.fixture(autouse=True)
def looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "LOOKED_AT_BYTES", 0)


@pytest.fixture
def grown(held: Held) -> list[Row]:
    """A shard of several runs: what later ones take back, and rows of one key that differ."""
    held.put(*ROWS, at=3)
    held.put(*ROWS[40:80], at=5, diff=-1)
    held.put(*[(key, "n3", 2) for key in range(60, 100)], at=7)
    held.put(*ROWS[100:120], at=8)
    return [*ROWS[:40], *ROWS[80:], *[(key, "n3", 2) for key in range(60, 100)], *ROWS[100:120]]


@pytest.mark.parametrize(("asked", "says", "apart"), CONDITIONS, ids=range(len(CONDITIONS)))
def test_rows_found_by_their_keys_are_those_for_which_the_condition_holds(
    held: Held, grown: list[Row], asked: Any, says: Says, apart: bool
) -> None:
    where = asked() if callable(asked) else asked
    before = rows_of(grown)
    keys = {row[0] for row in before if says(row)}
    done = held.table.update({"n": "n + 100"}, where)
    assert held.rows() == changed(before, lambda row: (*row[:2], row[2] + 100) if says(row) else row)
    assert done.rows_updated == sum(count for row, count in before.items() if says(row))
    # A row that was taken back may have led to its key.
    near = sum(row[0] in keys for row in before)
    assert done.rows_read is not None
    assert (near <= done.rows_read <= near + 40) == apart
    assert apart or done.rows_read == len(before)


def test_rows_of_many_runs_are_found_by_what_some_of_these_come_to(
    held: Held, grown: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "RUNS_APART", 1)
    before = rows_of(grown)
    done = held.table.delete("n % 3 = 2")
    assert held.rows() == changed(before, lambda row: None if row[2] % 3 == 2 else row)
    assert done.rows_deleted == sum(count for row, count in before.items() if row[2] % 3 == 2)


def test_overwrite_of_rows_found_by_their_keys(held: Held, grown: list[Row]) -> None:
    done = held.table.overwrite(held.frame((7, "new", 2)), where="n % 7 = 2")
    expected = changed(rows_of(grown), lambda row: None if row[2] == 2 else row)
    assert held.rows() == expected + rows_of([(7, "new", 2)])
    assert done.rows_inserted == 1


@pytest.mark.parametrize(
    "condition",
    ["n in (select 3)", "rand() < 2"],
    ids=["subquery", "chance"],
)
def test_condition_that_is_not_looked_at_first_chooses_its_rows(held: Held, condition: str) -> None:
    held.put(*[row for row in ROWS if row[1] is not None], at=3)
    held.put(ROWS[5], at=4)
    means = {"n in (select 3)": [row for row in ROWS if row[2] == 3]}
    gone = rows_of(row for row in held.rows().elements() if row in means.get(condition, ROWS))
    assert held.table.delete(condition).rows_deleted == gone.total()
    assert not set(gone) & set(held.rows())


@pytest.mark.parametrize("now", ["current_timestamp()", "now()", "localtimestamp()"])
def test_condition_about_the_present_time_is_asked_once(held: Held, grown: list[Row], now: str) -> None:
    """At two looks it would hold for different rows, and those change that both chose."""
    before = rows_of(grown).total()
    gone = held.table.delete(f"abs(n % 2) = unix_micros(to_timestamp({now})) % 2").rows_deleted
    odd = sum(count for row, count in rows_of(grown).items() if row[2] % 2)
    assert gone in (odd, before - odd)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["a", "ä", "", "z z"]),
        (pa.date32(), [0, 1, 2, None]),
        (pa.uint64(), [1, 2**63, 2**64 - 1, 0]),
        (pa.float64(), [float("nan"), -0.0, 1.5, None]),
    ],
    ids=str,
)
def test_keys_of_every_type_are_found(
    made: Callable[[persist.Schema], Held], kind: pa.DataType, values: list[Any]
) -> None:
    held = made(persist.Schema(key={"id": kind}, val={"name": pa.string(), "n": pa.int64()}))
    held.writer.append_at_upper(pa.table({"id": pa.array(values, kind), "name": ["r"] * 4, "n": [0, 1, 2, 3]}))
    assert held.table.delete("n % 2 = 1").rows_deleted == 2
    assert sorted(row[2] for row in held.rows()) == [0, 2]
    assert held.table.delete("n * 2 = 0").rows_deleted == 1
    assert [row[2] for row in held.rows()] == [2]


def test_more_keys_than_may_be_sent_are_not_sent(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "KEYS_MAX", 10)
    held.put(*ROWS, at=3)
    done = held.table.delete("name = 'n3'")
    assert (done.rows_deleted, done.rows_read) == (sum(row[1] == "n3" for row in ROWS), len(ROWS))


def test_change_without_rows_to_change_commits_nothing(held: Held) -> None:
    held.put(*ROWS, at=3)
    upper = held.upper
    done = held.table.update({"n": 1}, "n % 100 = 99")
    assert (done.rows, done.rows_read, done.rows_updated, held.upper) == (0, 0, 0, upper)
