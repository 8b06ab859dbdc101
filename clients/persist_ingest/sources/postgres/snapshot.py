"""The rows tables had when the replication slot was made, read under its exported snapshot.

ADBC reads columns as they are where that gives what changes give, and as text where it would not; without ADBC all of
it is COPY in text form. Either way values come out as the changes' do. Source: sources.md section 1, snapshot.
"""

import importlib.util
import struct
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from persist import Schema
from persist.arrow import ArrowArray, ArrowField
from persist_ingest.sources.port import BadRows, Changes, SourceFailure
from persist_ingest.sources.postgres import session as sessions
from persist_ingest.sources.postgres import values
from persist_ingest.sources.postgres.catalog import literal, quoted
from persist_ingest.sources.postgres.column_types import ColumnType
from persist_ingest.sources.postgres.decoding import plain
from persist_ingest.sources.postgres.definition import PostgresDefinition, PublishedTable
from persist_ingest.sources.postgres.pgoutput import Chunk
from persist_ingest.sources.postgres.session import SETTINGS, UpstreamConnection, classify
from persist_ingest.sources.postgres.values import Ints

TASK_BYTES: Final = 16 << 20
ROWS: Final = 65_536
"""Rows of one event at most."""
_PIECES: Final = 20_000
_PIECES_BYTES: Final = 16 << 20
_NULL: Final = 0xFFFFFFFF
_HEADER: Final = struct.Struct(">11sII")
_PAGES: Final = """
SELECT pg_relation_size(%(table)s::int8::oid) / current_setting('block_size')::int8, current_setting('block_size')::int
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTask:
    """Pages ``[first, last)`` of a table, to its end when ``last`` is None.

    ``where``: and of those only these rows, in SQL; ``whole``: with all that inherits from the table.
    """

    dsn: str
    snapshot: str
    table: PublishedTable
    schema: Schema
    offset: int
    first: int
    last: int | None
    weight: int
    where: str = ""
    whole: bool = False

    @property
    def ordered(self) -> bool:
        return False

    def read(self) -> Iterator[Changes]:
        for rows in self.rows():
            yield self._changes(rows)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows, with the columns of the schema. Raises BadRows, SourceFailure, LocationError."""
        fields = pa.schema([*self.schema.key, *self.schema.val])
        types = {column.called: column.type for column in self.table.columns}
        kinds = [types[field.name] for field in self._there]
        with closing(self._by_adbc(kinds) if has_adbc() else self._by_copy(kinds)) as batches:
            for columns in batches:
                found = dict(zip((field.name for field in self._there), columns, strict=True))
                count = len(columns[0])
                arrays = [found[field.name] if field.name in found else pa.nulls(count, field.type) for field in fields]
                rows = pa.RecordBatch.from_arrays(arrays, schema=fields)
                _check_keys(rows, self.table.export)
                for begin in range(0, rows.num_rows, ROWS):
                    yield rows.slice(begin, ROWS)

    @property
    def _there(self) -> list[ArrowField]:
        """The fields that the table has columns for; others it had once."""
        names = {column.called for column in self.table.columns}
        return [field for field in (*self.schema.key, *self.schema.val) if field.name in names]

    @property
    def _columns(self) -> list[str]:
        """Those columns, as SQL names them."""
        names = {column.called: column.name for column in self.table.columns}
        return [quoted(names[field.name]) for field in self._there]

    def _changes(self, rows: pa.RecordBatch) -> Changes:
        count = rows.num_rows
        offsets = plain(np.full(count, self.offset, np.uint64), pa.uint64())
        return Changes(
            export=self.table.export, rows=rows, offsets=offsets, diffs=plain(np.ones(count, np.int64), pa.int64())
        )

    def _query(self, expressions: list[str]) -> str:
        limits = [f"ctid >= '({self.first},0)'"] if self.first else []
        limits += [f"ctid < '({self.last},0)'"] if self.last is not None else []
        limits += [f"({each})" for each in (self.table.row_filter, self.where) if each]
        where = f" WHERE {' AND '.join(limits)}" if limits else ""
        return f"SELECT {', '.join(expressions)} FROM {self._only}{self._name}{where}"

    def _begin(self) -> tuple[str, ...]:
        return (
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
            f"SET TRANSACTION SNAPSHOT {literal(self.snapshot)}",
            *sessions.ended_when_still(),
            f"LOCK TABLE {self._only}{self._name} IN ACCESS SHARE MODE",
        )

    @property
    def _only(self) -> str:
        return "" if self.whole else "ONLY "

    @property
    def _name(self) -> str:
        return quoted(self.table.schema, self.table.name)

    def _check_rows(self, found: tuple[int, ...]) -> None:
        """A table that was truncated or rewritten looks empty to older snapshots, hence to this one."""
        if found != (self.table.oid, self.table.file):
            raise SourceFailure(
                "the table was truncated, rewritten or exchanged before its snapshot was read",
                hint="make the source once more",
                export=self.table.export,
            )

    def _by_adbc(self, kinds: list[ColumnType]) -> Generator[list[ArrowArray], None, None]:
        from adbc_driver_manager import Error
        from adbc_driver_postgresql import dbapi  # type: ignore[import-untyped]  # it ships none

        names = self._columns
        chosen = [name if kind.native else _shown(name) for name, kind in zip(names, kinds, strict=True)]
        try:
            with (
                closing(dbapi.connect(self.dsn, autocommit=True)) as connection,
                closing(connection.cursor()) as cursor,
            ):
                for setting in SETTINGS:
                    cursor.execute(setting)
                connection.adbc_connection.set_autocommit(False)
                for statement in self._begin():
                    cursor.execute(statement)
                cursor.execute(where_rows_are(self.table))
                self._check_rows(tuple(cursor.fetchone()))
                cursor.execute(self._query(chosen))
                for batch in _as_they_come(cursor.fetch_record_batch()):
                    yield self._named([partial(values.normal, batch.column(at), kind) for at, kind in enumerate(kinds)])
        except Error as error:
            raise classify(error.sqlstate, str(error).splitlines()[0]) from None

    def _by_copy(self, kinds: list[ColumnType]) -> Generator[list[ArrowArray], None, None]:
        names = self._columns
        shown = [_shown(name) for name in names]
        with UpstreamConnection(self.dsn) as session:
            for statement in ("BEGIN", *self._begin()):
                session.run(statement)
            self._check_rows(session.row(where_rows_are(self.table)))
            pieces = session.copied(f"COPY ({self._query(shown)}) TO STDOUT (FORMAT binary)")
            for chunk in _chunks(pieces):
                yield self._named(_columns(chunk, kinds))

    def _named(self, columns: list[Callable[[], ArrowArray]]) -> list[ArrowArray]:
        """The columns, each made; a bad row is reported with where it is."""
        found = []
        for column, field in zip(columns, self._there, strict=True):
            try:
                found.append(column())
            except BadRows as error:
                details = {"export": self.table.export, "column": field.name, **error.details}
                raise BadRows(error.message, hint=error.hint, **details) from None
        return found


