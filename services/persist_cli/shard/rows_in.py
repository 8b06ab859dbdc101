"""Rows from files and pipes, as record batches in bounded memory: CSV, JSON lines, Parquet, Arrow IPC."""

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray, ArrowField
from persist.arrow.exact import DIGITS, cast_exactly
from persist.arrow.guessed import NotKept
from persist.errors import InvalidArgument
from persist.typed import Record
from persist_cli.shard.stdin import standard_input
from persist_cli.shard.texts import Reader, Rows, Types, read_csv, read_json

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


def read(file: File, types: Types) -> Iterator[Rows]:
    """The rows of a file, or of standard input for ``-``, under the shard's names of columns.

    ``types``: columns, by those names, whose type is known already. Raises InvalidArgument when the file cannot be read
    or understood, or has a number that is not kept; with the line at fault, if there is one.
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
                narrow = {name: known[name] for name in given.batch.schema.names if name in known}
                batch = _cast(given, {name: kind for name, kind in narrow.items() if kind != wide[name]})
                missing.difference_update(batch.schema.names)
                named = _under(batch, file, known, file_format)
                yield Rows(_times_of(Rows(named, given.line_of), file), given.line_of)
                rows += batch.num_rows
    except (OSError, LookupError, UnicodeError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument("cannot read rows", hint=_why(error), source=file.source) from error
    if rows and missing:
        raise InvalidArgument("no such column in the file", hint="--rename OLD=NEW", column=", ".join(sorted(missing)))


def _wide(kind: pa.DataType, file_format: str) -> pa.DataType:
    """As what a value is read: Arrow makes other numbers of those that do not fit a decimal, or a float.

    SUBTLE: its reader of CSV is given no decimals at all, as of some the process ends.
    """
    if pa.types.is_decimal(kind):
        return pa.string() if file_format in ("csv", "tsv") else pa.decimal256(DIGITS[256], kind.scale)
    return pa.float64() if pa.types.is_float32(kind) else kind


def _cast(rows: Rows, types: Types) -> pa.RecordBatch:
    """The same in these types. Raises ArrowInvalid, which names the first line: a value does not fit."""
    batch = rows.batch
    for at, name in enumerate(batch.schema.names):
        if name in types and batch.schema.field(at).type != types[name]:
            batch = batch.set_column(at, name, _column(rows, at, types[name]))
    return batch


def _column(rows: Rows, at: int, kind: pa.DataType) -> ArrowArray:
    column = rows.batch.column(at)
    if pa.types.is_decimal(kind) and pa.types.is_string(column.type):
        column = pc.utf8_trim_whitespace(column)
    try:
        return cast_exactly(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        refused = error
    low, high = 0, len(column)  # the first row that is refused is among these
    while high - low > 1:
        middle = (low + high) // 2
        try:
            cast_exactly(column.slice(low, middle - low), kind)
            low = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            refused, high = error, middle
    said = f"column {rows.batch.schema.names[at]}: {str(refused).splitlines()[0]}"
    raise pa.ArrowInvalid(said + _in_line(rows, low)) from refused


def _in_line(rows: Rows, index: int) -> str:
    line = rows.line_of(index)
    return f", in line {line}" if line else ""


def _why(error: Exception) -> str:
    """What is wrong, and what to do about it."""
    said = str(error).splitlines()[0]
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if "from object to array" in said:
        return "this is a JSON array; give one object a line (JSON lines), as jq -c '.[]' writes them"
    if isinstance(error, NotKept):
        return f"{said}; name its type with --key or --val, such as id:uint64 or, of CSV, id:string"
    if "invalid utf8" in said.lower() or isinstance(error, UnicodeError):
        return f"{said}: not UTF-8; name its encoding, such as --encoding latin-1"
    return said


def _under(batch: pa.RecordBatch, file: File, known: Types, file_format: str) -> pa.RecordBatch:
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


def _times_of(rows: Rows, file: File) -> pa.RecordBatch:
    """The batch with times and diffs as numbers, if it has any. Raises InvalidArgument."""
    batch = rows.batch
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
        if pa.types.is_floating(found):
            _column(rows, at, pa.int64())  # refuses what is none, with its line
        raise InvalidArgument(
            f"{name} is what an update's {'time' if name == TIME else 'count'} is called, a whole number",
            hint=f"--rename {name}=_{name} stores it as a column of its own, which Spark shows as {name}; "
            f"{option} names the column that is meant{', of numbers or dates' if name == TIME else ''}",
            column=name,
            type=found,
        )
    return batch


def check_updates(rows: Rows, updates: pa.Schema) -> None:
    """Raise InvalidArgument, with the line, where a value is missing that each row has, or a time is negative."""
    for name, column in zip(rows.batch.schema.names, rows.batch.columns, strict=True):
        must = name in (TIME, DIFF) or not updates.field(name).nullable
        if must and column.null_count:
            _refuse(rows, pc.index(pc.is_null(column), True).as_py(), f"a row has no {name}")
        if name == TIME and pc.any(pc.less(column, 0)).as_py():
            _refuse(rows, pc.index(pc.less(column, 0), True).as_py(), "a time is before the first one, which is 0")


def _refuse(rows: Rows, index: int, why: str) -> NoReturn:
    line = rows.line_of(index)
    raise InvalidArgument(why, hint="mend it, or take the row out", **({"line": line} if line else {"row": index + 1}))


def _open(source: str) -> BinaryIO:
    if source == STANDARD_INPUT:
        return standard_input()
    return Path(source).open("rb")


def _parquet(file: BinaryIO, types: Types, encoding: str) -> Iterator[Rows]:
    from pyarrow import parquet

    yield from map(Rows, parquet.ParquetFile(_seekable(file)).iter_batches(BATCH_ROWS))


def _arrow(file: BinaryIO, types: Types, encoding: str) -> Iterator[Rows]:
    buffered = io.BufferedReader(file) if not isinstance(file, io.BufferedReader) else file  # type: ignore[type-var]  # a raw file
    if buffered.peek(6).startswith(b"ARROW1"):
        reader = pa.ipc.open_file(_seekable(buffered))  # type: ignore[arg-type]  # narrower than Arrow is
        yield from (Rows(reader.get_batch(index)) for index in range(reader.num_record_batches))
    else:
        yield from map(Rows, pa.ipc.open_stream(buffered))


def _seekable(file: BinaryIO) -> BinaryIO:
    return file if file.seekable() else io.BytesIO(file.read())


_READERS: Final[Mapping[str, Reader]] = {
    "csv": read_csv(","),
    "tsv": read_csv("\t"),
    "json": read_json,
    "parquet": _parquet,
    "arrow": _arrow,
}


def column_of(text: str) -> tuple[str, pa.DataType | None]:
    """A column as people name one: ``name`` or ``name:type``. Raises InvalidArgument for an unknown type."""
    name, colon, alias = text.partition(":")
    if not colon:
        return name, None
    from persist.wire.catalog.ddl_columns import type_of  # which reading a shard has no need of

    try:
        return name, type_of(alias.strip())
    except InvalidArgument as error:
        hint = "use an Arrow type's name: int64, float64, string, bool, date32, timestamp[us], decimal128(20, 2), …"
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


def conform(rows: Rows, updates: pa.Schema) -> Rows:
    """The rows with the columns and types the shard's updates have; ``ts`` and ``diff`` only if they are there.

    Raises InvalidArgument for a missing or extra column, or a value its type cannot hold, with its line.
    """
    batch = rows.batch
    wanted = [field for field in updates if field.name not in (TIME, DIFF) or field.name in batch.schema.names]
    names = [field.name for field in wanted]
    extra = [name for name in batch.schema.names if name not in names]
    missing = [name for name in names if name not in batch.schema.names]
    if extra or missing:
        raise InvalidArgument(
            "the rows do not fit the shard", hint=f"its columns are: {', '.join(names)}", missing=missing, extra=extra
        )
    try:
        batch = _cast(rows, {field.name: field.type for field in wanted})
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument("a value does not fit its column", hint=str(error).splitlines()[0]) from error
    return Rows(batch.select(names), rows.line_of)
