import pickle
from typing import Any

import pyarrow as pa
import pytest

from persist.core.data.codec import BytesCodec, JsonCodec
from persist.core.data.schema import Schema
from persist.errors import CodecMismatch, InvalidArgument, PersistError, SchemaMismatch, TypeNotSupported

INT = pa.int64()
STRUCT = pa.struct([pa.field("a", pa.large_string(), nullable=False), pa.field("b", pa.date64())])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.binary_view(), pa.binary()),
        (pa.large_binary(), pa.binary()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.run_end_encoded(pa.int32(), pa.int16()), pa.int16()),
        (pa.date64(), pa.date32()),
        (pa.uuid(), pa.binary(16)),
        (STRUCT, pa.struct([("a", pa.string()), ("b", pa.date32())])),
    ],
    ids=str,
)
def test_schema_of_an_encoding_of_a_type_stores_it_plain(given, kept):
    assert Schema({"k": given}).key.field("k").type == kept


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (pa.decimal64(10, 2), pa.decimal128(10, 2)),
        (pa.large_list(pa.string_view()), pa.list_(pa.string())),
        (pa.list_view(pa.int8()), pa.list_(pa.int8())),
        (pa.list_(pa.date64(), 2), pa.list_(pa.date32(), 2)),
        (pa.map_(pa.large_string(), pa.int8()), pa.map_(pa.string(), pa.int8())),
    ],
    ids=str,
)
def test_schema_of_a_val_takes_lists_and_maps_and_widens_decimals(given, kept):
    assert Schema({"k": INT}, {"v": given}).val.field("v").type == kept


REFUSED = [pa.null(), pa.float16(), pa.decimal256(50, 2), pa.month_day_nano_interval(), pa.struct([]), pa.binary(0)]
REFUSED += [pa.dense_union([pa.field("a", INT)]), pa.struct([pa.field("a", INT), pa.field("a", INT)])]
ONLY_VAL = [pa.list_(INT), pa.list_(INT, 2), pa.map_(pa.string(), INT), pa.decimal32(5, 2), pa.decimal64(5, 2)]


@pytest.mark.parametrize("given", REFUSED + ONLY_VAL, ids=str)
def test_schema_with_a_refused_key_type_names_the_column_and_the_type(given):
    with pytest.raises(TypeNotSupported) as caught:
        Schema({"k": pa.struct([("inner", given)])})
    assert caught.value.details["column"].startswith("k")
    assert "type" in caught.value.details


@pytest.mark.parametrize("given", [*REFUSED, pa.list_(INT, 0)], ids=str)
def test_schema_with_a_refused_val_type_names_the_column_and_the_type(given):
    with pytest.raises(TypeNotSupported):
        Schema({"k": INT}, {"v": pa.list_(given)})


def test_schema_nested_beyond_the_limit_is_refused():
    deep: pa.DataType = INT
    for _ in range(30):
        deep = pa.list_(deep)
    with pytest.raises(TypeNotSupported):
        Schema({"k": INT}, {"v": deep})


@pytest.mark.parametrize(
    ("key", "val"),
    [
        ({}, {"v": INT}),
        ({"k": INT}, {"k": INT}),
        ({"ts": INT}, {}),
        ({"k": INT}, {"diff": INT}),
        ({"TS": INT}, {}),
        ({"k": INT}, {"_change_type": INT}),
        ({"": INT}, {}),
    ],
    ids=["no key", "same name", "ts", "diff", "ts in another case", "of a change feed", "empty"],
)
def test_schema_with_a_bad_name_is_refused(key, val):
    with pytest.raises(InvalidArgument):
        Schema(key, val)


@pytest.mark.parametrize(("key", "val"), [({"v2": INT, "V2": INT}, {}), ({"id": INT}, {"ID": INT})], ids=str)
def test_schema_with_names_that_differ_by_case_alone_is_refused(key, val):
    with pytest.raises(InvalidArgument, match="more than case"):
        Schema(key, val)


