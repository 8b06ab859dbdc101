"""Keys read in place compare as their canonical bytes do."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property.core.data.rows import BYTES, TEXTS
from simulation.budget import examples

from persist.core.data.encoding import encode_key
from persist.core.data.merging.cursors import ByteKeys, KeyOrder
from persist.core.data.schema import Schema

TYPES = [(pa.binary(), BYTES), (pa.large_binary(), BYTES), (pa.string(), TEXTS), (pa.large_string(), TEXTS)]


@st.composite
def columns(draw):
    """Ascending keys, sometimes a slice of a longer column, sometimes with nulls; and a key to look for."""
    given_type, samples = draw(st.sampled_from(TYPES))
    values = draw(st.lists(st.sampled_from(samples), min_size=1, max_size=12))
    ordered = sorted(values, key=lambda value: value if isinstance(value, bytes) else value.encode())
    nulls = draw(st.sampled_from([0, 0, 2]))
    whole = pa.array([None] * nulls + ordered, given_type)
    start = draw(st.integers(0, len(whole) - 1))
    wanted = draw(st.sampled_from([None, *samples]))
    return whole.slice(start), encode_key([pa.array([wanted], given_type)])[0].as_py()


@given(columns(), st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_keys_of_one_column_of_bytes_are_searched_as_canonical_bytes_are(case, right):
    column, wanted = case
    schema = Schema({"k": column.type}, {})
    keys, canonical = KeyOrder(schema).keys(pa.table({"k": column})), ByteKeys([column])
    assert [keys.at(row) for row in range(len(column))] == [canonical.at(row) for row in range(len(column))]
    for start in range(len(column) + 1):
        assert keys.search(wanted, start, right=right) == canonical.search(wanted, start, right=right)
    assert KeyOrder(schema).ends(pa.table({"k": column})) == (canonical.at(0), canonical.at(len(column) - 1))


@pytest.mark.parametrize("values", [[b"", b""], [b"a", b"b"]], ids=["empty", "short"])
def test_keys_without_data_are_read_in_place(values):
    schema = Schema({"k": pa.binary()}, {})
    assert KeyOrder(schema).ends(pa.table({"k": values})) == (b"\2" + values[0], b"\2" + values[1])
