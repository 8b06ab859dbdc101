"""Columns of narrow floats are compared with the numbers that are given, which most of the time they cannot hold."""

import decimal
import math
import operator
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.budget import examples
from sure import sure

from persist.core.data.encoding import encode_key
from persist.core.data.predicate import Predicate
from persist.core.data.predicates.condition import ROWS, Condition
from persist.core.data.schema import Schema
from persist.core.data.update import consolidate, normalise
from persist.errors import InvalidArgument
from persist.wire.columnar import encode_parts

COMPARED: Final[dict[str, Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
MAX: Final = 3.4028234663852886e38
HELD: Final = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.10000000149011612, 16777216.0, MAX, -MAX, math.inf, -math.inf, math.nan]),
)
MEANT: Final = st.one_of(
    st.floats(),
    HELD,
    st.integers(-(2**53), 2**53),
    st.floats(-1e308, 1e308).map(lambda value: decimal.Decimal(repr(value))),
    st.sampled_from([0.1, 16777217, 1e39, -1e39, 1e-46, -1e-46, decimal.Decimal("0.1")]),
)


@given(
    st.lists(HELD, min_size=1, max_size=6),
    st.lists(MEANT, min_size=1, max_size=3),
    st.sampled_from([*COMPARED, "in", "not in", ROWS]),
)
@settings(max_examples=examples(1_000), deadline=None)
def test_narrow_floats_are_compared_with_the_numbers_that_were_given(
    held: list[float], meant: list[Any], op: str
) -> None:
    """These were rounded to the column's width, so that a float of 0.1, which is more, was equal to 0.1."""
    schema = Schema(key={"f": pa.float32()}, val={"g": pa.float32()})
    raw = pa.table({"f": pa.array(held, pa.float32()), "g": pa.array(held, pa.float32()), "ts": [0] * len(held)})
    table = consolidate(normalise(raw.append_column("diff", pa.array([1] * len(held))), schema), schema)
    several = op in ("in", "not in", ROWS)
    both = tuple(Condition(name, "in", tuple(meant)) for name in ("f", "g"))
    where = Predicate((Condition("", ROWS, both),)) if op == ROWS else ("f", op, meant if several else meant[0])
    predicate = Predicate.parse(where)

    numbers = [_rank(float(value)) for value in meant]
    found = predicate.filter(table)
    ranks = [_rank(value) for value in table["f"].to_pylist()]
    if op in COMPARED:
        wanted = [rank for rank in ranks if COMPARED[op](rank, numbers[0])]
    else:
        wanted = [rank for rank in ranks if (rank in numbers) != (op == "not in")]
    assert [_rank(value) for value in found["f"].to_pylist()] == wanted
    if wanted:
        [encoded] = encode_parts([table], schema, 0)
        assert predicate.may_match(encoded.part, schema)
    keys = predicate.keys(schema)
    assert keys is None or all(keys.contains(sure(each)) for each in encode_key([found["f"]]).to_pylist())


def _rank(value: Any) -> tuple[bool, float]:
    """The order of floats: NaN comes last."""
    return (True, 0.0) if math.isnan(value) else (False, value)


@pytest.mark.parametrize(
    ("where", "may"),
    [("f = 0.1", False), ("f in (0.1, 0.2)", False), ("f > 0.5", False), ("f < 0.1", False), ("f >= 0.1", True)],
)
def test_part_without_a_number_that_was_given_is_left_out(where: str, may: bool) -> None:
    schema = Schema(key={"f": pa.float32()}, val={})
    table = pa.table({"f": pa.array([0.1, 0.5], pa.float32()), "ts": [0, 0], "diff": [1, 1]})
    [encoded] = encode_parts([normalise(table, schema)], schema, 0)
    assert Predicate.parse(where).may_match(encoded.part, schema) is may


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (pa.int64(), "c = 9007199254740992e0"),
        (pa.uint64(), "c < 1e15"),
        (pa.decimal128(38, 18), "c = 1e0"),
        (pa.decimal128(10, 2), "c = '1.5'"),
        (pa.timestamp("s"), "c = 5"),
        (pa.date32(), "c < 5"),
        (pa.date32(), ("c", "=", 5.0)),
    ],
    ids=str,
)
def test_number_that_engines_compare_otherwise_is_refused(kind: pa.DataType, where: Any) -> None:
    with pytest.raises(InvalidArgument):
        Predicate.parse(where).check(Schema(key={"c": kind}))


def test_number_with_an_exponent_is_a_double() -> None:
    table = pa.table({"n": [100, 10**14], "d": pa.array([decimal.Decimal("0.10"), decimal.Decimal(3)])})
    assert Predicate.parse("n = 1e2 and d = 1e-1").filter(table).num_rows == 1
    assert Predicate.parse("n < 1.5e14 and d >= 1e-1").filter(table).num_rows == 2
    with pytest.raises(InvalidArgument, match="beyond all doubles"):
        Predicate.parse("n < 1e400")


def test_float_that_is_given_as_such_is_meant_by_its_digits() -> None:
    table = pa.table({"d": pa.array([decimal.Decimal("1.5"), decimal.Decimal("2.5")], pa.decimal128(38, 18))})
    assert Predicate.parse(("d", "=", 1.5)).filter(table).num_rows == 1
