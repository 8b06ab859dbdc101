"""What stands under a null struct may be anything, also a dictionary index that leads nowhere."""

import pyarrow as pa
import pytest

from persist.core.data.encoding import encode_key
from persist.core.data.schema import Schema
from persist.core.data.update import normalise
from persist.errors import InvalidArgument

NOWHERE = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array([], pa.string()), safe=False)
SCHEMA = Schema(key={"k": pa.int64()}, val={"v": pa.struct([("a", pa.string())])})


def updates(struct: pa.StructArray) -> pa.Table:
    return pa.table({"k": [1], "v": struct, "ts": pa.array([1], pa.uint64()), "diff": [1]})


def test_index_that_leads_nowhere_under_a_null_is_a_null():
    hidden = pa.StructArray.from_arrays([NOWHERE], names=["a"], mask=pa.array([True]))
    assert encode_key([hidden]).to_pylist() == [b"\x01"]
    assert normalise(updates(hidden), SCHEMA).column("v").to_pylist() == [None]


def test_index_that_leads_nowhere_in_the_open_is_refused():
    shown = pa.StructArray.from_arrays([NOWHERE], names=["a"])
    with pytest.raises(InvalidArgument):
        normalise(updates(shown), SCHEMA)
