"""Parts: what is written comes back, in pieces, under an older schema, and nothing else does."""

import dataclasses
import itertools
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property.core.data.rows import rows_of, schemas, updates
from simulation.budget import examples
from sure import sure

from persist.core.data.encoding import encode_key
from persist.core.data.schema import Schema
from persist.core.data.splits import KeyRange
from persist.core.data.update import consolidate, normalise
from persist.errors import CorruptData, InvalidArgument, RequestTooLarge, VersionMismatch
from persist.wire.checksum import crc32c
from persist.wire.columnar import Choice, decode_inline, encode_inline, encode_parts, part_batches
from persist.wire.columnar import decode as columnar_decode
from persist.wire.columnar.row_group import RowGroup

SCHEMA = Schema({"k": pa.int64(), "name": pa.string()}, {"v": pa.float64(), "w": pa.binary()})


def rows(count, *, width=10, first=0, ts=7):
    return pa.table(
        {
            "k": range(first, first + count),
            "name": [f"n{at % 3}" for at in range(count)],
            "v": [at / 7 for at in range(count)],
            "w": [bytes([at % 251]) * width for at in range(count)],
            "ts": pa.array([ts + at % 5 for at in range(count)], pa.uint64()),
            "diff": [1 + at % 2 for at in range(count)],
        },
        schema=SCHEMA.updates,
    )


class Stored:
    """A blob that notes what is read of it."""

    def __init__(self, encoded):
        self.data = bytes(encoded.data)
        self.part = dataclasses.replace(encoded.part, key="k")
        self.reads = []

    def read(self, start, end):
        self.reads.append((start, end))
        return self.data[start:end]

    def batches(self, **options):
        return part_batches(self.part, self.read, SCHEMA, **options)

    def table(self, **options):
        return pa.Table.from_batches(self.batches(**options))


def stored(table, **options):
    [encoded] = encode_parts([table], SCHEMA, 3, **options)
    return Stored(encoded)


def test_part_describes_its_rows_and_bytes():
    table = rows(1000)
    blob = stored(table, row_group_rows=300)
    part, keys = blob.part, encode_key([table["k"], table["name"]]).to_pylist()
    assert (part.rows, part.schema_id, part.min_ts, part.max_ts) == (1000, 3, 7, 11)
    assert part.diffs_sum == 1500
    assert (part.key_lower, part.key_upper) == (keys[0], keys[-1])
    assert part.checksum == crc32c(blob.data)
    assert part.encoded_bytes == len(blob.data)
    assert part.decoded_bytes == table.nbytes
    assert [block.rows for block in part.blocks] == [300, 300, 300, 100]
    assert [block.first_key for block in part.blocks] == [keys[at] for at in (0, 300, 600, 900)]
    at = 0
    for block in part.blocks:
        assert block.offset == at
        assert block.checksum == crc32c(blob.data[at : at + block.length])
        at += block.length
    assert blob.data[at:] == blob.data[-part.footer_bytes :]
    assert part.footer_checksum == crc32c(blob.data[at:])


