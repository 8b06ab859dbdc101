"""Rows from files and pipes, as record batches in bounded memory: CSV, JSON lines, Parquet, Arrow IPC."""

import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa

from persist.arrow import ArrowField
from persist.errors import InvalidArgument
from persist.typed import Record

SUFFIXES: Final = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
}
STANDARD_INPUT: Final = "-"
BATCH_ROWS: Final = 65_536
TIME: Final = "ts"
DIFF: Final = "diff"


def format_of(source: str, given: str | None) -> str:
    """The format named, or that of the file's suffix. Raises InvalidArgument."""
    chosen = given or SUFFIXES.get(Path(source).suffix.lower())
    if chosen is None or chosen not in _READERS:
        raise InvalidArgument(
            "unknown format", hint=f"give --format: {', '.join(_READERS)}", source=source, format=given
        )
    return chosen


def read(source: str, file_format: str, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """The rows of a file, or of standard input for ``-``. ``types``: columns whose type is known already.

    Raises InvalidArgument when the file cannot be read or understood.
    """
    try:
        with _open(source) as file:
            yield from _READERS[file_format](file, types)
    except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument("cannot read rows", hint=str(error).splitlines()[0], source=source) from error


def _open(source: str) -> BinaryIO:
    if source == STANDARD_INPUT:
        # Without seeking, Parquet and Arrow files cannot be read: they are small enough to hold when piped by hand.
        return (
            sys.stdin.buffer if isinstance(sys.stdin.buffer, io.BufferedReader) else io.BytesIO(sys.stdin.buffer.read())
        )
    return Path(source).open("rb")


def _csv(delimiter: str) -> Callable[[BinaryIO, Mapping[str, pa.DataType]], Iterator[pa.RecordBatch]]:
    def batches(file: BinaryIO, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        from pyarrow import csv

        yield from csv.open_csv(
            file,
            parse_options=csv.ParseOptions(delimiter=delimiter),
            convert_options=csv.ConvertOptions(column_types=dict(types), strings_can_be_null=True),
        )

    return batches


def _json(file: BinaryIO, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    from pyarrow import json

    schema = pa.schema(list(types.items())) if types else None
    options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer")
    yield from json.open_json(file, parse_options=options)


def _parquet(file: BinaryIO, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet

    yield from parquet.ParquetFile(_seekable(file)).iter_batches(BATCH_ROWS)


def _arrow(file: BinaryIO, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    buffered = io.BufferedReader(file) if not isinstance(file, io.BufferedReader) else file  # type: ignore[type-var]  # a raw file
    if buffered.peek(6).startswith(b"ARROW1"):
        reader = pa.ipc.open_file(_seekable(buffered))  # type: ignore[arg-type]  # narrower than Arrow is
        yield from (reader.get_batch(index) for index in range(reader.num_record_batches))
    else:
        yield from pa.ipc.open_stream(buffered)


def _seekable(file: BinaryIO) -> BinaryIO:
    return file if file.seekable() else io.BytesIO(file.read())


_READERS: Final[Mapping[str, Callable[[BinaryIO, Mapping[str, pa.DataType]], Iterator[pa.RecordBatch]]]] = {
    "csv": _csv(","),
    "tsv": _csv("\t"),
    "json": _json,
    "parquet": _parquet,
    "arrow": _arrow,
}


def column_of(text: str) -> tuple[str, pa.DataType | None]:
    """A column as people name one: ``name`` or ``name:type``. Raises InvalidArgument for an unknown type."""
    name, colon, alias = text.partition(":")
    if not colon:
        return name, None
    try:
        return name, pa.type_for_alias(alias)  # type: ignore[call-overload]  # narrower than Arrow is
    except ValueError as error:
        hint = "use an Arrow type's name: int64, float64, string, bool, date32, timestamp[us], …"
        raise InvalidArgument("unknown column type", hint=hint, column=text) from error


def split_columns(
    found: pa.Schema, key: Sequence[str], val: Sequence[str]
) -> tuple[dict[str, ArrowField], dict[str, ArrowField]]:
    """The key and val fields of a new shard: as named, or every column that is left. Raises InvalidArgument."""
    columns: Record = {field.name: field for field in found if field.name not in (TIME, DIFF)}

    def pick(names: Sequence[str]) -> dict[str, ArrowField]:
        picked = {}
        for text in names:
            name, typed = column_of(text)
            if name not in columns:
                raise InvalidArgument("no such column", hint=f"the columns are: {', '.join(columns)}", column=name)
            picked[name] = columns[name] if typed is None else pa.field(name, typed)
        return picked

    keys = pick(key)
    vals = pick(val) if val else {name: field for name, field in columns.items() if name not in keys}
    return keys, vals


def conform(batch: pa.RecordBatch, updates: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns and types the shard's updates have; ``ts`` and ``diff`` only if they are there.

    Raises InvalidArgument for a missing or extra column, or a value its type cannot hold.
    """
    wanted = [field for field in updates if field.name not in (TIME, DIFF) or field.name in batch.schema.names]
    names = [field.name for field in wanted]
    extra = [name for name in batch.schema.names if name not in names]
    missing = [name for name in names if name not in batch.schema.names]
    if extra or missing:
        raise InvalidArgument(
            "the rows do not fit the shard", hint=f"its columns are: {', '.join(names)}", missing=missing, extra=extra
        )
    try:
        arrays = [batch.column(field.name).cast(field.type) for field in wanted]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument("a value does not fit its column", hint=str(error).splitlines()[0]) from error
    return pa.RecordBatch.from_arrays(arrays, names=names)
