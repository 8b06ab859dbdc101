import itertools

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from property.core.data.rows import any_types, arrays, key_types, plain, val_types
from simulation.budget import examples
from sure import sure

from persist.core.data.encoding import edge_keys, encode_key
from persist.core.data.few import ROWS as FEW
from persist.core.data.types import storage_type
from persist.core.data.values import stored


@st.composite
def columns(draw, types):
    size = draw(st.integers(1, 6))
    return [draw(arrays(draw(types), size)) for _ in range(draw(st.integers(1, 2)))]


@given(columns(any_types()))
@settings(max_examples=examples(100), deadline=None)
def test_encoding_of_any_rows_orders_and_equates_them_as_the_rule_set_says(columns):
    encoded = encode_key(columns).to_pylist()
    lists = [column.to_pylist() for column in columns]
    rows = [tuple(plain(values[i]) for values in lists) for i in range(len(encoded))]
    for one, other in itertools.product(range(len(rows)), repeat=2):
        assert (sure(encoded[one]) < sure(encoded[other])) == (rows[one] < rows[other])
        assert (encoded[one] == encoded[other]) == (rows[one] == rows[other])


@given(columns(val_types()), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_encoding_commutes_with_take_slice_and_concatenation(columns, random):
    size = len(columns[0])
    encoded = encode_key(columns)
    picks = [random.randrange(size) for _ in range(size + 1)]
    assert (
        encode_key([column.take(pa.array(picks)) for column in columns]).to_pylist()
        == encoded.take(pa.array(picks)).to_pylist()
    )
    start = random.randrange(size)
    assert encode_key([column.slice(start) for column in columns]).to_pylist() == encoded.slice(start).to_pylist()
    twice = [pa.chunked_array([column, column]) for column in columns]
    assert encode_key(twice).to_pylist() == encoded.to_pylist() * 2


@given(columns(any_types()))
@settings(max_examples=examples(200), deadline=None)
def test_few_rows_are_encoded_as_many_are(columns):
    times = FEW // len(columns[0]) + 1
    many = [pa.chunked_array([column] * times) for column in columns]
    assert encode_key(many).to_pylist() == encode_key(columns).to_pylist() * times


@given(st.one_of(key_types(), val_types()).flatmap(lambda given: st.tuples(st.just(given), arrays(given, 5))))
@settings(max_examples=50, deadline=None)
def test_stored_values_are_equal_bitwise_when_they_are_equal_and_storing_is_idempotent(case):
    given_type, array = case
    target = storage_type(given_type, "val", "c")
    once = stored(array, target, "c")
    assert once.type == target
    assert encode_key([once]).to_pylist() == encode_key([stored(once, target, "c")]).to_pylist()
    assert len(once) == len(array)
    assert once.null_count == array.null_count
    if not pa.types.is_map(target):
        assert [plain(value) for value in once.to_pylist()] == [plain(value) for value in array.to_pylist()]
    else:
        assert [value and sorted(k for k, _ in value) for value in array.to_pylist()] == [
            value and [k for k, _ in value] for value in once.to_pylist()
        ]


@given(columns(val_types()))
@settings(max_examples=examples(60), deadline=None)
def test_edges_are_the_encoding_of_the_first_and_the_last_row(columns):
    encoded = encode_key(columns).to_pylist()
    assert edge_keys(columns) == (encoded[0], encoded[-1])
    assert edge_keys([pa.chunked_array([column[:1], column[1:]]) for column in columns]) == (encoded[0], encoded[-1])