def test_part_file_has_the_settings_of_the_format():
    blob = stored(rows(10_000), row_group_rows=5000)
    metadata = pq.read_metadata(pa.BufferReader(blob.data))
    columns = {metadata.row_group(0).column(at).path_in_schema: metadata.row_group(0).column(at) for at in range(6)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert "DELTA_BINARY_PACKED" in columns["k"].encodings
    assert "DELTA_BINARY_PACKED" in columns["ts"].encodings
    assert columns["diff"].has_dictionary_page
    assert columns["name"].has_dictionary_page
    assert not columns["v"].has_dictionary_page
    assert columns["k"].has_column_index
    assert [column.column_index for column in metadata.row_group(0).sorting_columns] == [0, 1]
    text = Schema({"s": pa.string()})
    only = pa.table({"s": ["a", "b"], "ts": pa.array([0, 0], pa.uint64()), "diff": [1, 1]}, schema=text.updates)
    [encoded] = encode_parts([only], text, 0)
    assert "DELTA_BYTE_ARRAY" in pq.read_metadata(pa.BufferReader(encoded.data)).row_group(0).column(0).encodings


def test_part_of_few_rows_has_no_dictionary_and_no_page_index():
    """Both cost more than the rows themselves; what describes the part is the same."""
    few, many = stored(rows(256)), stored(rows(257))
    for blob, expected in ((few, False), (many, True)):
        metadata = pq.read_metadata(pa.BufferReader(blob.data))
        columns = {metadata.row_group(0).column(at).path_in_schema: metadata.row_group(0).column(at) for at in range(6)}
        assert {column.has_column_index for column in columns.values()} == {expected}
        assert columns["diff"].has_dictionary_page == expected
        assert columns["name"].has_dictionary_page == expected
        assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert few.table().equals(rows(256))
    assert many.table().equals(rows(257))


def test_small_part_is_read_at_once_and_a_large_one_by_its_blocks():
    small = stored(rows(100))
    assert small.table().equals(rows(100))
    assert small.reads == [(0, small.part.encoded_bytes)]
    table = consolidate(noise(40_000), SCHEMA)
    large = stored(table, row_group_rows=4000)
    assert large.part.encoded_bytes > 1 << 20
    assert large.table().equals(table)
    blocks = [(block.offset, block.offset + block.length) for block in large.part.blocks]
    assert large.reads == [(large.part.encoded_bytes - large.part.footer_bytes, large.part.encoded_bytes), *blocks]


def noise(count):
    source = np.random.default_rng(0)
    return rows(count).set_column(3, "w", pa.array([source.bytes(40) for _ in range(count)]))


def test_reading_a_key_range_fetches_only_its_blocks():
    table = consolidate(noise(40_000), SCHEMA)
    blob = stored(table, row_group_rows=4000)
    keys = encode_key([table["k"], table["name"]]).to_pylist()
    found = blob.table(columns=["v"], key_range=KeyRange(keys[9000], keys[9500]))
    assert found.schema.names == ["v", "ts", "diff"]
    assert found.column("v").to_pylist() == table.column("v").to_pylist()[9000:9500]
    assert len(blob.reads) == 2
    blob.reads.clear()
    assert list(blob.batches(key_range=KeyRange(b"\x03", None))) == []
    assert blob.reads == []


@pytest.mark.parametrize("columns", [[], ["v"], ["name", "k"], ["w", "unknown"]], ids=str)
def test_projection_gives_the_columns_asked_for_in_schema_order(columns):
    blob = stored(rows(50))
    wanted = [name for name in SCHEMA.updates.names[:-2] if name in columns]
    assert blob.table(columns=columns).equals(rows(50).select([*wanted, "ts", "diff"]))


def test_batches_are_as_long_as_asked_and_never_empty():
    blob = stored(rows(1000), row_group_rows=300)
    sizes = [batch.num_rows for batch in blob.batches(batch_rows=128)]
    assert max(sizes) <= 128
    assert min(sizes) > 0
    assert sum(sizes) == 1000


def test_rewritten_times_are_what_readers_see():
    blob = stored(rows(100))
    part = dataclasses.replace(blob.part, ts_rewrite=9)
    found = pa.Table.from_batches(part_batches(part, blob.read, SCHEMA))
    assert set(found.column("ts").to_pylist()) == {9, 10, 11}
    inline = dataclasses.replace(encode_inline(rows(5), SCHEMA, 0), ts_rewrite=2**64 - 1)
    assert set(decode_inline(inline, SCHEMA).column("ts").to_pylist()) == {2**64 - 1}


def test_encode_of_nothing_makes_no_part():
    assert list(encode_parts([], SCHEMA, 0)) == []
    assert list(encode_parts([SCHEMA.updates.empty_table()], SCHEMA, 0)) == []
    with pytest.raises(InvalidArgument):
        encode_inline(SCHEMA.updates.empty_table(), SCHEMA, 0)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_encode_of_any_pieces_gives_the_same_parts(step):
    table = rows(1000, width=100)
    whole = list(encode_parts([table], SCHEMA, 0, part_bytes_max=1500, row_group_rows=64))
    pieces = [table.slice(at, step) for at in range(0, 1000, step)]
    cut = list(encode_parts(pieces, SCHEMA, 0, part_bytes_max=1500, row_group_rows=64))
    assert [item.part.rows for item in cut] == [item.part.rows for item in whole]
    assert [item.part.blocks for item in cut] == [item.part.blocks for item in whole]
    assert len(whole) > 3


def keyed(groups):
    """Rows of key i, as many as the i-th number says, different in val."""
    ids = [key for key, count in enumerate(groups) for _ in range(count)]
    source = np.random.default_rng(1)
    vals = sorted(source.bytes(64) for _ in ids)
    size = len(ids)
    columns = {"k": ids, "name": ["x"] * size, "v": [0.0] * size, "w": vals}
    return pa.table({**columns, "ts": pa.array([0] * size, pa.uint64()), "diff": [1] * size}, schema=SCHEMA.updates)


def test_row_groups_end_where_a_key_ends():
    blob = stored(keyed([7] * 50), row_group_rows=20)
    firsts = [int.from_bytes(block.first_key[1:9], "big") - 2**63 for block in blob.part.blocks]
    assert firsts == list(range(0, 50, 2))


def test_parts_never_split_a_key_unless_it_alone_exceeds_the_target():
    [*parts] = encode_parts([keyed([30, 30, 400, 30, 30])], SCHEMA, 0, part_bytes_max=9000, row_group_rows=20)
    edges = [(one.part.key_upper, other.part.key_lower) for one, other in itertools.pairwise(parts)]
    hot = encode_key([pa.array([2]), pa.array(["x"])])[0].as_py()
    shared = [lower for upper, lower in edges if upper == lower]
    assert shared
    assert set(shared) == {hot}
    small = list(encode_parts([keyed([30] * 20)], SCHEMA, 0, part_bytes_max=5000, row_group_rows=20))
    assert len(small) > 5
    assert all(sure(one.part.key_upper) < sure(other.part.key_lower) for one, other in itertools.pairwise(small))


def test_parts_with_many_row_groups_have_at_most_64_blocks():
    blob = stored(rows(1000), row_group_rows=5)
    assert len(blob.part.blocks) <= 64
    assert sum(block.row_groups for block in blob.part.blocks) == 200
    assert blob.table().equals(rows(1000))
    keys = encode_key([rows(1000)["k"], rows(1000)["name"]]).to_pylist()
    assert blob.table(key_range=KeyRange(keys[13], keys[787])).equals(rows(1000).slice(13, 774))


def test_wide_rows_make_small_row_groups():
    table = rows(96, width=1 << 19)
    blob = stored(table)
    assert len(blob.part.blocks) >= 3
    assert blob.table().equals(table)


def test_long_keys_have_truncated_bounds_that_hold_them():
    text = Schema({"s": pa.string()})
    names = ["x" * 200 + f"{at:04d}" for at in range(100)]
    table = pa.table({"s": names, "ts": pa.array([0] * 100, pa.uint64()), "diff": [1] * 100}, schema=text.updates)
    [encoded] = encode_parts([table], text, 0, row_group_rows=10)
    keys = encode_key([table["s"]]).to_pylist()
    assert sure(encoded.part.key_lower) <= sure(keys[0])
    assert sure(keys[-1]) <= sure(encoded.part.key_upper)
    assert max(len(encoded.part.key_lower), len(sure(encoded.part.key_upper))) <= 64
    assert max(len(block.first_key) for block in encoded.part.blocks) <= 24
    blob = Stored(encoded)
    limits = KeyRange(keys[33], keys[34])
    found = pa.Table.from_batches(part_batches(blob.part, blob.read, text, key_range=limits))
    assert found.column("s").to_pylist() == [names[33]]


def test_nothing_is_read_beyond_the_end_of_a_key_range(monkeypatch):
    monkeypatch.setattr(columnar_decode, "SMALL_BYTES", 0)
    text = Schema({"k": pa.string()}, {"v": pa.int64()})
    # Fences are cut off before the keys differ: they do not show in which block the range ends.
    keys = [f"{'x' * 200}{at:04d}" for at in range(400)]
    table = pa.table({"k": keys, "v": range(400), "ts": [0] * 400, "diff": [1] * 400}, schema=text.updates)
    [encoded] = encode_parts([table], text, 0, row_group_rows=100)
    blob = Stored(encoded)
    assert len(blob.part.blocks) == 4
    upper = encode_key([pa.array([keys[150]])])[0].as_py()
    found = pa.Table.from_batches(part_batches(blob.part, blob.read, text, key_range=KeyRange(None, upper)))
    assert found.equals(table.slice(0, 150))
    assert len(blob.reads) == 1 + 2


def test_unsorted_rows_are_not_written():
    with pytest.raises(CorruptData):
        list(encode_parts([rows(10, first=5), rows(3)], SCHEMA, 0, row_group_rows=5))


def test_sums_of_diffs_that_leave_i64_are_not_written():
    table = rows(4).set_column(5, SCHEMA.updates.field("diff"), pa.array([2**62] * 4))
    with pytest.raises(InvalidArgument):
        encode_inline(table, SCHEMA, 0)
    with pytest.raises(InvalidArgument):
        list(encode_parts([table], SCHEMA, 0))


def test_older_parts_are_read_with_their_schema_and_upgraded():
    newer = Schema(SCHEMA.key, pa.schema([*SCHEMA.val, pa.field("note", pa.string())]))
    found = SCHEMA.upgrade(stored(rows(3)).table(columns=["v", "note"]), newer)
    assert found.schema.names == ["v", "note", "ts", "diff"]
    assert found.column("note").null_count == 3


def test_parts_of_an_unknown_format_are_left_alone():
    blob = stored(rows(3))
    newer = dataclasses.replace(blob.part, format=99)
    with pytest.raises(VersionMismatch):
        list(part_batches(newer, blob.read, SCHEMA))
    with pytest.raises(VersionMismatch):
        decode_inline(dataclasses.replace(encode_inline(rows(3), SCHEMA, 0), format=99), SCHEMA)


@given(schemas().flatmap(lambda schema: st.tuples(st.just(schema), updates(schema, 30))), st.integers(1, 10))
@settings(max_examples=examples(60), deadline=None)
def test_any_rows_come_back_from_blobs_and_inline_parts(case, group_rows):
    schema, raw = case
    table = consolidate(normalise(raw, schema), schema)
    if not len(table):
        return
    found: list[Any] = []
    for encoded in encode_parts([table], schema, 0, part_bytes_max=3000, row_group_rows=group_rows):
        blob = Stored(encoded)
        found += part_batches(blob.part, blob.read, schema)
    again = pa.Table.from_batches(found)
    assert again.schema.equals(schema.updates)
    assert rows_of(again, schema) == rows_of(table, schema)
    inline = encode_inline(table, schema, 0)
    assert rows_of(decode_inline(inline, schema), schema) == rows_of(table, schema)
    assert rows_of(pa.Table.from_batches(part_batches(inline, blob.read, schema)), schema) == rows_of(table, schema)


@given(schemas().flatmap(lambda schema: st.tuples(st.just(schema), updates(schema, 30))), st.data())
@settings(max_examples=examples(80), deadline=None)
def test_a_key_range_gives_the_rows_whose_keys_it_contains(case, data):
    schema, raw = case
    table = consolidate(normalise(raw, schema), schema)
    if not len(table):
        return
    keys = encode_key([table.column(name) for name in schema.key.names]).to_pylist()
    bounds = (
        st.none()
        | st.sampled_from(keys)
        | st.sampled_from(keys).map(lambda key: sure(key) + b"\0")
        | st.binary(max_size=3)
    )
    limits = KeyRange(data.draw(bounds), data.draw(bounds))
    expected = table.filter(pa.array([limits.contains(sure(key)) for key in keys]))
    parts = [encode_inline(table, schema, 0)]
    blobs = {}
    for encoded in encode_parts([table], schema, 0, row_group_rows=data.draw(st.sampled_from([1, 4, 100]))):
        blob = Stored(encoded)
        parts.append(blob.part)
        blobs[blob.part] = blob
    rows_in_parts = data.draw(st.sampled_from([1, 3, 65_536]))
    for part in parts:
        read: Any = blobs[part].read if part in blobs else None
        found = part_batches(part, read, schema, key_range=limits, batch_rows=rows_in_parts)
        assert rows_of(pa.Table.from_batches(found, schema=schema.updates), schema) == rows_of(expected, schema)


@given(schemas().flatmap(lambda schema: st.tuples(st.just(schema), updates(schema, 30))), st.data())
@settings(max_examples=examples(80), deadline=None)
def test_rows_chosen_while_they_are_decoded_are_those_that_are_chosen_afterwards(case, data):
    schema, raw = case
    table = consolidate(normalise(raw, schema), schema)
    if not len(table):
        return
    names = st.lists(st.sampled_from([*schema.key.names, *schema.val.names]), min_size=1, unique=True)
    looked_at, shown, one_in = data.draw(names), data.draw(names), data.draw(st.sampled_from([1, 2, 1000]))

    def chosen(found):
        keys = encode_key([found.column(name) for name in looked_at]).to_pylist()
        kept = [at for at, key in enumerate(keys) if crc32c(sure(key)) % one_in == 0]
        return None if len(kept) == len(keys) else pa.array(kept, pa.int64())

    kept = chosen(table)
    columns = [name for name in schema.updates.names if name in {*looked_at, *shown, "ts", "diff"}]
    expected = (table if kept is None else table.take(kept)).select(columns)
    parts = [encode_inline(table, schema, 0)]
    blobs = {}
    for encoded in encode_parts([table], schema, 0, row_group_rows=data.draw(st.sampled_from([1, 4, 100]))):
        blob = Stored(encoded)
        parts.append(blob.part)
        blobs[blob.part] = blob
    for part in parts:
        found = part_batches(
            part,
            cast(Any, blobs[part].read if part in blobs else None),
            schema,
            columns=columns,
            batch_rows=data.draw(st.sampled_from([1, 3, 65_536])),
            choice=Choice(frozenset(looked_at), chosen),
        )
        again = pa.Table.from_batches(found, schema=expected.schema)
        again.validate(full=True)
        for name in columns:
            assert encode_key([again.column(name)]).equals(encode_key([expected.column(name)]))


def test_what_is_not_chosen_is_not_decoded(monkeypatch):
    blob, decoded = stored(rows(300), row_group_rows=100), []
    columns_of = RowGroup._columns

    def noted(group: RowGroup, wanted: Any, rows: Any) -> Any:
        decoded.append({*wanted})
        return columns_of(group, wanted, rows)

    monkeypatch.setattr(RowGroup, "_columns", noted)
    few = Choice(frozenset({"k"}), lambda found: pc.indices_nonzero(pc.equal(found.column("k"), 150)))
    assert blob.table(choice=few).equals(rows(300).slice(150, 1))
    assert [each for each in decoded if each] == [{"k"}, {"k"}, {"name", "v", "w", "ts", "diff"}, {"k"}]


@pytest.mark.parametrize("batch_rows", [10, 65_536])
def test_what_a_choice_raises_is_not_taken_for_damage(batch_rows):
    def refuses(found):
        raise pa.ArrowInvalid("not like this")

    with pytest.raises(pa.ArrowInvalid, match="not like this"):
        stored(rows(30)).table(batch_rows=batch_rows, choice=Choice(frozenset({"k"}), refuses))


def test_columns_whose_names_hold_dots_come_back():
    schema = Schema({"a.b": pa.int64()}, {"a": pa.struct([("b", pa.string())]), "c.d": pa.list_(pa.int8())})
    size = 2000
    columns = {"a.b": range(size), "a": [{"b": str(at)} for at in range(size)], "c.d": [[at % 5] for at in range(size)]}
    table = pa.table({**columns, "ts": pa.array([0] * size, pa.uint64()), "diff": [1] * size}, schema=schema.updates)
    [encoded] = encode_parts([table], schema, 0)
    blob = Stored(encoded)
    assert pa.Table.from_batches(part_batches(blob.part, blob.read, schema)).equals(table)
    found = pa.Table.from_batches(part_batches(blob.part, blob.read, schema, columns=["a.b"]))
    assert found.equals(table.select(["a.b", "ts", "diff"]))


def test_row_that_no_reader_could_take_is_refused_before_it_is_written():
    with pytest.raises(RequestTooLarge, match="larger than any row may be"):
        next(encode_parts([rows(1, width=448 << 20)], SCHEMA, 0))


def test_groups_of_a_part_are_read_by_one_reader(monkeypatch):
    """Each that is opened takes half a millisecond, as long as some columns of a group take."""
    opened = []
    made = pq.ParquetFile

    def counted(*args, **kwargs):
        opened.append(kwargs.get("metadata"))
        return made(*args, **kwargs)

    schema = Schema({"id": pa.int64()}, {"name": pa.string(), "n": pa.int64()})
    columns = {"id": range(4_000), "name": [f"n{n % 7}" for n in range(4_000)], "n": [1] * 4_000}
    table = pa.table(columns | {"ts": pa.array([0] * 4_000, pa.uint64()), "diff": [1] * 4_000}, schema=schema.updates)
    [encoded] = encode_parts([table], schema, 0, row_group_rows=500)
    blob = Stored(encoded)
    monkeypatch.setattr(pq, "ParquetFile", counted)
    found = list(part_batches(blob.part, blob.read, schema, columns=["name"]))
    assert sum(batch.num_rows for batch in found) == 4_000
    assert len([each for each in opened if each is not None]) == 1
