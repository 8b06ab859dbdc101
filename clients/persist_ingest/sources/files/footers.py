"""What the footer of a Parquet file says, checked, and its rows in batches that are small once they are decoded."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from numpy.typing import NDArray

from persist.arrow import ArrowArray
from persist_ingest.sources.files.places import Content

# What Arrow raises for data it cannot make sense of, and for too little memory, which says nothing of them.
# A fault of the store is a LocationError by then: see Content.
UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, KeyError)


def opened(content: Content, fields: pa.Schema) -> pyarrow.parquet.ParquetFile:
    """A file whose texts stay dictionaries where they are: a value that occurs often is held once."""
    metadata = pyarrow.parquet.read_metadata(_file(content))
    declared = {each.name for each in fields if pa.types.is_string(each.type) or pa.types.is_binary(each.type)}
    leaves = [metadata.schema.column(at) for at in range(len(metadata.schema))]
    texts = [each.path for each in leaves if each.path in declared and each.physical_type == "BYTE_ARRAY"]
    return pyarrow.parquet.ParquetFile(_file(content), metadata=metadata, read_dictionary=texts)


def _file(content: Content) -> pa.PythonFile:
    content.seek(0)
    return pa.PythonFile(content, mode="r")  # type: ignore[arg-type]  # narrower than Arrow is


def check_columns(file: pyarrow.parquet.ParquetFile, fields: pa.Schema, key: Sequence[str]) -> list[str]:
    """The declared columns that it has. Raises ArrowInvalid where it cannot be a file of this table."""
    names = Counter(file.schema_arrow.names)
    there = [each.name for each in fields if each.name in names]
    if twice := [name for name in there if names[name] > 1]:
        raise pa.ArrowInvalid(f"the file has columns twice: {', '.join(twice)}")
    lacking = [each for each in fields if each.name not in names]
    check_cases([each.name for each in lacking], list(names))
    if needed := [each.name for each in lacking if not each.nullable or each.name in key]:
        raise pa.ArrowInvalid(f"the file lacks columns that must have values or are of the key: {', '.join(needed)}")
    if not there:
        raise pa.ArrowInvalid(f"the file has none of the declared columns, but {', '.join(names)[:200]}")
    return there


def check_cases(lacking: Sequence[str], names: Sequence[str]) -> None:
    """Raise ArrowInvalid where a column is there whose name differs by case alone."""
    lower = {name.lower(): name for name in names}
    for name in lacking:
        if name.lower() in lower:
            raise pa.ArrowInvalid(f"the file has a column {lower[name.lower()]}, and no {name}: names differ by case")


def check_counts(file: pyarrow.parquet.ParquetFile) -> None:
    """Raise ArrowInvalid where the footer contradicts itself: rows would be missing, and nothing would say so."""
    groups = [file.metadata.row_group(at) for at in range(file.num_row_groups)]
    if sum(group.num_rows for group in groups) != file.metadata.num_rows:
        raise pa.ArrowInvalid("the row groups have not as many rows as the file says")
    flat = [at for at in range(len(file.schema)) if not file.schema.column(at).max_repetition_level]
    for number, group in enumerate(groups):
        if any(group.column(at).num_values != group.num_rows for at in flat if at < group.num_columns):
            raise pa.ArrowInvalid(f"a column of row group {number} has not as many values as the group has rows")


def narrow(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The same rows, in order, in batches that have about so many bytes without dictionaries, or one row."""
    if not any(pa.types.is_dictionary(column.type) for column in batch.columns):
        yield batch
        return
    ends = np.cumsum(sum((_lengths(column) for column in batch.columns), np.ones(batch.num_rows, np.int64)))
    begin = 0
    while begin < batch.num_rows:
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + bytes_max, side="right")))
        part = batch.slice(begin, end - begin)
        columns = [_decoded(column) for column in part.columns]
        yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        begin = end


def _lengths(column: ArrowArray) -> NDArray[np.int64]:
    if not isinstance(column, pa.DictionaryArray):
        return np.full(len(column), column.nbytes // max(1, len(column)), np.int64)
    lengths = pc.binary_length(column.dictionary).take(column.indices)
    return np.asarray(lengths.fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _decoded(column: ArrowArray) -> ArrowArray:
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


def row_count(content: Content) -> int:
    """The rows of a Parquet file by its footer; 0 when that makes no sense."""
    try:
        return int(pyarrow.parquet.ParquetFile(_file(content)).metadata.num_rows)
    except MemoryError:
        raise
    except UNREADABLE:
        return 0


def inferred(content: Content, names: Sequence[str]) -> pa.Schema:
    """The columns of a Parquet file, or only those named. Raises an error of Arrow, or KeyError."""
    schema = pyarrow.parquet.read_schema(_file(content))
    chosen = [schema.field(name) for name in names] if names else list(schema)
    return pa.schema([pa.field(each.name, each.type, nullable=each.nullable) for each in chosen])
