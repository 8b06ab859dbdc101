"""Keys looked up among many values, against Python's own."""

import datetime
import decimal
import random
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist import InvalidArgument
from pyspark_persist.change.among import among

SCHEMA = persist.Schema(
    key={"id": pa.int64()},
    val={
        "small": pa.int16(),
        "name": pa.string(),
        "at": pa.timestamp("us", tz="UTC"),
        "day": pa.date32(),
        "data": pa.binary(),
        "amount": pa.decimal128(10, 2),
        "yes": pa.bool_(),
    },
)
KINDS = {field.name: field.type for field in [*SCHEMA.key, *SCHEMA.val]}
VALUES: dict[str, tuple[Any, ...]] = {
    "id": (None, 0, -1, 2**63 - 1, -(2**63), 5),
    "small": (None, 0, -32768, 32767, 7),
    "name": (None, "", "a", "ä", "zz", "\U0001f600"),
    "at": (None, *(datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (1, 1970, 2026))),
    "day": (None, datetime.date(1970, 1, 1), datetime.date(1900, 1, 1)),
    "data": (None, b"", b"x", b"\xff"),
    "amount": (None, decimal.Decimal("1.25"), decimal.Decimal("-3.00")),
}


@pytest.mark.parametrize("column", VALUES)
def test_rows_among_values_are_those_that_python_finds(column: str) -> None:
    for seed in range(200):
        rng = random.Random(seed)
        rows = [rng.choice(VALUES[column]) for _ in range(rng.randint(0, 12))]
        keys = [rng.choice(VALUES[column]) for _ in range(rng.randint(0, 4))]
        if column == "small":
            keys += [1 << 40, -40_000]  # what the column cannot hold
        given = pa.array(keys, pa.int64() if column == "small" else KINDS[column])
        table = pa.table({column: pa.array(rows, KINDS[column]), "place": pa.array(range(len(rows)), pa.int64())})
        condition = among(column, given, SCHEMA)
        found = [] if condition is None else condition.filter(table).column("place").to_pylist()
        assert found == [place for place, value in enumerate(rows) if value is not None and value in keys]


def test_values_that_cannot_be_the_columns_are_refused() -> None:
    with pytest.raises(InvalidArgument):
        among("at", pa.array(["no time"]), SCHEMA)
    with pytest.raises(InvalidArgument):
        among("yes", pa.array([True]), SCHEMA)
