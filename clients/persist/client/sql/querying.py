"""Queries: bound to the names of an environment, read at one time of one timeline, run on DuckDB.

Source: collections: queries. Every time comes from ``client.collections.reading``, as for every other door.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import pyarrow as pa

from persist.client.collections.environment import Environment
from persist.client.collections.reading.choosing import AskedTime, AtOneTime
from persist.client.collections.reading.explaining import Explanation
from persist.client.collections.reading.frozen import Overlaid
from persist.client.shard.read.snapshot import Snapshot
from persist.client.sql.bind import large
from persist.client.sql.bind.binding import BoundQuery, BoundRelation
from persist.client.sql.bind.spark import spark_text
from persist.client.sql.errors import SqlError
from persist.client.sql.parse.statements import Parsed, Select
from persist.client.sql.run.engine import Answer, Engine, Relation, named
from persist.client.sql.run.port import Runner
from persist.client.sql.run.relations import Rows, Streamed
from persist.client.sql.run.runner import Gathered, PlannedQuery, PlannedRows
from persist.client.sql.system import CatalogNames, system_collection, system_rows
from persist.client.sql.transacting.meant import Meant
from persist.client.sql.transacting.pending import Pending
from persist.client.sql.variables import DUCKDB, Variables
from persist.core.catalog.ddl.described import ROLE
from persist.core.catalog.ddl.resolve import unknown
from persist.core.catalog.ddl.statements import Statement
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import Uninitialized, UnknownObject
from persist.core.catalog.values import Id
from persist.core.data.predicate import Predicate
from persist.core.data.schema import DIFF
from persist.core.ids import ShardId
from persist.core.time.isolation import Isolation
from persist.core.time.timeline import EPOCH_MILLISECONDS
from persist.extras import extra
from persist.retry.deadline import Deadline

with extra("sql"):
    from sqlglot import exp

T = TypeVar("T")

MARGIN: Final = 0.1
MARGIN_SECONDS_MAX: Final = 1.0


class Queries:
    """Runs the queries of one session."""

    def __init__(self, environment: Environment, variables: Variables, runner: Runner | None = None) -> None:
        """``runner``: the engine besides DuckDB."""
        self.access = environment.access
        self.environment = environment
        self.variables = variables
        self._runner = runner
        self.readers = environment.reads.readers
        self.runtime = environment.access.client.location.runtime
        self._engine = Engine(variables.limits)
        self._ends: Deadline | None = None
        self.touched: set[ShardId] = set()
        """What the statement read, or is to change, so far."""

    def begin(self) -> None:
        """Another statement begins, and its time."""
        timeout = self.variables.timeout
        self.touched.clear()
        self._ends = None if timeout is None else Deadline(self.runtime, timeout)

    @property
    def patience(self) -> float | None:
        """Seconds that what the statement reads is waited for, within its time; None: as the settings have it.

        A little less than is left: the error of the read names what it waited for, that of the statement cannot.
        """
        if self._ends is None:
            return self.variables.timeout
        left = self._ends.remaining()
        return left - min(left * MARGIN, MARGIN_SECONDS_MAX)

    @property
    def engine(self) -> Engine:
        """DuckDB within the limits of the session."""
        limits = self.variables.limits
        if self._engine.limits != limits:
            self._engine = Engine(limits)
        return self._engine

    async def names(self, *, strict: bool = False) -> CatalogView | None:
        """The catalog; None where the environment does not exist yet. Raises UnknownObject: no such role."""
        role = self.variables.get("role")
        try:
            view = await self.environment.strict_view() if strict else self.environment.view
            view.role(role)
            return view
        except Uninitialized:
            if not strict:
                return await self.names(strict=True)
            if role == ROLE:
                return None
            raise unknown("role", role) from None
        except UnknownObject:
            if strict:
                raise
            return await self.names(strict=True)

    async def parsed(self, text: str, params: object = None) -> list[Parsed]:
        """The statements of a text. Raises as ``parse``."""
        return await large.parsed(text, params, self.runtime.now_ms(), self.runtime.offload)

    async def bound(
        self, query: exp.Expr, meant: Meant | None = None, *, definite: bool = False
    ) -> tuple[BoundQuery, CatalogView | None]:
        """A query with what its names mean, looked up once more if one is unknown. Raises as ``bind``.

        ``meant``: what they meant in its transaction so far. Raises SqlConflict where that is something else by now.

        SUBTLE: what was renamed before the query came must not answer under its former name. So where an answer has in
        it whatever had returned, so do its names.
        """
        is_strict = self.variables.isolation is Isolation.STRICT_SERIALIZABLE
        names = await self.names(strict=is_strict and query.find(exp.Table) is not None)
        try:
            return await self._bound(query, names, meant, definite), names
        except UnknownObject:
            names = await self.names(strict=True)
            return await self._bound(query, names, meant, definite), names

    async def _bound(
        self, query: exp.Expr, names: CatalogView | None, meant: Meant | None, definite: bool
    ) -> BoundQuery:
        looking = (meant or Meant()).looking(CatalogNames(names))
        bound = await large.bound(query, looking, self.variables.session, self.runtime.offload, definite=definite)
        looking.keep()
        return bound

    async def said(self, bound: BoundQuery, ts: int) -> str:
        """A query as DuckDB has it, read at a time. Raises as ``BoundQuery.sql``."""
        return await large.said(bound, ts, named, self.runtime.offload)

    async def defining(
        self, query: exp.Expr, before: Sequence[Statement] = (), *, is_view: bool = False
    ) -> tuple[BoundQuery, tuple[bytes, ...], bool]:
        """The query of a definition; the meanings of what it reads, which are empty of what the definitions ``before``
        it are still to make; and whether there is any of those. Raises as ``bind``.
        """
        session = self.variables.session
        names = Pending(await self.names(strict=True), before, session)
        bound = await large.bound(query, names, session, self.runtime.offload, definite=True, is_view=is_view)
        meant = tuple(b"" if names.made(each) else each.meaning for each in bound.reads)
        return bound, meant, any(map(names.made, bound.reads))

    @asynccontextmanager
    async def answer(self, select: Select) -> AsyncIterator[tuple[Answer | Gathered, int]]:
        """The rows of a query, as they are found, and the time they are of.

        Raises as ``bind``, ``Readers.at_one_time`` and ``Engine.query``; of another runner as ``spark_text`` and
        ``Runner.run``, and its rows come once all are there.
        """
        if (runner := self.runner) is not None:
            query = await self.planned(select, self.asked(select))
            try:
                yield Gathered(await runner.run(query)), query.ts
            finally:
                await query.release()
            return
        bound, names = await self.bound(select.query)
        async with self.reading(bound, names, self.asked(select)) as (found, ts):
            relations: dict[str, Relation] = await self.relations(bound, found, names, streamed, Rows)
            async with self.engine.query(await self.said(bound, ts), relations) as answer:
                yield answer, ts

    @property
    def runner(self) -> Runner | None:
        """The engine that runs queries by themselves; None: DuckDB. Raises SqlError: it is not there."""
        if self.variables.runner == DUCKDB:
            return None
        if self._runner is None or self._runner.name != self.variables.runner:
            raise SqlError(
                "this session has no such engine",
                hint="persist sql --runner spark; runner=pyspark_persist.SparkRunner(spark); or SET runner = 'duckdb'",
                runner=self.variables.runner,
            )
        return self._runner

    async def planned(self, select: Select, asked: AskedTime) -> PlannedQuery:
        """A query for an engine elsewhere, whose relations are held at one time until it is released.

        All but the run is as of ``answer``. Raises as that, and SqlNotSupported before anything is read.
        """
        bound, names = await self.bound(select.query)
        schema = await self.schema(bound)
        await self.runtime.offload(spark_text, bound, 0)
        async with contextlib.AsyncExitStack() as held:
            found, ts = await held.enter_async_context(self.reading(bound, names, asked))
            relations = await self.relations(bound, found, names, planned_rows, planned_table)
            text = await self.runtime.offload(spark_text, bound, ts)
            kept = held.pop_all()
        explanation = None if found is None else found.explanation
        return PlannedQuery(text, schema, ts, relations, explanation, kept.aclose)

    def asked(self, select: Select) -> AskedTime:
        """What a query of this session asks of its time."""
        return AskedTime(as_of=select.as_of, isolation=self.variables.isolation)

    @asynccontextmanager
    async def reading(
        self, bound: BoundQuery, names: CatalogView | None, asked: AskedTime
    ) -> AsyncIterator[tuple[AtOneTime | None, int]]:
        """What a query reads, held at one time. None: it reads nothing that is stored."""
        roots = [each for each in bound.reads if system_collection(each) is None]
        if not roots:
            yield None, await self.now(bound, asked)
            return
        assert names is not None
        async with self.readers.reading(names, roots, asked, timeout=self.patience) as found:
            self.touch(found)
            yield found, found.ts

    def touch(self, found: AtOneTime) -> None:
        """The statement reads these."""
        for held in found.held.values():
            every = (held.described, held.stands_for, *held.made_of)
            self.touched |= {each.data for each in every if each.data is not None}

    async def explanation(self, select: Select) -> Explanation:
        """The time a query would be read at now, and why. Raises as ``answer``."""
        bound, names = await self.bound(select.query)
        roots = [each for each in bound.reads if system_collection(each) is None]
        if not roots or names is None:
            raise SqlError("this reads nothing that has a time", hint="name a table, source or view")
        return await self.readers.explain(names, roots, self.asked(select), timeout=self.variables.timeout)

    async def schema(self, bound: BoundQuery) -> pa.Schema:
        """The columns of a query. Raises SqlError: DuckDB does not understand it."""
        empty = {name: Rows(arrow(each, None).empty_table()) for name, each in bound.relations.items()}
        return await self.engine.schema(await self.said(bound, 0), empty)

    async def plan(self, select: Select) -> str:
        """How the engine would run a query."""
        bound, _ = await self.bound(select.query)
        none = {name: arrow(each, each.columns).empty_table() for name, each in bound.relations.items()}
        if (runner := self.runner) is not None:
            text = await self.runtime.offload(spark_text, bound, 0)
            inputs = {name: planned_table(each) for name, each in none.items()}
            lines = [await runner.plan(PlannedQuery(text, await self.schema(bound), 0, inputs))]
        else:
            empty = {name: Rows(each) for name, each in none.items()}
            lines = [await self.engine.plan(await self.said(bound, 0), empty)]
        for name, each in bound.relations.items():
            columns = "all columns" if each.columns is None else ", ".join(each.columns)
            rows = " and ".join(f"{one.column} {one.op} {one.value!r}" for one in each.conditions)
            lines.append(f"{name}: {each.described.name} ({columns})" + (f" where {rows}" if rows else ""))
        return "\n".join(lines)

    async def relations(
        self,
        bound: BoundQuery,
        found: AtOneTime | None,
        names: CatalogView | None,
        stored: Callable[[BoundRelation, Snapshot | Overlaid], T],
        of_table: Callable[[pa.Table], T],
    ) -> dict[str, T]:
        """The inputs of a query: what ``stored`` makes of a snapshot, and ``of_table`` of the system's rows."""
        snapshots: Mapping[Id, Snapshot | Overlaid] = {} if found is None else found.snapshots
        made: dict[str, T] = {}
        for name, each in bound.relations.items():
            system = system_collection(each.described)
            if system is not None:
                rows = await system_rows(system, self.environment, names, self.variables.session.role)
                made[name] = of_table(rows.select(arrow(each, each.columns).names))
            else:
                made[name] = stored(each, snapshots[each.described.id])
        return made

    async def now(self, bound: BoundQuery, asked: AskedTime) -> int:
        """The time of a query that reads nothing which is stored: of the clocks' timeline."""
        if asked.as_of is not None:
            return asked.as_of.time
        if not bound.asks_time:
            return 0
        return await (await self.access.oracle_of(EPOCH_MILLISECONDS)).read_ts()