def _as_they_come(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """SUBTLE: amid rows no error of ADBC's is raised but pyarrow's, which has no sqlstate."""
    try:
        yield from reader
    except OSError as error:
        raise classify(None, str(error).splitlines()[0]) from None


def _shown(name: str) -> str:
    """What a type's output function says, as in changes; a cast to text says something else for some."""
    return f"CASE WHEN {name} IS NULL THEN NULL ELSE format('%s', {name}) END"


def where_rows_are(table: PublishedTable) -> str:
    """SQL for which table has the name, and the number of its file."""
    named = f"CAST({literal(quoted(table.schema, table.name))} AS regclass)"
    return f"SELECT t::oid::int8, coalesce(pg_relation_filenode(t), 0)::int8 FROM {named} t"


def has_adbc() -> bool:
    """The faster way is installed (extra ``postgres-source``)."""
    return importlib.util.find_spec("adbc_driver_postgresql") is not None


def page_ranges(pages: int, page_bytes: int, tasks: int, task_bytes: int) -> list[tuple[int, int | None, int]]:
    """First page, page behind the last (None: to the end) and bytes of about ``tasks`` parts of a table."""
    parts = max(1, min(tasks, pages * page_bytes // task_bytes))
    cuts = [pages * part // parts for part in range(parts)]
    following: list[int | None] = [*cuts[1:], None]
    return [
        (begin, end, ((pages if end is None else end) - begin) * page_bytes)
        for begin, end in zip(cuts, following, strict=True)
    ]


def _check_keys(rows: pa.RecordBatch, export: str) -> None:
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if column.null_count and not field.nullable:
            raise SourceFailure("a key column is null", hint="snapshot it again", export=export, column=field.name)


def _chunks(pieces: Iterator[bytes]) -> Iterator[Chunk]:
    """Rows of a binary COPY: each a count of columns, then lengths and values. Header and trailer are dropped."""
    kept: list[bytes] = []
    size = 0
    for number, piece in enumerate(pieces):
        row = piece[_HEADER.size :] if number == 0 else piece
        if len(row) > 2:
            kept.append(row)
            size += len(row)
        if len(kept) == _PIECES or size >= _PIECES_BYTES:
            yield _chunk(kept)
            kept, size = [], 0
    if kept:
        yield _chunk(kept)


def _chunk(kept: list[bytes]) -> Chunk:
    lengths = np.fromiter(map(len, kept), np.int64, len(kept))
    return Chunk(np.frombuffer(b"".join(kept), np.uint8), lengths)


def _columns(chunk: Chunk, kinds: list[ColumnType]) -> list[Callable[[], ArrowArray]]:
    at: Ints = chunk.starts + 2
    found: list[Callable[[], ArrowArray]] = []
    for kind in kinds:
        lengths = chunk.words(at)
        valid = lengths != _NULL
        lengths = np.where(valid, lengths, 0)
        found.append(partial(values.parse, kind, chunk.data, at + 4, lengths, valid))
        at = at + 4 + lengths
    return found


def _stored(table: PublishedTable) -> list[PublishedTable]:
    """Where the rows of a table are: in itself, or in its partitions."""
    if table.form is None or not table.partitioned:
        return [table]
    return [
        replace(table, schema=part.schema, name=part.name, oid=part.oid, file=part.file)
        for part in table.form.parts
        if part.kind == "r"
    ]


def snapshot_tasks(
    session: UpstreamConnection,
    definition: PostgresDefinition,
    schemas: Mapping[str, Schema],
    snapshot: str,
    point: int,
    tasks: int,
) -> list[SnapshotTask]:
    """About so many tasks that read what an exported snapshot has of these tables, from before ``point``."""
    tables = [each for table in definition.tables for each in _stored(table)]
    sizes = {table.oid: session.row(_PAGES, {"table": table.oid}) for table in tables}
    whole = sum(pages * page_bytes for pages, page_bytes in sizes.values()) or 1
    planned = []
    for table in tables:
        pages, page_bytes = sizes[table.oid]
        share = -(-tasks * pages * page_bytes // whole)
        for first, last, weight in page_ranges(pages, page_bytes, share, TASK_BYTES):
            planned.append(
                SnapshotTask(
                    dsn=definition.dsn,
                    snapshot=snapshot,
                    table=table,
                    schema=schemas[table.export],
                    offset=point - 1,
                    first=first,
                    last=last,
                    weight=weight,
                )
            )
    return planned
