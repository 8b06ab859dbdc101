"""COPY: rows of files of this process, into tables and out of queries.

Source: collections: the fences around SQL. Files are read and written by Arrow, here, never by the engine of queries.
"""

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from persist.client.sql.errors import SqlError, SqlFailed
from persist.client.sql.parse.statements import Copy

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


def format_of(statement: Copy) -> str:
    """The format of a file: the one that is given, or what its name ends in. Raises SqlError."""
    found = statement.format or _BY_ENDING.get(Path(statement.path).suffix.lower())
    if found is None:
        raise SqlError("the format of this file is not known", hint="WITH (FORMAT csv)", path=statement.path)
    return found


def read(statement: Copy) -> pa.Table:
    """The rows of a file. Raises SqlFailed: it cannot be read."""
    path, kind = statement.path, format_of(statement)
    try:
        match kind:
            case "csv":
                reading = pyarrow.csv.ReadOptions(autogenerate_column_names=not statement.header)
                parsing = pyarrow.csv.ParseOptions(delimiter=statement.delimiter)
                return pyarrow.csv.read_csv(path, read_options=reading, parse_options=parsing)
            case "json":
                return pyarrow.json.read_json(path)
            case "parquet":
                return pyarrow.parquet.read_table(path)
            case _:
                with pa.memory_map(path) as source:
                    return _ipc(source)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise SqlFailed("this file cannot be read", path=path, why=" ".join(str(error).split())[:200]) from error


def write(statement: Copy, rows: pa.Table) -> None:
    """The rows into a file, which is whole or not there. Raises SqlFailed."""
    path, kind = Path(statement.path), format_of(statement)
    partial = path.with_name(f".{path.name}.partial")
    try:
        match kind:
            case "csv":
                options = pyarrow.csv.WriteOptions(include_header=statement.header, delimiter=statement.delimiter)
                pyarrow.csv.write_csv(rows, partial, options)
            case "json":
                _write_json(partial, rows)
            case "parquet":
                pyarrow.parquet.write_table(rows, partial)
            case _:
                with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as out:
                    out.write_table(rows)
        partial.replace(path)
    except (OSError, pa.ArrowException, ValueError) as error:
        partial.unlink(missing_ok=True)
        raise SqlFailed("this file cannot be written", path=path, why=" ".join(str(error).split())[:200]) from error


def _ipc(source: pa.NativeFile) -> pa.Table:
    try:
        return pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source).read_all()


def _write_json(path: Path, rows: pa.Table) -> None:
    import json

    with path.open("w", encoding="utf-8") as out:
        for batch in rows.to_batches():
            out.writelines(json.dumps(row, default=str, ensure_ascii=False) + "\n" for row in batch.to_pylist())
