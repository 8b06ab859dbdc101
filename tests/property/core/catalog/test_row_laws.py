"""Rows and objects of the catalog: one object has one row, whatever it holds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property.core.catalog.objects import KEYS, LAW, VALUES, objects

from persist.core.catalog.kinds import CLUSTER, CONFIG, KINDS, ROLE
from persist.core.catalog.objects import Cluster, ClusterKey, Config, ConfigKey, Role, RoleKey, Setting
from persist.core.catalog.rows import Row, RowUpdate
from persist.core.catalog.values import PUBLIC, Id, RoleRef, Space
from persist.errors import CorruptData, InvalidArgument
from persist.wire.catalog.rows import CODEC, from_table, message_types, to_table


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_decode_undoes_encode(kind: Any):
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


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("config", b"\x08\x00"),
        ("config", b"\x08\x81\x00"),
        ("config", b"\x08\x01\x08\x02"),
        ("config", b"\xff"),
        ("fence_token", b"\x10\x01\x08\x01"),
        ("cluster", b""),
        ("cluster", b"\x0a\x01n\x12\x02\x18\x00\x22\x02\x0a\x00"),
        ("cluster", b"\x0a\x01n\x12\x02\x18\x01\x22\x00"),
    ],
    ids=["zero", "long number", "twice", "no message", "order", "nothing", "public false", "no choice"],
)
def test_decode_of_another_form_of_a_value_is_refused(kind, value):
    key = {"config": b"\x0a\x01k", "fence_token": b"", "cluster": b"\x0a\x02\x08\x01"}[kind]
    with pytest.raises(CorruptData):
        CODEC.decode(Row(kind, key, value))


def test_encode_of_what_is_out_of_range_is_refused():
    wrong: list[tuple[Any, Any, Any]] = [
        (CONFIG, ConfigKey("k"), Config(-1)),
        (CONFIG, ConfigKey("k"), Config(2**64)),
        (CONFIG, ConfigKey("k"), Setting("k")),
        (CONFIG, ConfigKey("\ud800"), Config(1)),
        (ROLE, RoleKey(RoleRef(Space.INTROSPECTION, 1)), Role("r")),
        (CLUSTER, ClusterKey(Id(Space.PUBLIC, 0)), Cluster("c", PUBLIC)),
    ]
    for kind, key, value in wrong:
        with pytest.raises(InvalidArgument):
            CODEC.encode(kind.tag, key, value)
