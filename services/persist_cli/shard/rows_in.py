"""Rows from files and pipes, as record batches in bounded memory: CSV, JSON lines, Parquet, Arrow IPC."""

import codecs
import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray, ArrowField
from persist.arrow.exact import DIGITS, cast_exactly
from persist.arrow.json_text import CheckedJson
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
_TEXTS: Final = ("csv", "tsv", "json")
_UTF8: Final = ("utf-8", "utf8", "utf-8-sig")
_JSON_ROW: Final = re.compile(r"in row (\d+)$")
BATCH_ROWS: Final = 65_536
TIME: Final = "ts"
DIFF: Final = "diff"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """Rows somewhere, and how to understand them. ``names``: what columns of the file are called in the shard."""

    source: str
    file_format: str | None = None
    encoding: str = "utf-8"
    names: Mapping[str, str] = field(default_factory=dict)

    def called(self, name: str) -> str:
        """What the shard calls a column of the file."""
        return self.names.get(name, name)


def renamed(pairs: Sequence[str], *, time: str | None = None, diff: str | None = None) -> dict[str, str]:
    """The names that ``OLD=NEW`` pairs give, and those of the columns for time and diff. Raises InvalidArgument."""
    names: dict[str, str] = {}
    for old, new in [_pair(text) for text in pairs] + [(name, to) for name, to in ((time, TIME), (diff, DIFF)) if name]:
        if old in names:
            raise InvalidArgument("a column is given two names", hint="name it once", column=old)
        names[old] = new
    return names


