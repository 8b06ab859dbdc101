"""``cast_exactly`` keeps every value or refuses; and no module casts values of users by anything else."""

import ast
import contextlib
import decimal
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from test_tidy import SOURCE_ROOTS, handwritten, name
from trees import nodes, text

from persist.arrow.exact import cast_exactly, decimal_of

KINDS = [
    pa.decimal32(9, 2),
    pa.decimal64(18, 2),
    pa.decimal128(10, 2),
    pa.decimal128(38, 0),
    pa.decimal128(38, 10),
    pa.decimal128(38, 38),
    pa.decimal256(76, 0),
    pa.decimal256(76, 40),
]
LARGE = [2**power + add for power in (31, 32, 63, 64, 127, 128, 255, 256, 300) for add in (-7, 0, 5)]
TEXTS = [
    *(f"{sign}{number}{more}" for number in LARGE for sign in ("", "-") for more in ("", ".00", ".5", "e0", "e-3")),
    *(f"{mantissa}e{power}" for power in range(-420, 421, 7) for mantissa in ("1", "-7", "123.456", "0.001", "0")),
    *(f"{'9' * digits}{more}" for digits in range(1, 90) for more in ("", ".5", "e1", "e-1")),
    *(f"{'7' + '0' * digits}" for digits in range(80)),
    *("0" * 100 + "5", "0." + "0" * 50, "1." + "0" * 80, ".5", "5.", "+5", "1e99999999999", "-0"),
]
NONE = ["", " 7", "1_000", "NaN", "Infinity", "1e", "0x10", "\u0661", "1.5.5", "--1", "e5"]
CONTEXT = decimal.Context(prec=2000)


def kept(column: pa.Array, kind: Any) -> decimal.Decimal | None:
    """What became of the only value; None: it was refused."""
    try:
        found = cast_exactly(column, kind)
    except pa.ArrowException:
        return None
    found.validate(full=True)
    return found[0].as_py()


def fits(number: decimal.Decimal, kind: Any) -> bool:
    """By Python's own numbers."""
    if not number:
        return True
    if abs(number.adjusted()) > 1000:
        return False
    shifted = number.scaleb(kind.scale, CONTEXT)
    return shifted == shifted.to_integral_value() and shifted.copy_abs() < decimal.Decimal(10) ** kind.precision


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_text_is_the_number_that_it_says_or_is_refused(kind: pa.DataType) -> None:
    for said in TEXTS:
        number = decimal.Decimal(said)
        assert kept(pa.array([said]), kind) == (number if fits(number, kind) else None), said
    for said in NONE:
        assert kept(pa.array([said]), kind) is None, said
        with pytest.raises(pa.ArrowInvalid):
            decimal_of(said, kind)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("given", KINDS, ids=str)
def test_a_decimal_is_the_same_number_in_another_type_or_is_refused(given: Any, kind: Any) -> None:
    unit, chance = decimal.Decimal(1).scaleb(-given.scale), random.Random(7)
    whole = [10**power * by for power in range(given.precision) for by in (1, -7, 9)]
    whole += [chance.randrange(10 ** chance.randrange(1, given.precision + 1)) for _ in range(60)]
    for number in (CONTEXT.multiply(unit, decimal.Decimal(each)) for each in whole if abs(each) < 10**given.precision):
        assert kept(pa.array([number], given), kind) == (number if fits(number, kind) else None), number


def test_an_integer_is_the_same_number_or_is_refused() -> None:
    for kind in KINDS:
        for number in (0, 5, -7, 2**31, 2**63 - 1, -(2**63)):
            fitting = decimal.Decimal(number) if fits(decimal.Decimal(number), kind) else None
            assert kept(pa.array([number], pa.int64()), kind) == fitting, (number, kind)


def test_values_of_a_column_are_each_what_they_are_alone() -> None:
    texts = ["1.50", None, str(2**100) + "e-30", "00000000000000000000000000000000000000000000007", "-2e3"]
    wanted = [None if text is None else decimal.Decimal(text) for text in texts]
    for kind in (pa.decimal128(38, 30), pa.decimal256(76, 30)):
        for column in (pa.array(texts), pa.array(["9", *texts])[1:], pa.array(texts).dictionary_encode()):
            with contextlib.suppress(pa.ArrowInvalid):
                assert cast_exactly(column, kind).to_pylist() == wanted
        assert cast_exactly(pa.chunked_array([texts[:2], [], texts[3:]]), pa.decimal128(10, 2)).to_pylist() == [
            *wanted[:2],
            *wanted[3:],
        ]


