"""Many conditions at once: rows whose columns equal any of many rows of values, and expressions nested deeply."""

import datetime
import functools
import math
import operator
import pickle
import subprocess
import sys
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sure import sure

from persist.core.data import predicate as predicate_module
from persist.core.data.encoding import encode_key
from persist.core.data.predicate import Predicate
from persist.core.data.predicates import arrow, holding
from persist.core.data.predicates.condition import OR, Condition, any_of
from persist.core.data.schema import Schema
from persist.core.data.update import consolidate, normalise
from persist.errors import InvalidArgument
from persist.wire.columnar import encode_parts

MANY = 10_000
SCHEMA = Schema({"a": pa.int64()}, {"b": pa.string(), "f": pa.float64(), "at": pa.timestamp("us", "UTC")})
VALUES = {
    "a": st.integers(-2, 2),
    "b": st.sampled_from(["", "x", "y" * 40]),
    "f": st.sampled_from([math.nan, -0.0, 0.0, 1.0, math.inf]),
    "at": st.sampled_from([datetime.datetime(2020, 2, 29, hour, tzinfo=datetime.UTC) for hour in (0, 23)]),
}


@st.composite
def sides(draw):
    """What all holds: one to three equations of different columns, at times beside another comparison."""
    names = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3, unique=True))
    found = [Condition(name, "=", draw(VALUES[name])) for name in names]
    if draw(st.integers(0, 5)) == 0:
        found.append(Condition("a", draw(st.sampled_from(["<", "!=", "is null"])), 1))
    return tuple(found)


def rows_of(draws):
    columns = {name: pa.array([row[name] for row in draws], kind) for name, kind in TYPES.items()}
    raw = pa.table(columns | {"ts": [0] * len(draws), "diff": [1] * len(draws)})
    return consolidate(normalise(raw, SCHEMA), SCHEMA)


TYPES = dict(zip(SCHEMA.updates.names, SCHEMA.updates.types, strict=True))
TYPES = {name: TYPES[name] for name in VALUES}


@given(
    st.lists(st.fixed_dictionaries({name: st.none() | each for name, each in VALUES.items()}), min_size=1, max_size=6),
    st.lists(sides(), min_size=1, max_size=6),
)
def test_rows_for_which_one_side_holds_are_those_of_each_side(draws, either):
    """By the text of each side alone, whose conditions are looked at one after the other."""
    table = rows_of(draws)
    fewer = any_of(either)
    joined = Predicate(fewer[0] if len(fewer) == 1 else (Condition("", OR, tuple(map(Predicate, fewer))),))
    alone = [Predicate((condition,)) for side in either for condition in side]
    masks = iter([set(each.filter(_numbered(table)).column("n").to_pylist()) for each in alone])
    wanted = set()
    for side in either:
        wanted |= functools.reduce(operator.and_, [next(masks) for _ in side])
    found = joined.filter(_numbered(table))
    assert set(found.column("n").to_pylist()) == wanted
    copy = pickle.loads(pickle.dumps(joined))
    assert set(copy.filter(_numbered(table)).column("n").to_pylist()) == wanted
    if wanted:
        [encoded] = encode_parts([table], SCHEMA, 0)
        assert joined.may_match(encoded.part, SCHEMA)
        keys = joined.keys(SCHEMA)
        assert keys is None or all(keys.contains(sure(key)) for key in encode_key([found.column("a")]).to_pylist())


def _numbered(table):
    return table.append_column("n", pa.array(range(table.num_rows)))


PAIRS = " or ".join(f"(a = {n} and b = {7 * n % MANY})" for n in range(MANY))
TURNED = " or ".join(f"(b = {7 * n % MANY} and a = {n})" for n in range(MANY))
BESIDE = " or ".join(f"(a = {n} and b = {7 * n % MANY}) or b > {MANY + n} and a = {n}" for n in range(300))


