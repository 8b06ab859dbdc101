"""Bytes that are not what was written, and bytes written to do harm: refused before they cost anything."""

import contextlib
import dataclasses
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist.core.data.schema import Schema
from persist.core.shard.batch import Block, Part
from persist.errors import CorruptData, RequestTooLarge
from persist.wire.checksum import crc32c
from persist.wire.columnar import decode_inline, encode_inline, encode_parts, part_batches
from persist.wire.columnar.encode import GROUP_BYTES_KEY

SCHEMA = Schema({"k": pa.int64()}, {"v": pa.string()})
MEBI = 1 << 20


def rows(count):
    source = np.random.default_rng(0)
    vals = [source.bytes(30).hex() for _ in range(count)]
    return pa.table(
        {"k": range(count), "v": vals, "ts": pa.array([0] * count, pa.uint64()), "diff": [1] * count},
        schema=SCHEMA.updates,
    )


def large():
    [encoded] = encode_parts([rows(40_000)], SCHEMA, 0, row_group_rows=8000)
    assert len(encoded.data) > MEBI
    return bytes(encoded.data), dataclasses.replace(encoded.part, key="k")


def small():
    [encoded] = encode_parts([rows(100)], SCHEMA, 0)
    return bytes(encoded.data), dataclasses.replace(encoded.part, key="k")


def read_all(data, part, **options):
    return list(part_batches(part, lambda start, end: data[start:end], SCHEMA, **options))


@pytest.mark.parametrize("make", [small, large])
def test_any_flipped_bit_is_found_before_its_block_is_decoded(make):
    data, part = make()
    for place in np.random.default_rng(1).integers(0, len(data), 40):
        bad = bytearray(data)
        bad[place] ^= 1 << int(place % 8)
        before = next((at for at, b in enumerate(part.blocks) if place < b.offset + b.length), 0)
        seen = []
        batches = part_batches(part, lambda start, end, bad=bad: bytes(bad[start:end]), SCHEMA)
        with pytest.raises(CorruptData):
            seen.extend(batch.num_rows for batch in batches)
        assert sum(seen) == (sum(block.rows for block in part.blocks[:before]) if make is large else 0)


@pytest.mark.parametrize("make", [small, large])
def test_a_truncated_or_swapped_blob_is_refused(make):
    data, part = make()
    other = bytes(next(iter(encode_parts([rows(100)[50:]], SCHEMA, 0))).data)
    for bad in (b"", data[:-1], data[: len(data) // 2], other, data[1:] + b"\0", bytes(len(data))):
        with pytest.raises(CorruptData):
            read_all(bad, part)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 39_999},
        {"decoded_bytes": 1},
        {"blocks": ()},
        {"footer_bytes": 5},
        {"footer_bytes": 1 << 40},
        {"footer_checksum": 0},
    ],
    ids=str,
)
def test_a_description_that_does_not_fit_the_blob_is_refused(change):
    data, part = large()
    with pytest.raises(CorruptData):
        read_all(data, dataclasses.replace(part, **change))


def test_blocks_that_lie_about_their_place_are_refused():
    data, part = large()
    first = dataclasses.replace(part.blocks[0], offset=len(data), length=10)
    with pytest.raises(CorruptData):
        read_all(data, dataclasses.replace(part, blocks=(first, *part.blocks[1:])))
    fewer = dataclasses.replace(part.blocks[0], rows=1)
    with pytest.raises(CorruptData):
        read_all(data, dataclasses.replace(part, blocks=(fewer, *part.blocks[1:])))


def test_a_part_of_another_schema_is_refused():
    data, part = small()
    for other in (Schema({"k": pa.int64()}, {"w": pa.string()}), Schema({"k": pa.int64()}), Schema({"k": pa.string()})):
        with pytest.raises(CorruptData):
            list(part_batches(part, lambda start, end: data[start:end], other))