def test_schema_takes_names_with_underscores():
    assert Schema({"_id": INT}, {"_ts": INT, "_diff": INT}).updates.names == ["_id", "_ts", "_diff", "ts", "diff"]


def test_schema_names_the_way_out_of_a_taken_name():
    with pytest.raises(InvalidArgument, match="rename it, to _ts"):
        Schema({"ts": INT})


@pytest.mark.parametrize("given", ["int64", 5, [("k", INT)]], ids=str)
def test_schema_of_something_else_is_refused(given):
    with pytest.raises(InvalidArgument):
        Schema(given)
    with pytest.raises(InvalidArgument):
        Schema({"k": given})


def test_schema_columns_are_key_val_ts_diff():
    schema = Schema({"k": pa.field("other", INT, nullable=False)}, {"v": pa.string()})
    columns: list[pa.Field[Any]] = [
        pa.field("k", INT, nullable=False),
        pa.field("v", pa.string()),
        pa.field("ts", pa.uint64(), nullable=False),
        pa.field("diff", pa.int64(), nullable=False),
    ]
    assert schema.updates == pa.schema(columns)
    assert schema.rows.names == ["k", "v", "diff"]


class Points:
    """A codec of one's own."""

    name = "points"
    key = pa.schema([("x", INT)])
    val = pa.schema([("y", INT)])

    def encode(self, rows):
        pairs = list(rows)
        return pa.table({"x": [key for key, _ in pairs], "y": [val for _, val in pairs]})

    def decode(self, table):
        return zip(table["x"].to_pylist(), table["y"].to_pylist(), strict=True)


@pytest.mark.parametrize(
    "schema",
    [Schema({"k": STRUCT}, {"v": pa.list_(INT)}), Schema.of(JsonCodec()), Schema.of(BytesCodec()), Schema.of(Points())],
    ids=lambda schema: schema.codec_name,
)
def test_schema_survives_bytes_and_pickling(schema):
    again = Schema.from_bytes(schema.to_bytes())
    assert again == schema
    assert hash(again) == hash(schema)
    assert again.to_bytes() == schema.to_bytes()
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert type(pickle.loads(pickle.dumps(schema)).codec) is type(schema.codec)


def test_schema_of_an_unknown_codec_keeps_its_columns_and_refuses_objects():
    schema = Schema.from_bytes(Schema.of(Points()).to_bytes())
    with pytest.raises(CodecMismatch):
        schema.codec.encode([(1, 2)])
    with pytest.raises(CodecMismatch):
        schema.codec.decode(pa.table({}))
    assert list(Schema.from_bytes(schema.to_bytes(), Points()).codec.decode(pa.table({"x": [1], "y": [2]}))) == [(1, 2)]


def test_schema_with_another_codec_than_its_own_is_refused():
    with pytest.raises(CodecMismatch):
        Schema.from_bytes(Schema.of(Points()).to_bytes(), JsonCodec())
    with pytest.raises(SchemaMismatch):
        Schema({"x": INT}, {"z": INT}, codec=Points())


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"\xff" * 64, pa.schema([("k", INT)]).serialize().to_pybytes()],
    ids=["0", "1", "ff", "no roles"],
)
def test_schema_from_other_bytes_is_refused(data):
    with pytest.raises(InvalidArgument):
        Schema.from_bytes(data)


OLD = Schema({"k": INT}, {"v": INT})


@pytest.mark.parametrize(
    "newer",
    [OLD, Schema({"k": INT}, {"v": INT, "w": pa.string()})],
    ids=["same", "added"],
)
def test_evolution_that_adds_nullable_vals_is_accepted(newer):
    OLD.check_evolution(newer)


@pytest.mark.parametrize(
    "newer",
    [
        Schema({"k": pa.int32()}, {"v": INT}),
        Schema({"k": INT, "l": INT}, {"v": INT}),
        Schema({"k": INT}, {}),
        Schema({"k": INT}, {"v": pa.string()}),
        Schema({"k": INT}, {"w": INT, "v": INT}),
        Schema({"k": INT}, {"v": INT, "w": pa.field("w", INT, nullable=False)}),
    ],
    ids=["key type", "key added", "val dropped", "val type", "val moved", "not nullable"],
)
def test_evolution_that_changes_anything_else_is_refused(newer):
    with pytest.raises(SchemaMismatch):
        OLD.check_evolution(newer)


