"""The rows tables had when the replication slot was made, read under its exported snapshot.

ADBC reads columns as they are where that gives what changes give, and as text where it would not; without ADBC all of
it is COPY in text form. Either way values come out as the changes' do. Source: sources.md section 1, snapshot.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from persist import Schema
from persist.arrow import ArrowArray, ArrowField
from persist_ingest.sources.port import AlteredMeanwhile, BadRows, Changes, SourceFailure, TableAltered
from persist_ingest.sources.postgres.catalog import literal, quoted
from persist_ingest.sources.postgres.decoding import plain
from persist_ingest.sources.postgres.definition import PostgresDefinition, PublishedTable
from persist_ingest.sources.postgres.rows import Columns, Holder, has_adbc, held
from persist_ingest.sources.postgres.session import UpstreamConnection
from persist_ingest.sources.tables.definition import ANOTHER_KEY

TASK_BYTES: Final = 16 << 20
ROWS: Final = 65_536
"""Rows of one event at most."""
TASK_LOCK_SECONDS: Final = 10.0
"""How long a task waits for its table, which holds nothing of it meanwhile."""
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
        """The rows, with the columns of the schema, under the exported snapshot. Raises as ``rows_in``, and HeldUp."""
        with self.held(TASK_LOCK_SECONDS) as holder:
            yield from self.rows_in(holder)

    def rows_in(self, holder: Holder) -> Iterator[pa.RecordBatch]:
        """The rows that a session has which holds the table. Raises BadRows, SourceFailure, LocationError."""
        (found,) = holder.rows(where_rows_are(self.table))
        self._check_rows(found)
        fields = pa.schema([*self.schema.key, *self.schema.val])
        types = {column.called: column.type for column in self.table.columns}
        kinds = [types[field.name] for field in self._there]
        with closing(holder.columns(self._columns, kinds, self._source)) as groups:
            for columns in map(self._named, groups):
                named = dict(zip((field.name for field in self._there), columns, strict=True))
                count = len(columns[0])
                arrays = [named[field.name] if field.name in named else pa.nulls(count, field.type) for field in fields]
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

    @property
    def _source(self) -> str:
        limits = [f"ctid >= '({self.first},0)'"] if self.first else []
        limits += [f"ctid < '({self.last},0)'"] if self.last is not None else []
        limits += [f"({each})" for each in (self.table.row_filter, self.where) if each]
        where = f" WHERE {' AND '.join(limits)}" if limits else ""
        return f"FROM {self.name}{where}"

    @property
    def name(self) -> str:
        """The table, as SQL names it."""
        return ("" if self.whole else "ONLY ") + quoted(self.table.schema, self.table.name)

    @contextmanager
    def held(self, lock_seconds: float | None = None) -> Iterator[Holder]:
        """A session that holds the table, see ``held``. Raises TableAltered, too: it is not what it was."""
        try:
            with held(
                self.dsn, self.name, snapshot=self.snapshot, adbc=has_adbc(), lock_seconds=lock_seconds
            ) as holder:
                yield holder
        except AlteredMeanwhile as error:
            # What is read is asked for by what was known of the table: that does not change by looking again.
            raise TableAltered(
                "the table was altered, or dropped, before it was read",
                hint="snapshot this table again (persist source resnapshot), or create the source again",
                export=self.table.export,
                **error.details,
            ) from error

    def _check_rows(self, found: tuple[int, ...]) -> None:
        """A table that was truncated or rewritten looks empty to older snapshots, hence to this one."""
        if found != (self.table.oid, self.table.file):
            raise SourceFailure(
                "the table was truncated, rewritten or exchanged before its snapshot was read",
                hint="make the source once more",
                export=self.table.export,
            )

    def _named(self, columns: Columns) -> list[ArrowArray]:
        """The columns, each made; a bad row is reported with where it is."""
        found = []
        for column, field in zip(columns, self._there, strict=True):
            try:
                found.append(column())
            except BadRows as error:
                details = {"export": self.table.export, "column": field.name, **error.details}
                raise BadRows(error.message, hint=error.hint, **details) from None
        return found


def where_rows_are(table: PublishedTable) -> str:
    """SQL for which table has the name, and the number of its file."""
    named = f"CAST({literal(quoted(table.schema, table.name))} AS regclass)"
    return f"SELECT t::oid::int8, coalesce(pg_relation_filenode(t), 0)::int8 FROM {named} t"


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
            raise SourceFailure("a key column is null", hint=ANOTHER_KEY, export=export, column=field.name)


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