def forged(data, count, *, decoded_bytes):
    """A description whose every checksum fits, as a writer who means harm would make it."""
    footer = int.from_bytes(data[-8:-4], "little") + 8
    body = len(data) - footer
    block = Block(first_key=b"", rows=count, row_groups=1, offset=0, length=body, checksum=crc32c(data[:body]))
    return Part(
        key="k", inline=None, encoded_bytes=len(data), decoded_bytes=decoded_bytes, rows=count, checksum=crc32c(data),
        key_lower=b"", key_upper=None, min_ts=0, max_ts=0, diffs_sum=count, schema_id=0, blocks=(block,),
        footer_bytes=footer, footer_checksum=crc32c(data[body:]),
    )  # fmt: skip


def parquet_bomb(count, width, *, declared, encoding="dictionary"):
    """A file of ``count`` times the same value of ``width`` bytes, made without ever holding them."""
    vals = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), ["x" * width])
    if encoding == "dictionary":
        options = {"use_dictionary": True}
    else:
        options = {"use_dictionary": False, "column_encoding": {"v": encoding}}
        vals = vals.dictionary_decode()
    columns = {"k": [0] * count, "v": vals, "ts": pa.array([0] * count, pa.uint64()), "diff": [1] * count}
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    writer = pq.ParquetWriter(
        sink, table.schema, compression="zstd", write_statistics=False, store_schema=False, **options
    )
    writer.write_table(table, row_group_size=count)
    writer.add_key_value_metadata({GROUP_BYTES_KEY: str(declared).encode()})
    writer.close()
    return sink.getvalue().to_pybytes()


METERS = []
"""Kept for ever: Arrow's threads may give memory back after the call that took it has returned."""


def peak_of(function):
    """Arrow bytes held at most while the function runs."""
    default = pa.default_memory_pool()
    meter = pa.proxy_memory_pool(default)
    METERS.append(meter)
    pa.set_memory_pool(meter)
    try:
        function()
    finally:
        pa.set_memory_pool(default)
    return meter.max_memory()


def refused_within(budget, function):
    def refused():
        with pytest.raises((CorruptData, RequestTooLarge)):
            function()

    assert peak_of(refused) <= budget


def test_the_meter_sees_what_a_bomb_would_cost():
    data = parquet_bomb(100, MEBI, declared=0)
    assert peak_of(lambda: pq.ParquetFile(pa.BufferReader(data)).read()) >= 100 * MEBI


@pytest.mark.parametrize(("encoding", "count"), [("dictionary", 1000), ("DELTA_BYTE_ARRAY", 100)])
@pytest.mark.parametrize("honest", [True, False], ids=["honest", "lying"])
def test_a_parquet_bomb_is_refused_without_decoding_it(encoding, count, honest):
    declared = count * MEBI if honest else 9000
    data = parquet_bomb(count, MEBI, declared=declared, encoding=encoding)
    assert len(data) < 2048
    part = forged(data, count, decoded_bytes=declared)
    refused_within(4 * MEBI, lambda: read_all(data, part, decoded_bytes_max=64 * MEBI))


@pytest.mark.parametrize(("batch_rows", "budget"), [(65_536, 4 * MEBI), (10_000, 300 * MEBI)], ids=["whole", "steps"])
def test_a_bomb_that_lies_plausibly_is_found_while_it_is_decoded(batch_rows, budget):
    data = parquet_bomb(40_000, 64 << 10, declared=MEBI)
    part = forged(data, 40_000, decoded_bytes=MEBI)
    refused_within(budget, lambda: read_all(data, part, batch_rows=batch_rows))


def test_numbers_that_are_not_in_a_dictionary_are_refused():
    vals = pa.DictionaryArray.from_arrays(pa.array([2] * 100, pa.int32()), ["first", "second", "third"])
    columns = {"k": range(100), "v": vals, "ts": pa.array([0] * 100, pa.uint64()), "diff": [1] * 100}
    table, sink = pa.table(columns), pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, table.schema, compression="none", use_dictionary=["v"], write_statistics=False, store_schema=False
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({GROUP_BYTES_KEY: b"10000"})
    data = sink.getvalue().to_pybytes()
    assert len(read_all(data, forged(data, 100, decoded_bytes=10_000))) == 1
    # Two bits for each number, and a hundred times the same one.
    hundred_times = b"\x02\xc8\x01"
    assert data.count(hundred_times + b"\x02") == 1
    data = data.replace(hundred_times + b"\x02", hundred_times + b"\x03")
    with pytest.raises(CorruptData):
        read_all(data, forged(data, 100, decoded_bytes=10_000))


