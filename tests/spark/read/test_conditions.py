"""The read option ``where`` chooses what ``DataFrame.where`` does by the same text, or is refused: never other rows."""

import datetime
import decimal
import math
import random
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from simulation.budget import examples

import persist
from pyspark_persist.finding import current_schema
from pyspark_persist.options.parsing import parse_read
from pyspark_persist.read.reading import reader_for
from pyspark_persist.read.view import schema_of

D: Final = decimal.Decimal
DAY: Final = datetime.date
AT: Final = datetime.datetime
FLOATS: Final = [0.1, 0.5, -0.0, 0.0, 16777216.0, 3.4e38, 1e-45, math.nan, math.inf, -math.inf, -2.5, 3.0, None]
TIMES: Final = [
    AT(2024, 1, 1), AT(2024, 1, 1, 12, 30), AT(2024, 2, 29, 23, 59, 59, 999999), AT(1969, 12, 31, 23, 59, 59, 500000),
    AT(1, 1, 1), AT(1582, 10, 10), None,
]  # fmt: skip
VALUES: Final[dict[str, tuple[pa.DataType, list[Any]]]] = {
    "flag": (pa.bool_(), [True, False, None]),
    "tiny": (pa.int8(), [-128, 0, 1, 127, None]),
    "whole": (pa.int32(), [-(2**31), -1, 0, 1, 16777217, 2**31 - 1, None]),
    "big": (pa.int64(), [-(2**63), -1, 0, 1, 2**53 - 1, 2**53, 2**53 + 1, 10**16 - 1, 2**63 - 1, None]),
    "unsigned": (pa.uint64(), [0, 1, 2**53 + 1, 2**63, 2**64 - 1, None]),
    "float": (pa.float32(), FLOATS),
    "double": (pa.float64(), [*FLOATS, 0.1 + 0.2, 2.0**53, 1e308, 5e-324, 100.0]),
    "price": (pa.decimal128(10, 2), [D("0.10"), D("0.12"), D("-2.50"), D("99999999.99"), D(0), D(3), None]),
    "long": (pa.decimal128(38, 18), [D("0.1"), D("0.100000000000000001"), D("12345678901234567890.5"), D(-1), None]),
    "count": (pa.decimal128(38, 0), [D(10) ** 22, D(10) ** 22 + 1, D(2**53 + 1), D(1), D(0), None]),
    "text": (pa.string(), [
        "", "a", "A", "ab", "a%b", "a_b", "a\nb", "5", "5.0", "2024-01-01", "true", "ä", "😀", "o'b", None,
    ]),
    "raw": (pa.binary(), [b"", b"a", b"ab", b"\xff", b"5", None]),
    "day": (pa.date32(), [DAY(2024, 1, 1), DAY(2024, 2, 29), DAY(1970, 1, 1), DAY(1582, 10, 10), DAY(1, 1, 1), None]),
    "at": (pa.timestamp("us", "UTC"), TIMES),
    "local": (pa.timestamp("us"), TIMES),
    "second": (pa.timestamp("s"), [None if each is None else each.replace(microsecond=0) for each in TIMES]),
}  # fmt: skip
NUMBERS: Final = [
    "0", "1", "-1", "+1", "3", "127", "128", "5", "0.1", "0.10", "0.5", ".5", "-2.5", "1.0", "1.5", "0.125", "-0.0",
    "16777216", "16777217", "16777217.0", "9007199254740992", "9007199254740993", "9007199254740993.0",
    "9007199254740993e0", "9.007199254740992e15", "1e-1", "1e0", "1e2", "1.5e0", "1e16", "1e22",
    "1e38", "1e39", "1e308",
    "1e400", "-1e39", "1e-46", "4e-46", "9223372036854775807", "9223372036854775808", "18446744073709551615",
    "0.100000001490116119384765625", "0.30000000000000004", "0.100000000000000001", "10000000000000000000000",
    "12345678901234567890.5", "12345678901234567890.5e0", "99999999.99", "99999999.994", "3.4e38",
]  # fmt: skip
WORDS: Final = [
    "''", "'a'", "'A'", "'ab'", "'a%b'", "'5'", "'5.0'", "' 5'", "'0.1'", "'true'", "'ä'", "'😀'", "'o''b'", r"'a\nb'",
    r"'a\\b'", r"'a\_b'", r"'\u0061'", "'NaN'", "'Infinity'", "'2024-01-01'", "'2024-1-1'",
    "'2024'", "'2024-02'", "'2024-02-30'",
    "'2024-01-01 12:30:00'", "'2024-01-01T12:30:00'", "'2024-01-01 12:30'",
    "'2024-01-01T12:30:00Z'", "'2024-01-01 12:30:00+02:00'",
    "'2024-02-29 23:59:59.999999'", "'2024-02-29 23:59:59.9999999'", "'1969-12-31 23:59:59.5'",
    "'1582-10-10'", "'0001-01-01'",
    "'1970-01-01'", "' 2024-01-01 '", "'2024-01-01 '", "'infinity'", "'today'", "'epoch'",
]  # fmt: skip
PATTERNS: Final = [
    "''", "'%'", "'a%'", "'%b'", "'_'", "'a_b'", r"'a\_b'", r"'a\%b'", r"'a\%%'", "'a%b'", "'%.%'",
    "'a+'", r"'%\%'", r"'a\b'",
    "'😀'",
]  # fmt: skip
FUNCTIONS: Final = ["year", "quarter", "month", "day", "dayofyear", "dayofweek", "date", "hour", "minute", "second"]
TEXTS: Final = ("text", "raw", "day", "at", "local", "second")
OPS: Final = ("=", "!=", "<", "<=", ">", ">=")
COMPARISONS: Final = [
    *(f"{name} {op} {value}" for name in VALUES for value in [*NUMBERS, *WORDS, "true"] for op in OPS),
    *(f"{name} {turned}like {value}" for name in TEXTS for value in PATTERNS for turned in ("", "not ")),
    *(
        f"{function}({name}) {op} {value}"
        for name in ("day", "at", "local", "second")
        for function in FUNCTIONS
        for value in ("1", "3", "59", "1969", "2024", "2024.0", "1e0", "'2024-01-01'", "'1969-12-31'")
        for op in OPS
    ),
]
SEED: Final = 14
SHARE: Final = examples(200) / 2_000


