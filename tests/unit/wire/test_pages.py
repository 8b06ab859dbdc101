"""What headers of pages say is what their bytes make, or nothing."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist.core.data.schema import Schema
from persist.wire.columnar import encode_parts, part_batches
from persist.wire.columnar.pages import plain_bytes
from persist.wire.columnar.row_group import RowGroup

TEXTS = [None if number % 7 == 3 else "é" * (number % 50) + str(number) for number in range(20_000)]


def written(values: list[str | None] | pa.Array, **options: Any) -> tuple[bytes, pq.ColumnChunkMetaData]:
    """A file of one column, and its only chunk."""
    sink = io.BytesIO()
    options = {"use_dictionary": False, "compression": "zstd", **options}
    pq.write_table(pa.table({"v": values}), sink, **options)
    return sink.getvalue(), pq.read_metadata(io.BytesIO(sink.getvalue())).row_group(0).column(0)


def said(data: bytes, chunk: pq.ColumnChunkMetaData, *, values: int | None = None) -> int | None:
    """What is said of the chunk."""
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    assert start is not None
    end = start + chunk.total_compressed_size
    return plain_bytes(lambda a, b: data[a:b], start, end, chunk.num_values if values is None else values)


@pytest.mark.parametrize("page", [1 << 10, 1 << 20], ids=["many-pages", "one-page"])
@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize("statistics", [True, False])
def test_pages_of_plain_values_say_how_much_they_are(page: int, compression: str, statistics: bool) -> None:
    data, chunk = written(TEXTS, data_page_size=page, compression=compression, write_statistics=statistics)
    size = said(data, chunk)
    assert size is not None
    values = sum(4 + len(text.encode()) for text in TEXTS if text is not None)
    # Beside values: which of them are null.
    assert values <= size <= values + len(TEXTS)


@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": True},
        {"column_encoding": {"v": "DELTA_BYTE_ARRAY"}},
        {"column_encoding": {"v": "DELTA_LENGTH_BYTE_ARRAY"}},
        {"data_page_version": "2.0"},
    ],
    ids=str,
)
def test_nothing_is_said_of_others(options: dict[str, Any]) -> None:
    data, chunk = written(TEXTS, **options)
    assert said(data, chunk) is None


def test_nothing_is_said_of_a_header_that_is_long() -> None:
    data, chunk = written(["x" * 5000, "y" * 5000])
    assert (said(data, chunk) or 10_000) >= 10_000
    assert plain_bytes(lambda a, b: data[a : min(b, a + 8)], 4, 4 + chunk.total_compressed_size, 2) is None


def test_nothing_is_said_where_the_footer_promises_other_rows_or_ends() -> None:
    data, chunk = written(TEXTS)
    assert said(data, chunk, values=len(TEXTS) - 1) is None
    start, end = chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size
    for other in (end - 1, end + 1, start + 1):
        assert plain_bytes(lambda a, b: data[a:b], start, other, len(TEXTS)) is None


def test_headers_with_any_bit_flipped_say_something_or_nothing() -> None:
    data, chunk = written(TEXTS[:100], write_statistics=True)
    start = chunk.data_page_offset
    whole = said(data, chunk)
    for place in range(start, start + 80):
        for bit in range(8):
            bad = bytearray(data)
            bad[place] ^= 1 << bit
            size = said(bytes(bad), chunk)
            try:
                table = pq.ParquetFile(pa.BufferReader(bytes(bad)), pre_buffer=False).read(use_threads=False)
            except (pa.ArrowException, OSError, ValueError):
                continue
            # What Arrow decodes all the same is no more than was said.
            assert size is None or table.column("v").nbytes <= max(size, whole or 0) + 8 * table.num_rows


def test_rows_come_the_same_by_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema({"k": pa.int64()}, {"v": pa.string(), "w": pa.string()})
    rows = pa.table(
        {"k": range(20_000), "v": TEXTS, "w": [f"{number % 9}" for number in range(20_000)],
         "ts": pa.array([0] * 20_000, pa.uint64()), "diff": [1] * 20_000},
        schema=schema.updates,
    )  # fmt: skip
    [encoded] = encode_parts([rows], schema, 0, row_group_rows=8000)
    data = bytes(encoded.data)
    steps: list[list[str]] = []
    stepwise = RowGroup._stepwise

    def counted(self: RowGroup, names: list[str], rows: Any) -> Any:
        steps.append(names)
        return stepwise(self, names, rows)

    def read() -> pa.Table:
        return pa.Table.from_batches(list(part_batches(encoded.part, lambda start, end: data[start:end], schema)))

    monkeypatch.setattr(RowGroup, "_stepwise", counted)
    fast = read()
    assert steps == []
    monkeypatch.setattr(RowGroup, "_plain", lambda self, names: {})
    assert read().equals(fast)
    assert fast.equals(rows)
    assert steps
    assert np.array_equal(fast.column("k").to_numpy(), np.arange(20_000))