def counted(monkeypatch: pytest.MonkeyPatch, place: ModuleType, name: str) -> list[str]:
    """Grows by one with each call of a function."""
    calls: list[str] = []
    function = getattr(place, name)

    def calling(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return function(*args, **kwargs)

    monkeypatch.setattr(place, name, calling)
    return calls


@pytest.mark.parametrize(
    ("where", "looks"), [(PAIRS, 1), (TURNED, 1), (BESIDE, 601)], ids=["pairs", "turned", "beside others"]
)
def test_many_pairs_are_looked_at_once(where: str, looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one after the other: 10,000 took 2.5 s of each block, and as long of each part that it might leave out."""
    rows = pa.table({"a": range(65_536)})
    rows = rows.append_column("b", pc.multiply(rows.column("a"), 7))
    schema = Schema({"a": pa.int64()}, {"b": pa.int64()})
    encoded = next(iter(encode_parts([consolidate(normalise(_updates(rows), schema), schema)], schema, 0)))
    predicate = Predicate.parse(where)
    held, may = counted(monkeypatch, predicate_module, "holds"), counted(monkeypatch, predicate_module, "_may_hold")
    columns = counted(monkeypatch, holding, "encode_key")
    assert predicate.filter(rows).column("a").to_pylist()[:3] == [0, 1, 2]
    assert len(held) == looks
    assert len(columns) <= 3, "both columns, each alone and both together"
    assert predicate.may_match(encoded.part, schema)
    assert len(may) <= 2 * looks


def _updates(rows: pa.Table) -> pa.Table:
    return rows.append_column("ts", pa.array([0] * len(rows))).append_column("diff", pa.array([1] * len(rows)))


def test_pairs_are_one_condition_and_leave_out_parts_without_any() -> None:
    schema = Schema({"a": pa.int64()}, {"b": pa.int64()})
    table = consolidate(normalise(_updates(pa.table({"a": [3, 4], "b": [5, 6]})), schema), schema)
    [encoded] = encode_parts([table], schema, 0)

    def may(where: str) -> bool:
        return Predicate.parse(where).may_match(encoded.part, schema)

    assert len(Predicate.parse("a = 1 and b = 2 or (b = 3 and a = 4 or a = 5 and b = 6)").conditions) == 1
    assert may("a = 3 and b = 5 or a = 9 and b = 9")
    assert not may("a = 3 and b = 9 or a = 9 and b = 5")
    keys = Predicate.parse("a = 3 and b = 9 or a = 9 and b = 5").keys(schema)
    assert keys is not None
    assert [keys.contains(sure(key)) for key in encode_key([pa.array([2, 3, 9, 10])]).to_pylist()] == [
        False, True, True, False
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("a = 1 and c = 2 or a = 2 and c = 3", "no such column"),
        ("a = 1 and b = 'x' or a = 2 and b = 'y'", "does not fit"),
        ("a = 1 and diff = 1 or a = 2 and diff = 2", "before they are summed"),
    ],
)
def test_pairs_that_the_columns_cannot_answer_are_refused(where: str, error: str) -> None:
    with pytest.raises(InvalidArgument, match=error):
        Predicate.parse(where).check(Schema({"a": pa.int64()}, {"b": pa.int64()}))


def test_pairs_of_other_columns_are_the_same() -> None:
    one = Predicate.parse("a = 1 and b = 2 or a = 2 and b = 3")
    assert one.renamed(str.upper) == Predicate.parse("A = 1 and B = 2 or A = 2 and B = 3")
    assert one.columns(pa.schema({"a": pa.int64(), "b": pa.int64(), "c": pa.int64()})) == {"a", "b"}


DEEP = """
import functools, operator, sys
import pyarrow as pa, pyarrow.compute as pc
from persist.core.data import predicate as predicate_module
from persist.core.data.predicate import Predicate
from persist.core.data.predicates import arrow, holding
from persist.errors import InvalidArgument
deep = functools.reduce(operator.or_, [pc.field("id") == n for n in range(int(sys.argv[1]))])
try:
    Predicate.parse([("id", ">", 5), deep])
except InvalidArgument as error:
    print(error.message, error.hint)
"""


@pytest.mark.parametrize("depth", [3_000, 10_000, 50_000])
def test_expression_that_is_nested_too_deeply_is_refused(depth: int) -> None:
    """Arrow itself ends the process by it."""
    done = subprocess.run([sys.executable, "-c", DEEP, str(depth)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert "nested too deeply" in done.stdout
    assert "isin" in done.stdout


def test_expression_of_many_conditions_side_by_side_chooses_rows() -> None:
    level = [pc.field("id") == n for n in range(1_024)]
    while len(level) > 1:
        level = [operator.or_(*level[n : n + 2]) for n in range(0, len(level), 2)]
    chain = functools.reduce(operator.or_, [pc.field("name") == f'((("{n}' for n in range(500)])
    rows = pa.table({"id": [5, 2_000], "name": ["x", '((("7']})
    assert Predicate.parse(level[0]).filter(rows).column("id").to_pylist() == [5]
    assert Predicate.parse(chain).filter(rows).column("id").to_pylist() == [2_000]


def test_columns_of_an_expression_about_a_wide_table_are_found_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"c{n}" for n in range(2_000)]
    schema = pa.schema([(name, pa.int64()) for name in names])
    expression = (pc.field("c7") > 1) | (pc.field("c1999") == pc.field("c512"))
    steps = counted(monkeypatch, arrow, "_answers")
    assert Predicate.parse(expression).columns(schema) == {"c7", "c512", "c1999"}
    assert 3 <= len(steps) <= 3 * 2 * 11
