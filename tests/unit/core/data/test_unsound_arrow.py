"""Arrow data that is not as its own type, or the schema, says: refused with the path to it, whatever kernels do."""

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from persist.arrow import ArrowArray, py_buffer
from persist.client.shard.write.inputs import Chunker
from persist.client.table.rows import times, updates_of
from persist.core.data.schema import Schema
from persist.core.data.update import check_declared, normalise
from persist.errors import InvalidArgument

INT = pa.int64()
ARROW: Any = pa
"""Where it takes more than its stubs say."""
C = pa.field("c", INT, nullable=False)
STRICT = pa.struct([C])
ITEM = pa.field("item", INT, nullable=False)


def updates(values: ArrowArray) -> pa.Table:
    count = len(values)
    return pa.table({"k": list(range(count)), "a": values, "ts": [0] * count, "diff": [1] * count})


def lax(kind: pa.DataType) -> pa.DataType:
    return Schema({"k": INT}, {"a": kind}).val.field("a").type


def struct_of(field: "pa.Field[pa.DataType]", child: ArrowArray, mask: list[bool] | None = None) -> ArrowArray:
    return pa.StructArray.from_arrays([child], fields=[field], mask=None if mask is None else pa.array(mask))


def nested() -> ArrowArray:
    """``a.b[].c`` of three rows; the null is in the second."""
    inner = struct_of(C, pa.array([1, None, 3]))
    lists = ARROW.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), inner)
    return struct_of(pa.field("b", lists.type), lists)


def mapped(items: ArrowArray, kind: "pa.Field[pa.DataType]") -> ArrowArray:
    keys = pa.array([str(at) for at in range(len(items))])
    return ARROW.MapArray.from_arrays([0, len(items)], keys, items, type=ARROW.map_(pa.string(), kind))


HOLDING_NULLS: list[tuple[str, Callable[[], ArrowArray]]] = [
    ("a.c", lambda: struct_of(C, pa.array([1, None]))),
    ("a.c", lambda: struct_of(C, pa.array([1, None, 3]), [True, False, False])),
    ("a[]", lambda: ARROW.ListArray.from_arrays([0, 2], pa.array([1, None]), type=pa.list_(ITEM))),
    ("a[]", lambda: ARROW.LargeListArray.from_arrays([0, 2], pa.array([1, None]), type=pa.large_list(ITEM))),
    ("a[]", lambda: ARROW.FixedSizeListArray.from_arrays(pa.array([1, None]), type=pa.list_(ITEM, 2))),
    ("a[].c", lambda: ARROW.ListArray.from_arrays([0, 2], struct_of(C, pa.array([1, None])))),
    ("a.b[].c", nested),
    ("a[].value", lambda: mapped(pa.array([1, None]), pa.field("value", INT, nullable=False))),
    ("a[].value.c", lambda: mapped(struct_of(C, pa.array([None], INT)), pa.field("value", STRICT))),
    ("a.b.c", lambda: struct_of(pa.field("b", STRICT), struct_of(C, pa.array([None], INT)))),
    ("a.c", lambda: struct_of(C.with_type(pa.dictionary(pa.int32(), INT)), pa.array([1, None]).dictionary_encode())),
]


@pytest.mark.parametrize(("path", "values"), HOLDING_NULLS, ids=[str(at) for at in range(len(HOLDING_NULLS))])
def test_null_inside_that_the_type_of_the_data_does_not_allow_is_refused(
    path: str, values: Callable[[], ArrowArray]
) -> None:
    given = values()
    schema = Schema({"k": INT}, {"a": lax(given.type)})
    with pytest.raises(InvalidArgument, match="missing") as caught:
        normalise(updates(given), schema)
    assert caught.value.details["column"] == path


@pytest.mark.parametrize(("path", "values"), HOLDING_NULLS, ids=[str(at) for at in range(len(HOLDING_NULLS))])
@pytest.mark.parametrize("pickled", [False, True])
def test_null_inside_that_the_declared_schema_does_not_allow_is_refused(
    path: str, values: Callable[[], ArrowArray], pickled: bool
) -> None:
    given = values()
    free = Schema({"k": INT}, {"a": lax(given.type)})
    there = normalise(updates(pa.array(given.to_pylist(), lax(given.type))), free)
    strict = Schema({"k": INT}, {"a": given.type})
    assert strict == free
    assert strict.to_bytes() == free.to_bytes()
    if pickled:
        strict = pickle.loads(pickle.dumps(strict))
    for schema in (strict, strict.project(["a"])):
        with pytest.raises(InvalidArgument, match="missing") as caught:
            check_declared(normalise(there, schema), schema)
        assert caught.value.details["column"] == path
    gone = times(there, -1)
    assert check_declared(normalise(gone, strict), strict) == gone
    assert check_declared(there, strict.stored) is there