class Asked(NamedTuple):
    """A shard of many parts, and what Spark shows of it."""

    options: dict[str, str]
    frame: Any

    def of_spark(self, text: str) -> set[int] | str:
        """The rows that ``DataFrame.where`` finds, by their ids; what it says where it refuses."""
        try:
            return {row.id for row in self.frame.where(text).select("id").collect()}
        except PySparkException as error:
            return str(error).splitlines()[0]

    def of_option(self, text: str) -> set[int] | str:
        """The rows that the option finds, by the calls that Spark makes."""
        try:
            options = parse_read({**self.options, "where": text, "columns": "id"})
            source = reader_for(options, schema_of(options, current_schema(options.target)))
            batches = (batch for part in source.partitions() for batch in source.read(part))
            return {each for batch in batches for each in batch.column("id").to_pylist()}
        except persist.InvalidArgument as error:
            return str(error).splitlines()[0]


@pytest.fixture(scope="module")
def asked(spark: Any, client: Any, location: str) -> Asked:
    """Rows of every column's values; each part holds few of them, so that what is left out by statistics shows."""
    shard = persist.ShardId.new()
    kinds = {name: kind for name, (kind, _) in VALUES.items()}
    count = 2 * max(len(values) for _, values in VALUES.values())
    columns = {
        name: pa.array([(values + values[::-1])[at % (2 * len(values))] for at in range(count)], kind)
        for name, (kind, values) in VALUES.items()
    }
    rows = pa.table({"id": pa.array(range(count), pa.int64()), **columns})
    writer = client.open_writer(shard, schema=persist.Schema(key={"id": pa.int64()}, val=kinds))
    for start in range(0, count, 3):
        writer.append_at_upper(rows.slice(start, 3))
    options = {"location": location, "shard": str(shard)}
    shown = spark.read.format("persist").options(**options).load().toArrow()
    return Asked(options, spark.createDataFrame(shown))


