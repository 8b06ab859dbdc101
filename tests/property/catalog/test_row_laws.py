"""Rows and objects of the catalog: one object has one row, whatever it holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property.catalog.objects import KEYS, LAW, VALUES, objects

from persist.errors import CorruptData
from persist_catalog.core.kinds import KINDS
from persist_catalog.core.rows import Row, RowUpdate
from persist_catalog.wire.rows import CODEC, from_table, message_types, to_table


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_decode_undoes_encode(kind):
    @LAW
    @given(KEYS[kind], VALUES[kind])
    def law(key, value):
        row = CODEC.encode(kind.tag, key, value)
        assert CODEC.decode(row) == (key, value)
        assert CODEC.encode(kind.tag, key, value) == row

    law()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_equal_keys_and_no_others_have_equal_bytes(kind):
    @LAW
    @given(KEYS[kind], KEYS[kind], VALUES[kind])
    def law(one, other, value):
        rows = [CODEC.encode(kind.tag, key, value) for key in (one, other)]
        assert (rows[0].key == rows[1].key) == (one == other)

    law()


@LAW
@given(objects(), st.binary(min_size=1, max_size=3))
def test_decode_of_other_bytes_is_refused_or_their_own_object(it, tail):
    kind, key, value = it
    good = CODEC.encode(kind.tag, key, value)
    changed = Row(good.kind, good.key, good.value + tail)
    try:
        decoded = CODEC.decode(changed)
    except CorruptData:
        return
    assert CODEC.encode(kind.tag, *decoded) == changed


@LAW
@given(objects())
def test_decode_of_an_unknown_field_is_refused(it):
    kind, key, value = it
    row = CODEC.encode(kind.tag, key, value)
    with pytest.raises(CorruptData):
        CODEC.decode(row._replace(value=row.value + b"\xfa\x3e\x01x"))


@LAW
@given(st.lists(objects(), max_size=4), st.integers(0, 2**64 - 1), st.sampled_from([1, -1]))
def test_from_table_undoes_to_table(them, ts, diff):
    updates = [RowUpdate(CODEC.encode(kind.tag, key, value), ts, diff) for kind, key, value in them]
    assert from_table(to_table(updates)) == updates


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_has_its_pair_of_messages(kind):
    key, value = message_types(kind)
    assert [each.DESCRIPTOR.full_name for each in (key, value)] == [
        f"persist.v1.Catalog{kind.tag.title().replace('_', '')}{side}" for side in ("Key", "Value")
    ]