def _pair(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise InvalidArgument("not a new name for a column", hint="--rename OLD=NEW", got=text)
    return old, new


def format_of(source: str, given: str | None) -> str:
    """The format named, or that of the file's suffix. Raises InvalidArgument."""
    if source != STANDARD_INPUT and Path(source).is_dir():
        raise InvalidArgument("this is a folder", hint="append its files one by one", source=source)
    chosen = given or SUFFIXES.get(Path(source).suffix.lower())
    if chosen is None or chosen not in _READERS:
        raise InvalidArgument(
            "unknown format", hint=f"give --format: {', '.join(_READERS)}", source=source, format=given
        )
    return chosen


def read(file: File, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """The rows of a file, or of standard input for ``-``, under the shard's names of columns.

    ``types``: columns, by those names, whose type is known already. Raises InvalidArgument when the file cannot be read
    or understood; with the number of the row at fault, if there is one.
    """
    file_format = format_of(file.source, file.file_format)
    if file.encoding.lower() not in _UTF8 and file_format not in _TEXTS:
        raise InvalidArgument("only text has an encoding", hint="leave --encoding out", format=file_format)
    old_names = {new: old for old, new in file.names.items()}
    known = {old_names.get(name, name): typed for name, typed in types.items()}
    wide = {name: _wide(kind, file_format) for name, kind in known.items()}
    rows, missing = 0, set(file.names)
    try:
        with _open(file.source) as opened:
            for given in _READERS[file_format](opened, wide, file.encoding):
                batch = _narrowed(given, known, rows)
                missing.difference_update(batch.schema.names)
                yield _times_of(_under(batch, file, known, file_format), file)
                rows += batch.num_rows
    except (OSError, LookupError, UnicodeError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument("cannot read rows", hint=_why(error, rows, file_format), source=file.source) from error
    if rows and missing:
        raise InvalidArgument("no such column in the file", hint="--rename OLD=NEW", column=", ".join(sorted(missing)))


def _wide(kind: pa.DataType, file_format: str) -> pa.DataType:
    """As what a value is read: Arrow makes other numbers of those that do not fit a decimal, or a float.

    SUBTLE: its reader of CSV is given no decimals at all, as of some the process ends.
    """
    if pa.types.is_decimal(kind):
        return pa.string() if file_format in ("csv", "tsv") else pa.decimal256(DIGITS[256], kind.scale)
    return pa.float64() if pa.types.is_float32(kind) else kind


def _narrowed(batch: pa.RecordBatch, known: Mapping[str, pa.DataType], rows: int) -> pa.RecordBatch:
    """The same in the types that are known; ``rows`` came before. Raises ArrowInvalid: a value does not fit."""
    for at, (name, found) in enumerate(zip(batch.schema.names, batch.schema.types, strict=True)):
        kind = known.get(name, found)
        if found == kind:
            continue
        if pa.types.is_decimal(kind) and pa.types.is_string(found):
            column = _numbers(pc.utf8_trim_whitespace(batch.column(at)), kind, rows)
        elif (pa.types.is_decimal(kind) and pa.types.is_decimal(found)) or pa.types.is_float32(kind):
            column = cast_exactly(batch.column(at), kind)
        else:
            continue
        batch = batch.set_column(at, name, column)
    return batch


def _numbers(texts: ArrowArray, kind: pa.DataType, rows: int) -> ArrowArray:
    """Decimals of a CSV. Raises ArrowInvalid with the line of the first text that is none."""
    try:
        return cast_exactly(texts, kind)
    except pa.ArrowInvalid:
        begin, end = 0, len(texts)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            cast_exactly(texts.slice(begin, middle - begin), kind)
        except pa.ArrowInvalid:
            end = middle
        else:
            begin = middle
    try:
        return cast_exactly(texts.slice(begin, 1), kind)
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid(f"Row #{rows + begin + 2}: {error}") from error


def _why(error: Exception, rows: int, file_format: str) -> str:
    """What is wrong, and in which line: a reader of CSV counts all rows of the file, one of JSON those of a block."""
    said = str(error).splitlines()[0]
    if file_format == "json" and (found := _JSON_ROW.search(said)):
        if "from object to array" in said:
            return "this is a JSON array; give one object a line (JSON lines), as jq -c '.[]' writes them"
        return f"{said[: found.start()].rstrip(' .')}, in line {rows + int(found[1]) + 1}"
    if "invalid utf8" in said.lower() or isinstance(error, UnicodeError):
        return f"{said}: not UTF-8; name its encoding, such as --encoding latin-1"
    return re.sub(r"Row #(\d+):", r"line \1:", said)


def _under(batch: pa.RecordBatch, file: File, known: Mapping[str, pa.DataType], file_format: str) -> pa.RecordBatch:
    """The batch under the shard's names. Raises InvalidArgument: two columns of one name, text in another encoding."""
    names = [file.called(name) for name in batch.schema.names]
    double = [name for name, count in Counter(names).items() if count > 1]
    if double:
        hint = f"rename one of them, with --rename or in the file: {', '.join(batch.schema.names)}"
        raise InvalidArgument("two columns have one name", hint=hint, column=double[0])
    if file_format == "json":
        batch.validate(full=True)  # its reader takes any bytes for text
    for given in batch.schema if file_format in _TEXTS else ():
        if pa.types.is_binary(given.type) and given.name not in known:
            raise InvalidArgument(
                "a column is not UTF-8 text", hint="name its encoding, such as --encoding latin-1", column=given.name
            )
    return batch.rename_columns(names)


def _times_of(batch: pa.RecordBatch, file: File) -> pa.RecordBatch:
    """The batch with times and diffs as numbers, if it has any. Raises InvalidArgument."""
    for name, option in ((TIME, "--time-column"), (DIFF, "--diff-column")):
        at = batch.schema.get_field_index(name)
        if at < 0 or pa.types.is_integer(batch.schema.field(at).type):
            continue
        found = batch.schema.field(at).type
        moment = pa.types.is_timestamp(found) or pa.types.is_date(found)
        if name == TIME and moment and TIME in file.names.values():
            number = batch.column(at).cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
            batch = batch.set_column(at, name, number)
            continue
        raise InvalidArgument(
            f"{name} is what an update's {'time' if name == TIME else 'count'} is called, a whole number",
            hint=f"--rename {name}=_{name} stores it as a column of its own, which Spark shows as {name}; "
            f"{option} names the column that is meant{', of numbers or dates' if name == TIME else ''}",
            column=name,
            type=found,
        )
    return batch


def _open(source: str) -> BinaryIO:
    if source == STANDARD_INPUT:
        # Without seeking, Parquet and Arrow files cannot be read: they are small enough to hold when piped by hand.
        return (
            sys.stdin.buffer if isinstance(sys.stdin.buffer, io.BufferedReader) else io.BytesIO(sys.stdin.buffer.read())
        )
    return Path(source).open("rb")


def _csv(delimiter: str) -> "Reader":
    def batches(file: BinaryIO, types: Mapping[str, pa.DataType], encoding: str) -> Iterator[pa.RecordBatch]:
        from pyarrow import csv

        yield from csv.open_csv(
            file,
            # With threads no error would say which row it is about.
            read_options=csv.ReadOptions(use_threads=False, encoding=encoding),
            parse_options=csv.ParseOptions(delimiter=delimiter),
            # An empty cell is null; NA, NULL and quoted empty ones are what they say.
            convert_options=csv.ConvertOptions(
                column_types=dict(types), null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )

    return batches


def _json(file: BinaryIO, types: Mapping[str, pa.DataType], encoding: str) -> Iterator[pa.RecordBatch]:
    from pyarrow import json

    given: BinaryIO | pa.NativeFile = _without_mark(file)
    if encoding.lower() not in _UTF8:
        given = pa.transcoding_input_stream(pa.PythonFile(cast(io.IOBase, file), "r"), encoding, "utf-8")
    schema = pa.schema(list(types.items())) if types else None
    given = pa.PythonFile(CheckedJson(cast(BinaryIO, given), schema or ()), "r")
    options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer")
    yield from json.open_json(given, parse_options=options)  # type: ignore[arg-type]  # narrower than Arrow is


def _parquet(file: BinaryIO, types: Mapping[str, pa.DataType], encoding: str) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet

    yield from parquet.ParquetFile(_seekable(file)).iter_batches(BATCH_ROWS)


def _arrow(file: BinaryIO, types: Mapping[str, pa.DataType], encoding: str) -> Iterator[pa.RecordBatch]:
    buffered = io.BufferedReader(file) if not isinstance(file, io.BufferedReader) else file  # type: ignore[type-var]  # a raw file
    if buffered.peek(6).startswith(b"ARROW1"):
        reader = pa.ipc.open_file(_seekable(buffered))  # type: ignore[arg-type]  # narrower than Arrow is
        yield from (reader.get_batch(index) for index in range(reader.num_record_batches))
    else:
        yield from pa.ipc.open_stream(buffered)


def _without_mark(file: BinaryIO) -> BinaryIO:
    """The file behind its byte order mark, if it has one, which JSON does not know."""
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(file)  # type: ignore[type-var]  # a raw file
    if buffered.peek(len(codecs.BOM_UTF8)).startswith(codecs.BOM_UTF8):
        buffered.read(len(codecs.BOM_UTF8))
    return buffered


def _seekable(file: BinaryIO) -> BinaryIO:
    return file if file.seekable() else io.BytesIO(file.read())


Reader = Callable[[BinaryIO, Mapping[str, pa.DataType], str], Iterator[pa.RecordBatch]]
"""Batches of an open file, given the types that are known and its encoding."""

_READERS: Final[Mapping[str, Reader]] = {
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
        arrays = [cast_exactly(batch.column(field.name), field.type) for field in wanted]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument("a value does not fit its column", hint=str(error).splitlines()[0]) from error
    return pa.RecordBatch.from_arrays(arrays, names=names)