def test_each_column_compares_to_values_as_in_spark(asked: Asked) -> None:
    _agree(asked, [text for text in COMPARISONS if random.Random(f"{SEED} {text}").random() < SHARE])


def test_conditions_that_are_joined_choose_as_in_spark(asked: Asked) -> None:
    dealt = random.Random(SEED)
    _agree(asked, [_joined(dealt, asked, depth=2) for _ in range(examples(300))])


@pytest.mark.parametrize(
    "text",
    [
        "float = 0.1", "float < 16777217", "float >= 0.1", "float in (0.1, 0.5)", "float not in (0.1, 0.5)",
        "(float = 0.1 and id = 0) or (float = 0.5 and id = 1)", "not (float between 0.1 and 3.4e38)", "float < -1e39",
        "float != 1e-46", "big = 1e3", "big < 1e2", "price >= 1e-1", "text like 'a\\_b'", "double = 1e308",
    ],
)  # fmt: skip
def test_mixed_types_are_compared_and_not_refused(asked: Asked, text: str) -> None:
    assert asked.of_option(text) == asked.of_spark(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("big = 9007199254740992e0", "next to several"),
        ("count = 1e22", "next to several"),
        ("long = 1.5e0", "next to several"),
        ("long = '0.1'", "does not fit"),
        ("at < 0", "does not fit"),
        ("day = 19723", "does not fit"),
        ("double < 1e400", "beyond all doubles"),
        ("text = 'a\\nb'", "backslash"),
        ("text like 'a\\b'", "backslash"),
        ("\"text\" = 'text'", "double quote"),
    ],
)
def test_what_spark_would_answer_otherwise_is_refused(asked: Asked, text: str, reason: str) -> None:
    refused = asked.of_option(text)
    assert isinstance(refused, str)
    assert reason in refused


def _agree(asked: Asked, texts: list[str]) -> None:
    """Each of them is refused or chooses the same rows, in parts of which statistics leave some out."""
    wrong, chosen = {}, 0
    for text in texts:
        found = asked.of_option(text)
        if isinstance(found, str):
            continue
        chosen += 1
        wanted = asked.of_spark(text)
        if found != wanted:
            wrong[text] = found, wanted
    assert not wrong
    assert chosen > len(texts) / 5


def _joined(dealt: random.Random, asked: Asked, depth: int) -> str:
    """A condition that is not refused."""
    if depth and dealt.random() < 0.7:
        sides = [_joined(dealt, asked, depth - 1) for _ in range(dealt.choice([1, 2, 2, 3]))]
        joined = dealt.choice([" and ", " or "]).join(sides)
        return f"not ({joined})" if dealt.random() < 0.3 else f"({joined})"
    while True:
        text = dealt.choice([dealt.choice(COMPARISONS), _of_several(dealt)])
        if not isinstance(asked.of_option(text), str):
            return text


def _of_several(dealt: random.Random) -> str:
    name = dealt.choice(list(VALUES))
    values = WORDS if name in TEXTS else NUMBERS
    turned = dealt.choice(["", "not "])
    if dealt.random() < 0.2:
        return f"{name} is {turned}null"
    if dealt.random() < 0.5:
        return f"{name} {turned}between {dealt.choice(values)} and {dealt.choice(values)}"
    return f"{name} {turned}in ({', '.join(dealt.choices(values, k=dealt.randint(1, 3)))})"
