"""COPY: rows of files of this process, into tables and out of queries.

Source: collections: the fences around SQL. Files are read and written by Arrow, here, never by the engine of queries.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from persist.arrow import ArrowField, blocks
from persist.arrow.guessed import check_json, check_small
from persist.arrow.json_text import CheckedJson
from persist.client.collections.plain import rows_of, with_texts
from persist.client.sql.errors import SqlError, SqlFailed
from persist.client.sql.parse.statements import Copy
from persist.core.data.schema import Schema
from persist.core.data.types import T
from persist.json_out import json_of

_BY_ENDING: Final = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
}


_NEAR: Final = 1e-9
"""Between a number and itself as a float, of itself."""
_TRUE: Final = [word for each in ("true", "t", "yes", "y", "on", "1") for word in (each, each.upper(), each.title())]
_FALSE: Final = [word for each in ("false", "f", "no", "n", "off", "0") for word in (each, each.upper(), each.title())]


def format_of(statement: Copy) -> str:
    """The format of a file: the one that is given, or what its name ends in. Raises SqlError."""
    found = statement.format or _BY_ENDING.get(Path(statement.path).suffix.lower())
    if found is None:
        raise SqlError("the format of this file is not known", hint="WITH (FORMAT csv)", path=statement.path)
    return found


def read(statement: Copy, schema: Schema) -> pa.Table:
    """The rows of a file, for a table of this schema, whose types say what is written there: nothing is guessed.

    Columns are those of the file. Raises SqlFailed: it cannot be read.
    """
    path, kind = statement.path, format_of(statement)
    fields = [*schema.key, *schema.val]
    try:
        match kind:
            case "csv":
                return _read_csv(statement, fields)
            case "json":
                return _read_json(path, _by_name(fields))
            case "parquet":
                return pyarrow.parquet.read_table(path)
            case _:
                with pa.memory_map(path) as source:
                    return _ipc(source)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise SqlFailed("this file cannot be read", path=path, why=" ".join(str(error).split())[:200]) from error


def _by_name(fields: Sequence[ArrowField]) -> Mapping[str, pa.DataType]:
    return {field.name.lower(): field.type for field in fields}


def _read_csv(statement: Copy, fields: Sequence[ArrowField]) -> pa.Table:
    """As PostgreSQL reads it: what is empty and has no quotes is null, and nothing else is."""
    reading = pyarrow.csv.ReadOptions(autogenerate_column_names=not statement.header)
    parsing = blocks.parsing(statement.delimiter, ignore_empty_lines=statement.header)
    with pyarrow.csv.open_csv(statement.path, read_options=reading, parse_options=parsing) as file:
        names = file.schema.names
    # Of one column an empty line is a null; of several PostgreSQL refuses it.
    parsing.ignore_empty_lines = len(names) > 1
    known = _by_name(fields)
    if statement.columns or not statement.named:
        wanted = [name.lower() for name in statement.columns] or [field.name.lower() for field in fields]
    else:
        wanted = [name.lower() for name in names]
    kinds = {name: _in_csv(known.get(asked, pa.string())) for name, asked in zip(names, wanted, strict=False)}
    converting = blocks.converting(kinds, true_values=_TRUE, false_values=_FALSE)
    found = pyarrow.csv.read_csv(
        statement.path, read_options=reading, parse_options=parsing, convert_options=converting
    )
    for at, (name, asked) in enumerate(zip(found.schema.names, wanted, strict=False)):
        if _is_written_number(known.get(asked, pa.string())):
            found = found.set_column(at, name, pc.utf8_trim_whitespace(found.column(at)))
    return found


def _is_written_number(kind: pa.DataType) -> bool:
    """Whether Arrow reads other numbers of such a type than stand there, where they do not fit."""
    return T.is_decimal(kind) or T.is_floating(kind)


def _in_csv(kind: pa.DataType) -> pa.DataType:
    """As what a value is read that is put into such a column: what Arrow does not read itself is a text."""
    is_text = T.is_temporal(kind) or T.is_binary(kind) or T.is_nested(kind) or _is_written_number(kind)
    return pa.string() if is_text else kind


def _read_json(path: str, known: Mapping[str, pa.DataType]) -> pa.Table:
    with CheckedJson.open(path) as given, pyarrow.json.open_json(given) as file:
        seen = file.schema
    told = [pa.field(field.name, _in_json(field.type, known.get(field.name.lower()))) for field in seen]
    with CheckedJson.open(path, told) as given:
        found = pyarrow.json.read_json(given, parse_options=pyarrow.json.ParseOptions(explicit_schema=pa.schema(told)))
    _check_numbers(path, found)
    guessed = [each for each in found.schema if each.name.lower() in known and each.type != known[each.name.lower()]]
    with Path(path).open("rb") as texts:
        for block in blocks.json_blocks(texts):
            check_json(block, guessed)
            check_small(block, list(found.schema))
    return found


def _check_numbers(path: str, found: pa.Table) -> None:
    """Raise ValueError where Arrow read another number than is written: too large for a float, or not near to the one
    that it reads as a float.
    """
    for field in found.schema:
        if T.is_floating(field.type) and pc.any(pc.is_inf(found.column(field.name))).as_py():
            raise ValueError(f"{field.name} has a number that is out of range")
    exact = [field.name for field in found.schema if T.is_decimal(field.type)]
    if not exact:
        return
    floats = pyarrow.json.ParseOptions(
        explicit_schema=pa.schema([(name, pa.float64()) for name in exact]), unexpected_field_behavior="ignore"
    )
    with CheckedJson.open(path) as given_again:
        said = pyarrow.json.read_json(given_again, parse_options=floats)
    for name in exact:
        near, given = found.column(name).cast(pa.float64()), said.column(name)
        if pc.any(pc.greater(pc.abs(pc.subtract(near, given)), pc.multiply(pc.abs(given), _NEAR))).as_py():
            raise ValueError(f"{name} has a number that does not fit {found.schema.field(name).type}")


def _in_json(seen: pa.DataType, kind: pa.DataType | None) -> pa.DataType:
    """As what a value is read: a text is a text, and the digits of a number are all kept."""
    if T.is_string(seen) or T.is_temporal(seen):
        return pa.string()
    is_number = T.is_integer(seen) or T.is_floating(seen)
    if kind is not None and is_number and (T.is_integer(kind) or T.is_floating(kind) or T.is_decimal(kind)):
        return kind
    if kind is not None and T.is_null(seen):
        return pa.string() if T.is_binary(kind) or T.is_temporal(kind) else kind
    return seen


def write(statement: Copy, rows: pa.Table) -> None:
    """The rows into a file, which is whole or not there. Raises SqlFailed."""
    path, kind = Path(statement.path), format_of(statement)
    partial = path.with_name(f".{path.name}.partial")
    try:
        match kind:
            case "csv":
                options = pyarrow.csv.WriteOptions(include_header=statement.header, delimiter=statement.delimiter)
                pyarrow.csv.write_csv(with_texts(rows), partial, options)
            case "json":
                check_names(rows.schema)
                _write_json(partial, _finite(rows))
            case "parquet":
                pyarrow.parquet.write_table(rows, partial)
            case _:
                with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as out:
                    out.write_table(rows)
        partial.replace(path)
    except (OSError, pa.ArrowException, ValueError) as error:
        partial.unlink(missing_ok=True)
        raise SqlFailed("this file cannot be written", path=path, why=" ".join(str(error).split())[:200]) from error


def check_names(schema: pa.Schema) -> None:
    """Raise SqlError where two columns have one name, of which an object of JSON has but one."""
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise SqlError("two columns have one name, and JSON has room for one", hint="name them: AS", columns=twice[0])


def _finite(rows: pa.Table) -> pa.Table:
    """JSON has no number that is infinite, or NaN: a column with one is written in texts, which are read as numbers."""
    for at, field in enumerate(rows.schema):
        if T.is_floating(field.type) and pc.all(pc.is_finite(rows.column(at))).as_py() is False:
            texts = [None if each is None else _named(each) for each in rows.column(at).to_pylist()]
            rows = rows.set_column(at, field.name, pa.array(texts, pa.string()))
    return rows


def _named(number: float) -> str:
    # As json_of does, and PostgreSQL.
    return repr(number).replace("nan", "NaN").replace("inf", "Infinity")


def _ipc(source: pa.NativeFile) -> pa.Table:
    try:
        return pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source).read_all()


def _write_json(path: Path, rows: pa.Table) -> None:
    with path.open("w", encoding="utf-8") as out:
        for batch in rows.to_batches():
            out.writelines(json_of(row, _text) + "\n" for row in rows_of(batch))


def _text(value: object) -> str:
    """What JSON has no form for: bytes as PostgreSQL writes them, and all else as Python does."""
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
