"""Queries that another engine runs: what it is given, which is all checked and held, and what it gives back.

Names, privileges, the timeline, the time and the leases are those of every query (``querying.Queries``); an engine
reads nothing but the pieces here, which are of that one time. No engine is known here. Source: collections: queries.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from persist.client.collections.reading.explaining import Explanation
from persist.client.shard.handles import Stays
from persist.client.shard.read.snapshot import Snapshot
from persist.client.shard.read.split import Split
from persist.client.shard.write.prepared import BatchSpec
from persist.client.sql.run.relations import repeated
from persist.core.data.predicate import Predicate
from persist.core.data.schema import DIFF, Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows of a relation, for any process that reaches the store. Picklable, and without data but small rows.

    ``has_diffs``: each row comes once, with how often it is there; else it comes so often. Of a ``split`` or a
    ``table``. Who planned the query keeps what it reads until it was read.
    """

    schema: pa.Schema
    split: Split | None = None
    table: pa.Table | None = None
    has_diffs: bool = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, as they are decoded; blocking. Raises SqlFailed (a row is there less than never), LocationError."""
        if self.split is None:
            yield from [] if self.table is None else self.table.to_batches()
            return
        for batch in self.split.read([name for name in self.schema.names if name != DIFF.name]):
            if batch.num_rows:
                yield batch.select(self.schema.names) if self.has_diffs else repeated(batch, self.schema)


class PlannedRows:
    """Rows of a collection at the time of a query: the columns and rows of it that are needed."""

    def __init__(
        self,
        schema: pa.Schema,
        rows: Snapshot | pa.Table,
        where: Predicate | None = None,
        *,
        has_diffs: bool = False,
    ) -> None:
        """``schema``: the columns, with the diff where ``has_diffs``."""
        self.schema = schema
        self._rows = rows
        self._where = where
        self._has_diffs = has_diffs

    @property
    def encoded_bytes(self) -> int:
        """About how many bytes are read, at most. No RPC."""
        return self._rows.nbytes if isinstance(self._rows, pa.Table) else self._rows.encoded_bytes

    def pieces(self, n: int) -> list[Piece]:
        """At most ``n`` pieces of disjoint key ranges, about equal in bytes. No RPC. Raises LeaseExpired."""
        if isinstance(self._rows, pa.Table):
            return [Piece(schema=self.schema, table=self._rows, has_diffs=self._has_diffs)]
        splits = self._rows.splits(n, self._where)
        return [Piece(schema=self.schema, split=each, has_diffs=self._has_diffs) for each in splits]


async def _nothing() -> None:
    """Nothing is held."""


class PlannedQuery(Stays):
    """A query in the words of an engine, over relations by the names that it has there. Release it."""

    def __init__(
        self,
        text: str,
        schema: pa.Schema,
        ts: int,
        relations: Mapping[str, PlannedRows],
        explanation: Explanation | None = None,
        release: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self._text = text
        self._schema = schema
        self._ts = ts
        self._relations = relations
        self._explanation = explanation
        self._release = release

    @property
    def text(self) -> str:
        """The query, as the engine has it."""
        return self._text

    @property
    def schema(self) -> pa.Schema:
        """The columns of the answer, which is of these types whatever engine gives it."""
        return self._schema

    @property
    def ts(self) -> int:
        """The time it is read at."""
        return self._ts

    @property
    def relations(self) -> Mapping[str, PlannedRows]:
        """What it reads, by the names that the text has for it."""
        return self._relations

    @property
    def explanation(self) -> Explanation | None:
        """Why it is this time; None: it reads nothing that has a time."""
        return self._explanation

    async def release(self) -> None:
        """What it reads is held no longer. Releasing again does nothing."""
        await self._release()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRefresh:
    """One refresh of a materialized view: its ``query`` at a time, and what it has, with diffs (``current``; None:
    nothing). ``spec``: by which any process writes parts of it. ``schema``: of the view, whose columns are those of the
    query by their places.
    """

    query: PlannedQuery
    current: PlannedRows | None
    schema: Schema
    spec: BatchSpec = field(repr=False)


class Gathered:
    """The rows of an answer that is there as a whole: as ``engine.Answer``."""

    def __init__(self, table: pa.Table) -> None:
        self.schema = table.schema
        self.notice = ""
        """What there is to say besides."""
        self._table = table

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows."""
        for batch in self._table.to_batches():
            yield batch

    async def to_arrow(self) -> pa.Table:
        """All rows."""
        return self._table
