"""Rows to a terminal, a pipe or a file, batch by batch: a table, JSON lines, CSV, Parquet, Arrow IPC."""

import contextlib
import io
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa

from persist.client.collections.plain import rows_of
from persist.errors import InvalidArgument
from persist_cli.shard.rows_in import SUFFIXES
from persist_cli.terminal import counted, print_json_line, print_table

TABLE_ROWS_MAX: Final = 1000
FORMATS: Final = ("table", "json", "csv", "tsv", "parquet", "arrow")


def format_of(given: str | None, output: Path | None, *, json: bool) -> str:
    """The format asked for: by name, by ``--json``, by the file's suffix; a table otherwise. Raises InvalidArgument."""
    chosen = given or ("json" if json else SUFFIXES.get(output.suffix.lower()) if output is not None else "table")
    if chosen not in FORMATS:
        raise InvalidArgument(
            "unknown format", hint=f"give --format: {', '.join(FORMATS)}", format=given, output=output
        )
    if chosen == "table" and output is not None:
        raise InvalidArgument("a table is for people", hint="choose another --format for a file", output=output)
    return chosen


def write(
    batches: Generator[pa.RecordBatch, None, None],
    schema: pa.Schema,
    file_format: str,
    output: Path | None,
    *,
    title: str = "",
) -> int:
    """Write the rows and return how many. To standard output unless ``output`` names a file. Closes ``batches``."""
    with contextlib.closing(batches):
        return _write(batches, schema, file_format, output, title)


def _write(
    batches: Generator[pa.RecordBatch, None, None],
    schema: pa.Schema,
    file_format: str,
    output: Path | None,
    title: str,
) -> int:
    if file_format == "table":
        return _table(batches, schema, title)
    if file_format == "json":
        with contextlib.ExitStack() as stack:
            if output is not None:
                text = stack.enter_context(io.TextIOWrapper(_made(output), "utf-8"))
                stack.enter_context(contextlib.redirect_stdout(text))
            return sum(_json(batch) for batch in batches)
    written = 0
    with _sink(output) as sink, _writer(file_format, sink, schema) as put:
        for batch in batches:
            put(batch)
            written += batch.num_rows
    return written


def limited(batches: Iterable[pa.RecordBatch], most: int | None) -> Generator[pa.RecordBatch, None, None]:
    """The first ``most`` rows; all of them when None. Closes ``batches`` when it ends."""
    with contextlib.ExitStack() as stack:
        if isinstance(batches, Generator):
            stack.callback(batches.close)
        left = most
        for batch in batches:
            if left is None:
                yield batch
                continue
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
            if left == 0:
                return


def _json(batch: pa.RecordBatch) -> int:
    for row in rows_of(batch):
        print_json_line(row)
    return int(batch.num_rows)


def _table(batches: Generator[pa.RecordBatch, None, None], schema: pa.Schema, title: str) -> int:
    """All rows that fit a screen to be scrolled; says so when there are more."""
    shown: list[list[object]] = []
    more = False
    for batch in batches:
        rows = list(rows_of(batch.slice(0, TABLE_ROWS_MAX - len(shown))))
        shown.extend([row[name] for name in schema.names] for row in rows)
        if len(rows) < batch.num_rows:
            more = True
            break
    # What reads may be drawing a bar: that ends before the table begins.
    batches.close()
    caption = (
        counted(len(shown), "row") if not more else f"the first {len(shown):,} rows; for all of them choose --format"
    )
    print_table(schema.names, shown, title=title, caption=caption)
    return len(shown)


@contextlib.contextmanager
def _sink(output: Path | None) -> Iterator[BinaryIO]:
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with _made(output) as file:
        yield file


def _made(output: Path) -> BinaryIO:
    """The file of that name, empty. Raises InvalidArgument."""
    try:
        return output.open("wb")
    except OSError as error:
        raise InvalidArgument(
            "this file cannot be written", hint="name one in a folder that is there", file=output, why=error.strerror
        ) from error


@contextlib.contextmanager
def _writer(file_format: str, sink: BinaryIO, schema: pa.Schema) -> Iterator[Callable[[pa.RecordBatch], None]]:
    if file_format == "parquet":
        from pyarrow import parquet

        with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
            yield writer.write_batch
    elif file_format == "arrow":
        with pa.ipc.new_stream(sink, schema) as writer:  # type: ignore[arg-type]  # narrower than Arrow is
            yield writer.write_batch
    else:
        from pyarrow import csv

        options = csv.WriteOptions(delimiter="\t" if file_format == "tsv" else ",")
        with csv.CSVWriter(sink, schema, write_options=options) as writer:
            yield writer.write_batch
