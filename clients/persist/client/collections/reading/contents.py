"""Contents: the rows of a collection at one time, for all that take rows.

Source: collections: readers; the Arrow PyCapsule interface.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from persist.client.collections.reading.explaining import Explanation
from persist.client.collections.reading.in_memory import Computed
from persist.client.shard.handles import Stays
from persist.client.shard.read.snapshot import Snapshot
from persist.client.shard.read.split import Split
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.data.predicate import Predicate, PredicateLike
from persist.core.data.schema import DIFF
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.time.timeline import Timeline
from persist.errors import InvalidArgument
from persist.extras import extra
from persist.typed import Record

if TYPE_CHECKING:
    import pandas
    import polars


class Contents(Stays):
    """The rows of one collection at ``ts``: its columns, and diff, how often a row is there. The same for ever.

    Nothing is read yet. It is held until it is released, or dropped. ``columns`` are these, in this order, and diff;
    ``where`` is a condition such as ``"id >= 5 and name = 'x'"`` or ``[("id", ">=", 5)]``, beside the one it was read
    with; parts that cannot hold such rows are not fetched.
    """

    def __init__(
        self,
        name: QualifiedName,
        snapshot: Snapshot | Computed,
        explanation: Explanation,
        release: Callable[[], Awaitable[None]],
        *,
        shard: ShardId | None = None,
        columns: Sequence[str] | None = None,
        where: PredicateLike = None,
    ) -> None:
        """Raises InvalidArgument: no such column."""
        self._shard = shard
        self._name = name
        self._snapshot = snapshot
        self._explanation = explanation
        self._release = release
        self._columns = None if columns is None else tuple(columns)
        self._where = Predicate() if where is None else Predicate.parse(where)
        self._where.check(snapshot.schema)
        snapshot.output(columns)

    @property
    def name(self) -> str:
        """The full name of the collection."""
        return str(self._name)

    @property
    def shard(self) -> ShardId | None:
        """Where the rows are; None: the system computes them. Of an index that answers for another item, its own."""
        return self._shard

    @property
    def ts(self) -> int:
        """The time of the rows."""
        return self._explanation.query_ts

    @property
    def timeline(self) -> Timeline | None:
        """What the time means."""
        return self._explanation.timeline

    @property
    def explanation(self) -> Explanation:
        """Why it is this time: what EXPLAIN TIMESTAMP prints."""
        return self._explanation

    @property
    def upper(self) -> Antichain:
        """How far the collection was complete when this was planned."""
        return self._snapshot.upper

    @property
    def rows_estimate(self) -> int:
        """Updates in the parts to be read: at least as many as there are rows. No RPC."""
        return self._snapshot.rows

    def output(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """The columns of the rows when reading ``columns``. Raises InvalidArgument for unknown ones. No RPC."""
        return self._snapshot.output(self._chosen(columns))

    async def to_arrow(self, columns: Sequence[str] | None = None, where: PredicateLike = None) -> pa.Table:
        """All rows as one table, in memory. Raises InvalidArgument, CorruptData, LeaseExpired, LocationError."""
        return await self._snapshot.to_arrow(self._chosen(columns), self._both(where))

    def to_batches(
        self, columns: Sequence[str] | None = None, where: PredicateLike = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """The rows, at most 65,536 per batch, as they are decoded. Raises as ``to_arrow``."""
        return self._snapshot.to_batches(self._chosen(columns), self._both(where))

    async def to_pandas(self, columns: Sequence[str] | None = None, where: PredicateLike = None) -> "pandas.DataFrame":
        """All rows as a pandas DataFrame; needs pandas. Raises as ``to_arrow``, and MissingExtra."""
        found = await self.to_arrow(columns, where)
        with extra("pandas"):
            return found.to_pandas()

    async def to_pylist(self, columns: Sequence[str] | None = None, where: PredicateLike = None) -> list[Record]:
        """All rows as dicts: for small reads. Raises as ``to_arrow``."""
        found: list[Record] = (await self.to_arrow(columns, where)).to_pylist()
        return found

    async def to_polars(self, columns: Sequence[str] | None = None, where: PredicateLike = None) -> "polars.DataFrame":
        """All rows as a polars DataFrame; needs polars. Raises as ``to_arrow``, and MissingExtra."""
        with extra("polars"):
            import polars

        return polars.from_arrow(await self.to_arrow(columns, where))

    def scan_polars(self) -> "polars.LazyFrame":
        """A polars LazyFrame of the rows, which reads the columns and the parts that a query needs, as it runs.

        Keep this object until it has run. Needs polars. Raises MissingExtra; polars raises what reading raises.
        """
        with extra("polars"):
            from persist.client.collections.reading.polars_scan import scan

        return scan(self.output(), self.reader)

    def to_duckdb(
        self,
        connection: Any,
        columns: Sequence[str] | None = None,
        where: PredicateLike = None,
    ) -> Any:
        """A relation of a DuckDB connection over the rows: columns and conditions given here are not read and sent.

        It may be used once; DuckDB's queries over this object by name (``FROM contents``) read anew each time. Raises
        as ``reader``.
        """
        return connection.from_arrow(self.reader(columns, where))

    def reader(self, columns: Sequence[str] | None = None, where: PredicateLike = None) -> pa.RecordBatchReader:
        """The rows as a blocking stream, read in the thread that asks. Raises as ``to_arrow``."""
        chosen = self._chosen(columns)
        if isinstance(self._snapshot, Computed):
            return self._snapshot.table(chosen, self._both(where)).to_reader()
        pieces = self.splits(1, where)
        if not pieces:
            return pa.RecordBatchReader.from_batches(self._snapshot.output(chosen), [])
        return pieces[0].read(chosen)

    def splits(self, n: int, where: PredicateLike = None) -> list[Split]:
        """At most ``n`` reads of disjoint key ranges, about equal in bytes, for any process that reaches the store.

        Keep this object until they are read. No RPC. Raises InvalidArgument (also of
        rows that are computed), LeaseExpired, UsageError (released).
        """
        if isinstance(self._snapshot, Computed):
            raise InvalidArgument("what is computed has no parts", hint="read it as a whole", name=self.name)
        return self._snapshot.splits(n, self._both(where))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """All rows, as they are decoded, for libraries that take Arrow streams: DuckDB, Polars, pyarrow, pandas.

        Each asking reads anew, in the thread that asks. Raises as ``reader``. Source: the Arrow PyCapsule interface.
        """
        return self.reader().__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]  # untyped stubs

    async def release(self) -> None:
        """Release what is held: nothing more can be read. Releasing again does nothing."""
        await self._release()

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.output())
        return (
            f"<Contents of {self.name} at {self.ts} of {self.timeline}: {columns}; at most {self.rows_estimate:,} rows>"
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    def _chosen(self, columns: Sequence[str] | None) -> list[str] | None:
        if columns is not None:
            return list(columns)
        return None if self._columns is None else [name for name in self._columns if name != DIFF.name]

    def _both(self, where: PredicateLike) -> Predicate | None:
        more = Predicate() if where is None else Predicate.parse(where)
        conditions = (*self._where.conditions, *more.conditions)
        return Predicate(conditions) if conditions else None