def test_decimals_inside_of_others_are_kept_or_refused() -> None:
    few, many = decimal.Decimal(5), -7 * decimal.Decimal(10) ** 28
    for nested, value in (
        (lambda kind: pa.list_(kind), lambda number: [number, None]),
        (lambda kind: pa.map_(pa.string(), kind), lambda number: [("a", number)]),
        (lambda kind: pa.struct({"x": pa.float64(), "d": kind}), lambda number: {"x": 1.5, "d": number}),
    ):
        given, kind = nested(pa.decimal128(38, 0)), nested(pa.decimal128(38, 10))
        assert cast_exactly(pa.array([value(few), None], given), kind).to_pylist() == [value(few), None]
        with pytest.raises(pa.ArrowInvalid):
            cast_exactly(pa.array([value(few), value(many)], given), kind)


def test_no_number_becomes_infinite_or_nothing() -> None:
    for column, kind in (
        (pa.array(["1e400"]), pa.float64()),
        (pa.array(["-1e-400"]), pa.float64()),
        (pa.array([1e300]), pa.float32()),
        (pa.array([1e-300]), pa.float32()),
    ):
        with pytest.raises(pa.ArrowInvalid):
            cast_exactly(column, kind)
    assert cast_exactly(pa.array(["inf", "0e5", "0.0", None]), pa.float64()).to_pylist() == [np.inf, 0, 0, None]
    assert cast_exactly(pa.array([np.inf, 0.0, 1.5]), pa.float32()).to_pylist() == [np.inf, 0, 1.5]


BARE = {
    "persist/core/data/values.py": "in the storage type of its own type, which has the same digits",
    "persist/core/data/update.py": "times and counts, which are integers",
    "persist/core/data/predicates/condition.py": "what is compared with the values of a column",
    "persist/wire/columnar/decode.py": "what Parquet has no seconds for",
    "persist/client/sql/following.py": "which columns may be null",
    "persist_ingest/sources/kafka/schemas/decoder.py": "which columns may be null",
    "persist/client/sql/bind/spark.py": "expressions of SQL",
    "persist/client/sql/bind/meaning.py": "expressions of SQL",
    "persist/client/sql/bind/times.py": "expressions of SQL",
    "persist/client/sql/parse/tokens.py": "expressions of SQL",
    "persist/client/sql/bind/functions.py": "expressions of SQL",
    "pyspark_persist/query/frames.py": "columns of Spark",
    "pyspark_persist/change/rows.py": "columns of Spark",
    "pyspark_persist/change/expressions.py": "columns of Spark",
    "spark/examples/flights.py": "columns of Spark",
    "spark/examples/tpcb_checks.py": "rows that it made itself",
    "spark/examples/truth.py": "rows that it made itself",
}
"""Modules that cast to a type which is not written there, of which no value of a user's can become another."""


def bare_casts(path: Path) -> Iterator[int]:
    """Lines that cast by Arrow to a decimal, or to a type that only the data decides."""
    for node in nodes(path) if ".cast(" in text(path) else ():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "cast":
            continue
        kind = node.args[1:2] if ast.unparse(node.func.value) in ("pc", "pyarrow.compute") else node.args[:1]
        said = ast.unparse(kind[0]) if kind else "nothing"
        if "typing" in ast.unparse(node.func.value) or said.startswith(("'", '"')):
            continue
        if any(
            each.arg == "safe" and ast.unparse(each.value) == "False" for each in node.keywords
        ) and not said.startswith(("pa.date", "pa.timestamp")):
            yield node.lineno
        if "decimal" in said or not said.startswith(("pa.", "pyarrow.")):
            yield node.lineno


def test_values_of_users_are_cast_exactly_everywhere() -> None:
    found = {}
    for path in handwritten(*SOURCE_ROOTS):
        if lines := list(bare_casts(path)):
            found[name(path)] = lines
    known = {module: found.pop(module, None) for module in [*found] if any(module.endswith(each) for each in BARE)}
    found.pop("clients/persist/arrow/exact.py")
    assert found == {}
    assert len(known) == len(BARE)