def test_row_groups_beyond_what_a_reader_allows_are_not_taken_for_damage():
    data, part = large()
    with pytest.raises(RequestTooLarge, match="decoded_bytes_max"):
        read_all(data, part, decoded_bytes_max=1000)
    with pytest.raises(RequestTooLarge, match="decoded_bytes_max"):
        decode_inline(encode_inline(rows(100), SCHEMA, 0), SCHEMA, decoded_bytes_max=1000)


def resealed(part, data):
    return dataclasses.replace(part, inline=data, encoded_bytes=len(data), checksum=crc32c(data))


def test_an_inline_part_with_any_bit_flipped_is_refused():
    part = encode_inline(rows(20), SCHEMA, 0)
    for place in range(len(part.inline)):
        bad = bytearray(part.inline)
        bad[place] ^= 1
        with pytest.raises(CorruptData):
            decode_inline(dataclasses.replace(part, inline=bytes(bad)), SCHEMA)
    with pytest.raises(CorruptData):
        decode_inline(dataclasses.replace(part, inline=part.inline[:-1]), SCHEMA)


def frame(message, size=None):
    packed = pa.Codec("zstd").compress(message, asbytes=True)
    return struct.pack("<4sI", b"PIB1", len(message) if size is None else size) + packed


def test_inline_frames_made_by_hand_are_refused_or_decoded_never_crash():
    part = encode_inline(rows(20), SCHEMA, 0)
    message = rows(20).combine_chunks().to_batches()[0].serialize().to_pybytes()
    assert decode_inline(resealed(part, frame(message)), SCHEMA).equals(rows(20))
    source = np.random.default_rng(2)
    for _ in range(300):
        bad = bytearray(message)
        for place in source.integers(0, min(len(bad), 400), 3):
            bad[place] = int(source.integers(0, 256))
        with contextlib.suppress(CorruptData):
            assert decode_inline(resealed(part, frame(bytes(bad))), SCHEMA).num_rows == 20
    for bad in (
        b"",
        b"PIB1",
        b"XXXX" + part.inline[4:],
        frame(message, 5),
        frame(message, len(message) + 1),
        frame(b""),
    ):
        with pytest.raises(CorruptData):
            decode_inline(resealed(part, bad), SCHEMA)


def test_an_inline_part_with_other_rows_than_declared_is_refused():
    part = encode_inline(rows(20), SCHEMA, 0)
    with pytest.raises(CorruptData):
        decode_inline(dataclasses.replace(part, rows=19), SCHEMA)


def test_an_inline_bomb_is_refused_without_expanding_it():
    zeros = pa.array([0] * 10 * MEBI, pa.int8()).cast(pa.int64())
    columns = [zeros, pa.nulls(len(zeros), pa.string()), zeros.cast(pa.uint64()), zeros]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA.updates)
    size = len(zeros)
    declared = {"rows": size, "decoded_bytes": 100}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA.updates, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    stream = pa.ipc.MessageReader.open_stream(sink.getvalue())
    stream.read_next_message()
    inner = stream.read_next_message().serialize().to_pybytes()
    base = encode_inline(rows(3), SCHEMA, 0)
    compressed_body = dataclasses.replace(resealed(base, frame(inner)), **declared)
    refused_within(4 * MEBI, lambda: decode_inline(compressed_body, SCHEMA))
    outer = frame(bytes(520 * MEBI))
    assert len(outer) < 128 << 10
    refused_within(4 * MEBI, lambda: decode_inline(dataclasses.replace(resealed(base, outer), **declared), SCHEMA))
    lying = outer[:4] + struct.pack("<I", 1000) + outer[8:]
    refused_within(4 * MEBI, lambda: decode_inline(dataclasses.replace(resealed(base, lying), **declared), SCHEMA))
