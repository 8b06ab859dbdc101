"""Random types, values and tables, and the order they must have, written as plainly as possible."""

import decimal
import math
from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from persist.core.data.encoding import encode_key
from persist.core.data.schema import Schema

T = pa.types

FLAT_TYPES = [
    pa.bool_(),
    pa.int8(),
    pa.int64(),
    pa.uint64(),
    pa.float64(),
    pa.float32(),
    pa.decimal128(20, 3),
    pa.decimal128(38, 0),
    pa.string(),
    pa.binary(),
    pa.binary(2),
    pa.timestamp("us", "UTC"),
    pa.date32(),
    pa.time64("ns"),
    pa.duration("s"),
]
_EXTRA_TYPES = [
    pa.float16(),
    pa.decimal256(50, 3),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int8(), pa.string()),
]

Types = st.SearchStrategy[Any]

FLOATS = [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, -math.nan, 5e-324, -5e-324]
TEXTS = ["", "a", "a\0", "a\0ÿ", "ab", "\0", "\1", "aaaaaaaa", "aaaaaaaab", "é", "\U0001f600"]
BYTES = [b"", b"\0", b"\0\xff", b"\xff", b"\xff\xff", b"a", b"a\0", b"a\0\xff", b"12345678", b"123456789"]


def structs(children: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.lists(children, min_size=1, max_size=2).map(
        lambda types: pa.struct([(f"f{i}", t) for i, t in enumerate(types)])
    )


def any_types() -> st.SearchStrategy[pa.DataType]:
    """Everything the encoding supports, nested up to a few levels."""
    return st.recursive(
        st.sampled_from(FLAT_TYPES + _EXTRA_TYPES),
        lambda inner: st.one_of(
            structs(inner),
            inner.map(pa.list_),
            inner.map(pa.large_list),
            inner.map(lambda item: pa.list_(item, 2)),
            inner.map(lambda item: pa.map_(pa.string(), item)),
        ),
        max_leaves=3,
    )


def key_types() -> st.SearchStrategy[pa.DataType]:
    flat: Types = st.sampled_from(FLAT_TYPES)
    return st.one_of(flat, structs(flat))


def val_types() -> st.SearchStrategy[pa.DataType]:
    flat: Types = st.sampled_from(FLAT_TYPES)
    nested: Types = st.one_of(flat.map(pa.list_), flat.map(lambda item: pa.map_(pa.string(), item)), structs(flat))
    return st.one_of(flat, nested, structs(flat.map(pa.list_)))


def values(given: pa.DataType, *, null: bool = True) -> st.SearchStrategy[Any]:
    some = _some(given)
    return st.one_of(st.none(), some) if null else some


def _some(given: Any) -> st.SearchStrategy[Any]:
    if T.is_dictionary(given):
        return _some(given.value_type)
    if T.is_boolean(given):
        return st.booleans()
    if T.is_decimal(given):
        top = 10**given.precision - 1
        return st.sampled_from([0, 1, -1, top, -top]).map(
            lambda digits: decimal.Decimal(digits).scaleb(-given.scale, decimal.Context(prec=60))
        )
    if T.is_floating(given):
        return st.sampled_from([x for x in FLOATS if given.bit_width == 64 or abs(x) != 5e-324])
    if T.is_integer(given):
        bits = given.bit_width
        low, high = (0, 2**bits - 1) if T.is_unsigned_integer(given) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return st.one_of(st.sampled_from([low, high, 0, 1, 2]), st.integers(low, high))
    if T.is_duration(given) or T.is_timestamp(given) or T.is_date(given):
        return st.sampled_from([0, 1, -1, 86_400, -86_400])
    if T.is_time(given):
        return st.sampled_from([0, 1, 10**9])
    if T.is_fixed_size_binary(given):
        return st.sampled_from([b"\0\0", b"\0\1", b"\xff\0", b"\xff\xff"])
    if T.is_struct(given):
        return st.fixed_dictionaries({field.name: values(field.type) for field in given})
    if T.is_map(given):
        items = values(given.item_type)
        return st.dictionaries(st.sampled_from("abc"), items, max_size=2).map(lambda entries: list(entries.items()))
    if T.is_fixed_size_list(given):
        return st.lists(values(given.value_type), min_size=2, max_size=2)
    kind: Any = given
    if T.is_nested(given):
        return st.lists(values(kind.value_type), max_size=2)
    text = T.is_string(given) or T.is_large_string(given) or given == pa.string_view()
    return st.sampled_from(TEXTS if text else BYTES)


def plain(value: Any) -> tuple[Any, ...]:
    """A Python value whose order is the order the rule set asks for: nulls first, one NaN last, no -0.0."""
    if value is None:
        return (1,)
    if isinstance(value, float):
        return (2, (1, 0.0)) if math.isnan(value) else (2, (0, value + 0.0))
    if isinstance(value, str):
        return (2, value.encode())
    if isinstance(value, dict):
        return (2, tuple(plain(item) for item in value.values()))
    if isinstance(value, list | tuple):
        return (2, tuple(plain(item) for item in value))
    return (2, value)


@st.composite
def arrays(draw: st.DrawFn, given: pa.DataType, size: int) -> pa.Array:
    """An array of ``size`` values at some offset into its buffers."""
    rows = draw(st.lists(values(given), min_size=size + 2, max_size=size + 2))
    array = pa.array(rows, given.value_type).cast(given) if T.is_dictionary(given) else pa.array(rows, given)
    return array.slice(1, size)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    keys = draw(st.lists(key_types(), min_size=1, max_size=2))
    vals = draw(st.lists(val_types(), max_size=2))
    return Schema({f"k{i}": t for i, t in enumerate(keys)}, {f"v{i}": t for i, t in enumerate(vals)})


@st.composite
def updates(draw: st.DrawFn, schema: Schema, max_size: int = 12) -> pa.Table:
    """Raw updates of few distinct rows, so that many of them meet."""
    size = draw(st.integers(0, max_size))
    columns = []
    for field in [*schema.key, *schema.val]:
        pool = draw(st.lists(values(field.type), min_size=1, max_size=3))
        columns.append(pa.array([pool[draw(st.integers(0, len(pool) - 1))] for _ in range(size)], field.type))
    times = draw(st.lists(st.sampled_from([0, 1, 5, 2**64 - 1]), min_size=size, max_size=size))
    diffs = draw(st.lists(st.sampled_from([1, -1, 2, 0]), min_size=size, max_size=size))
    columns += [pa.array(times, pa.uint64()), pa.array(diffs, pa.int64())]
    return pa.Table.from_arrays(columns, schema=schema.updates)


Row = tuple[tuple[bytes, bytes, int], int]


def rows_of(table: pa.Table, schema: Schema) -> list[Row]:
    """((key bytes, val bytes, ts), diff) of each row."""
    if not len(table):
        return []
    keys: list[Any] = encode_key([table.column(name) for name in schema.key.names]).to_pylist()
    vals: list[Any] = [b""] * len(table)
    if len(schema.val):
        vals = encode_key([table.column(name) for name in schema.val.names]).to_pylist()
    times: list[Any] = table.column("ts").to_pylist()
    diffs: list[Any] = table.column("diff").to_pylist()
    return [((k, v, t), d) for k, v, t, d in zip(keys, vals, times, diffs, strict=True)]


def summed(tables: list[pa.Table], schema: Schema, since: int = 0) -> list[Row]:
    """What consolidation of all these rows must give."""
    sums: Counter[tuple[bytes, bytes, int]] = Counter()
    for table in tables:
        for (key, val, time), diff in rows_of(table, schema):
            sums[key, val, max(time, since)] += diff
    return sorted((row, diff) for row, diff in sums.items() if diff)