def test_evolution_to_another_codec_is_refused():
    with pytest.raises(CodecMismatch):
        OLD.check_evolution(Schema.of(JsonCodec()))


def test_upgrade_adds_nulls_and_keeps_projections():
    newer = Schema({"k": INT}, {"v": INT, "w": pa.string()})
    rows = pa.table({"k": [1], "v": [2], "ts": [3], "diff": [4]}, schema=OLD.updates)
    assert OLD.upgrade(rows, newer).to_pylist() == [{"k": 1, "v": 2, "w": None, "ts": 3, "diff": 4}]
    assert OLD.upgrade(rows, newer).schema == newer.updates
    assert OLD.upgrade(rows.select(["v", "ts", "diff"]), newer).schema.names == ["v", "w", "ts", "diff"]
    assert OLD.upgrade(rows, newer, ["w"]).to_pylist() == [{"w": None, "ts": 3, "diff": 4}]
    assert OLD.upgrade(rows, OLD).equals(rows)
    with pytest.raises(SchemaMismatch):
        newer.upgrade(rows, OLD)


def test_project_keeps_key_columns_and_the_vals_named():
    schema = Schema({"k": INT}, {"v": INT, "w": INT})
    assert schema.project(["w"]).updates.names == ["k", "w", "ts", "diff"]
    assert schema.project(None) is schema
    assert schema.project(["v", "w"]) is schema


def test_schema_from_arrow_has_the_named_columns_as_its_key_in_that_order():
    columns: list[pa.Field[Any]] = [
        pa.field("a", pa.int64()),
        pa.field("b", pa.string(), nullable=False),
        pa.field("c", pa.date32()),
    ]
    fields = pa.schema(columns)
    schema = Schema.from_arrow(fields, ["b", "a"])
    assert schema == Schema(key=pa.schema([fields.field("b"), fields.field("a")]), val=pa.schema([fields.field("c")]))
    assert Schema.from_arrow(fields, ("a", "b", "c")).val == pa.schema([])


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        pytest.param(pa.schema({"a": pa.int64()}), ["b"], id="not-there"),
        pytest.param(pa.schema({"a": pa.int64()}), ["a", "a"], id="named-twice"),
        pytest.param(pa.schema([("a", pa.int64()), ("a", pa.int64())]), ["a"], id="there-twice"),
        pytest.param(pa.schema({"a": pa.int64()}), [], id="no-key"),
        pytest.param(pa.schema({"a": pa.int64()}), "a", id="text"),
        pytest.param({"a": pa.int64()}, ["a"], id="dict"),
        pytest.param(pa.schema({"a": pa.int64(), "ts": pa.uint64()}), ["a"], id="reserved"),
    ],
)
def test_schema_from_arrow_refuses_with_a_next_step(fields, key):
    with pytest.raises(InvalidArgument) as refused:
        Schema.from_arrow(fields, key)
    assert refused.value.hint


def test_bytes_that_were_changed_anywhere_are_a_schema_or_refused():
    nested = pa.struct([("inner", pa.list_(pa.struct([("deep", pa.timestamp("us", "UTC"))])))])
    data = Schema({"key": INT}, {"val": pa.string(), "nested": nested}).to_bytes()
    refused = 0
    for at in range(len(data)):
        for byte in (0x00, 0x7F, 0xFF):
            try:
                found = Schema.from_bytes(data[:at] + bytes([byte]) + data[at + 1 :])
                assert Schema.from_bytes(found.to_bytes()) == found
                assert repr(found)
            except PersistError:
                refused += 1
    assert refused > 100


@pytest.mark.parametrize("bad", ["text", None, 5, bytearray(b"zz"), b"zz"])
def test_what_is_no_stored_schema_is_refused(bad):
    with pytest.raises(InvalidArgument, match="not a schema"):
        Schema.from_bytes(bad)