def streamed(relation: BoundRelation, snapshot: Snapshot | Overlaid) -> Streamed:
    """A collection at a time, with the columns and rows of it that are needed."""
    return Streamed(*columns_read(relation, snapshot))


def planned_rows(relation: BoundRelation, snapshot: Snapshot | Overlaid) -> PlannedRows:
    """As ``streamed``, for another engine."""
    kept, wanted, where = _needed(relation, snapshot)
    if isinstance(snapshot, Overlaid):
        rows = snapshot.table(wanted, where)
        return PlannedRows(rows.schema, rows, has_diffs=True)
    return PlannedRows(kept, snapshot, where)


def planned_table(table: pa.Table) -> PlannedRows:
    """Rows in memory, for another engine."""
    return PlannedRows(table.schema, table)


def columns_read(
    relation: BoundRelation, snapshot: Snapshot | Overlaid
) -> tuple[pa.Schema, Callable[[], AsyncGenerator[pa.RecordBatch, None]]]:
    """The columns of a collection that are needed, and what opens the rows that are, each with a diff."""
    kept, wanted, where = _needed(relation, snapshot)
    return kept, lambda: snapshot.to_batches(wanted, where)


def _needed(relation: BoundRelation, snapshot: Snapshot | Overlaid) -> tuple[pa.Schema, list[str], Predicate | None]:
    wanted = list(arrow(relation, relation.columns).names)
    where = Predicate(relation.conditions) if relation.conditions else None
    kept = pa.schema([field for field in snapshot.output(wanted) if field.name != DIFF.name])
    return kept, wanted, where


def arrow(relation: BoundRelation, columns: tuple[str, ...] | None) -> pa.Schema:
    """The columns of a relation: these, or all."""
    schema = relation.schema
    fields = {field.name: field for field in [*schema.key, *schema.val]}
    return pa.schema([fields[name] for name in (columns or fields)])