def test_null_under_a_null_is_none() -> None:
    hidden = struct_of(C, pa.array([1, None]), [False, True])
    schema = Schema({"k": INT}, {"a": STRICT})
    assert normalise(updates(hidden), schema).column("a").to_pylist() == [{"c": 1}, None]
    lists = pa.array([[1], None, []], pa.list_(ITEM))
    assert normalise(updates(lists), Schema({"k": INT}, {"a": lists.type})).column("a").to_pylist() == [[1], None, []]
    fixed = ARROW.FixedSizeListArray.from_arrays(
        pa.array([1, 2, None, None]), type=pa.list_(ITEM, 2), mask=pa.array([False, True])
    )
    assert normalise(updates(fixed), Schema({"k": INT}, {"a": fixed.type})).column("a").to_pylist() == [[1, 2], None]


def test_null_as_the_key_of_a_map_is_refused() -> None:
    keys = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([None], pa.string()))
    given = ARROW.MapArray.from_arrays([0, 1], keys, pa.array([1]))
    with pytest.raises(InvalidArgument, match="missing") as caught:
        normalise(updates(given), Schema({"k": INT}, {"a": given.type}))
    assert caught.value.details["column"] == "a[].key"


def broken(kind: str, wrong: list[int], *, nulls: bool = False, within: str = "") -> pa.Table:
    """Two values whose offsets lead elsewhere: changed once the table is made, as who makes one looks at some of it."""
    large = kind.startswith("large")
    offsets = np.array([0, 1, 3], np.int64 if large else np.int32)
    own = [py_buffer(b"\x01") if nulls else None, py_buffer(offsets)]
    floats = pa.array([1.0, 2.0, 3.0])
    given: ArrowArray
    if kind in ("string", "large_string"):
        given = pa.Array.from_buffers(pa.large_string() if large else pa.string(), 2, [*own, py_buffer(b"abc")])
    elif kind == "map":
        entries = pa.StructArray.from_arrays([pa.array(["a", "b", "c"]), floats], ["key", "value"])
        given = pa.Array.from_buffers(pa.map_(pa.string(), pa.float64()), 2, own, children=[entries])
    else:
        lists = pa.large_list(pa.float64()) if large else pa.list_(pa.float64())
        given = pa.Array.from_buffers(lists, 2, own, children=[floats])
    if within == "dictionary":
        given = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), given)
    elif within == "struct":
        given = pa.StructArray.from_arrays([given], ["f"])
    table = updates(given)
    offsets[:] = wrong
    return table


def view(wrong: list[int], sizes: list[int]) -> pa.Table:
    offsets, counts = np.array([0, 1], np.int32), np.array([1, 2], np.int32)
    own = [None, py_buffer(offsets), py_buffer(counts)]
    table = updates(pa.Array.from_buffers(pa.list_view(pa.float64()), 2, own, children=[pa.array([1.0, 2.0, 3.0])]))
    offsets[:], counts[:] = wrong, sizes
    return table


def indices() -> pa.Table:
    return updates(pa.DictionaryArray.from_arrays(pa.array([-3, 0], pa.int8()), pa.array(["a"]), safe=False))


WRONG = ([0, 10**6, 2], [0, -5, 2], [2, 1, 3], [-7, 1, 2], [0, 1, 10**6], [10**8, 10**8 + 1, 10**8 + 2])
# Functions, as the arrays themselves cannot even be shown.
UNSOUND: list[Callable[[], pa.Table]] = [
    *(
        partial(broken, kind, wrong)
        for kind in ("string", "large_string", "list", "large_list", "map")
        for wrong in WRONG
    ),
    *(partial(broken, "list", wrong, nulls=True) for wrong in WRONG),
    *(partial(broken, "string", wrong, within="dictionary") for wrong in WRONG),
    *(partial(broken, "list", wrong, within="struct") for wrong in WRONG),
    partial(view, [0, 10**6], [1, 2]),
    partial(view, [0, -5], [1, 2]),
    partial(view, [0, 1], [1, 10**6]),
    indices,
]


@pytest.mark.parametrize("at", range(len(UNSOUND)))
def test_data_whose_buffers_lead_elsewhere_is_refused_at_every_door(at: int) -> None:
    table = UNSOUND[at]()
    schema = Schema({"k": INT}, {"a": table.schema.field("a").type})
    with pytest.raises(InvalidArgument) as caught:
        normalise(table, schema)
    assert caught.value.details["column"].startswith("a")
    with pytest.raises(InvalidArgument):
        updates_of(table, schema)
    with pytest.raises(InvalidArgument):
        cut_and_normalise(table, schema)


def cut_and_normalise(table: pa.Table, schema: Schema) -> None:
    chunker = Chunker(rows_max=1, bytes_max=1 << 20)
    for chunk in [*chunker.push(table), chunker.rest()]:
        for each in chunk:
            normalise(each, schema)
