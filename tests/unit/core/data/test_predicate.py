import datetime
import decimal
import math
import pickle

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.budget import examples

from persist.core.data.predicate import Predicate
from persist.core.data.schema import Schema
from persist.core.data.update import consolidate, normalise
from persist.errors import InvalidArgument
from persist.wire.columnar import encode_parts

ROWS = pa.table(
    {
        "id": pa.array([1, 5, 9, None]),
        "name": ["x", "y", "o'b", None],
        "f": [1.0, math.nan, -1.0, None],
        "day": pa.array([datetime.date(2020, 1, 1), datetime.date(2021, 1, 1), None, None]),
        "at": pa.array([0, 10**15, 5, 6], pa.timestamp("us", "Europe/Paris")),
        "flag": [True, False, None, True],
        "price": pa.array([decimal.Decimal(n) for n in (1, 2, 3, 4)], pa.decimal128(10, 2)),
        "raw": [b"a", b"b", b"c", b"d"],
        "code": pa.array([b"ab"] * 4, pa.binary(2)),
        "a.b": [1, 2, 3, 4],
        "list": [[1], [2], None, []],
    }
)


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("id >= 5 and name = 'y'", [1]),
        ("name = 'o''b'", [2]),
        ("id = +1", [0]),
        ("id > -3", [0, 1, 2]),
        ("f > 0", [0, 1]),
        ("f <= 1e0", [0, 2]),
        ("f != 1", [1, 2]),
        (("f", "=", math.nan), [1]),
        (("f", "<", math.nan), [0, 2]),
        ("day >= '2020-06-01'", [1]),
        (("day", "=", datetime.date(2020, 1, 1)), [0]),
        ("at < '1970-01-02'", [0, 2, 3]),
        ("at = '2001-09-09T01:46:40'", [1]),
        ("at = '2001-09-09T03:46:40+02:00'", [1]),
        ("flag = true", [0, 3]),
        ("flag != true", [1]),
        ("price >= 2.5", [2, 3]),
        ("raw > 'b'", [2, 3]),
        ("code = 'ab' AND id IN (1, 9)", [0, 2]),
        ("id is null", [3]),
        ("name is  NOT null and id < 9", [0, 1]),
        ("a.b > 2", [2, 3]),
        ('`id` == 1 and "id" <> 2', [0]),
        ("list is null", [2]),
        ([("id", ">", 1), "id < 9"], [1]),
        ([], [0, 1, 2, 3]),
        (("id", "in", []), []),
        (("id", "in", [None, 5]), [1]),
        (("id", "=", pa.scalar(5, pa.int64())), [1]),
        (Predicate.parse("id = 5"), [1]),
    ],
    ids=str,
)
def test_filter_keeps_the_rows_that_match(where, rows):
    predicate = Predicate.parse(where)
    assert predicate.filter(ROWS).column("raw").to_pylist() == [ROWS.column("raw")[row].as_py() for row in rows]
    assert pickle.loads(pickle.dumps(predicate)).filter(ROWS).num_rows == len(rows)


@pytest.mark.parametrize(
    "where",
    [
        "",
        "id",
        "id >",
        "id = 5 or id = 6",
        "id = 5 id = 6",
        "id = null",
        "id = ;",
        "= 5",
        "id in 5",
        "id in (5",
        "and = 5",
        *("id is 5", "id >= 5 and", 5, ("id", "like", "x"), ("id", "=", None), ("id", "in", "abc"), [3]),
    ],
    ids=str,
)
def test_parse_of_what_is_no_predicate_is_refused_with_an_example(where):
    with pytest.raises(InvalidArgument) as caught:
        Predicate.parse(where)
    assert caught.value.hint


@pytest.mark.parametrize(
    "where",
    [
        *("zz = 1", "id = 'x'", "id = 5.5", "id = 99999999999999999999999", "name = 5", "flag = 1", "id = true"),
        *("day = 'tomorrow'", "list = 1", "price = 1.005", "f = '1'"),
    ],
)
def test_check_and_filter_refuse_what_the_columns_cannot_answer(where):
    schema = Schema({"id": pa.int64()}, {name: ROWS.schema.field(name).type for name in ROWS.schema.names[1:]})
    with pytest.raises(InvalidArgument):
        Predicate.parse(where).filter(ROWS)
    with pytest.raises(InvalidArgument):
        Predicate.parse(where).check(schema)


@pytest.mark.parametrize(("where", "times"), [("ts <= 1", False), ("diff = 1", False), ("diff = 1", True)])
def test_check_refuses_to_choose_updates_by_what_is_summed(where, times):
    with pytest.raises(InvalidArgument, match="before they are summed"):
        Predicate.parse(where).check(Schema({"id": pa.int64()}), times=times)
    Predicate.parse("ts <= 1").check(Schema({"id": pa.int64()}), times=True)


def test_columns_are_those_it_looks_at():
    assert Predicate.parse("a = 1 and b is null and a < 3").columns == {"a", "b"}


def part_of(table, schema):
    [encoded] = encode_parts([table], schema, 0)
    return encoded.part


VALUES = {
    pa.int64(): st.integers(-3, 3),
    pa.float64(): st.sampled_from([math.nan, -0.0, 0.0, 1.0, -math.inf, math.inf]),
    pa.string(): st.sampled_from(["", "a", "a" * 31, "a" * 32, "a" * 40, "b"]),
    pa.bool_(): st.booleans(),
}


@st.composite
def pruning_cases(draw):
    given_type = draw(st.sampled_from(list(VALUES)))
    rows = draw(st.lists(st.none() | VALUES[given_type], min_size=1, max_size=4))
    op = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "in", "is null", "is not null"]))
    value = draw(st.lists(VALUES[given_type], max_size=2)) if op == "in" else draw(VALUES[given_type])
    return given_type, rows, ("c", op, None if op.startswith("is") else value)


@given(pruning_cases())
@settings(max_examples=examples(150), deadline=None)
def test_may_match_never_skips_a_part_with_a_matching_row(case):
    given_type, rows, where = case
    schema = Schema({"k": pa.int64()}, {"c": given_type})
    raw = pa.table(
        {"k": range(len(rows)), "c": pa.array(rows, given_type), "ts": [0] * len(rows), "diff": [1] * len(rows)}
    )
    table = consolidate(normalise(raw, schema), schema)
    predicate = Predicate.parse(where)
    if predicate.filter(table).num_rows:
        assert predicate.may_match(part_of(table, schema), schema)


@pytest.mark.parametrize(
    ("where", "may"),
    [
        ("c > 5", False),
        ("c >= 5", True),
        ("c < 1", False),
        ("c = 3", True),
        ("c = 6", False),
        ("c in (0, 9)", False),
        ("c is null", False),
        ("c is not null", True),
        ("c = 1 and c = 9", False),
        ("other = 1", True),
    ],
)
def test_may_match_skips_parts_by_their_bounds(where, may):
    schema = Schema({"k": pa.int64()}, {"c": pa.int64()})
    table = pa.table(
        {"k": [1, 2], "c": [1, 5], "ts": pa.array([0, 0], pa.uint64()), "diff": [1, 1]}, schema=schema.updates
    )
    assert Predicate.parse(where).may_match(part_of(table, schema), schema) is may
