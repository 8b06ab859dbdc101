"""SUBSCRIBE and FETCH: the updates of a collection as rows, with their times.

What is followed is one stored collection, with all or some of its columns: of a query a materialized view is made, and
followed. Source: collections: cursors; design document 5.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from persist.client.collections.cursors.cursor import Cursor, open_cursor
from persist.client.collections.reading.inputs import Names
from persist.client.collections.reading.reads import Reads
from persist.client.collections.reading.subscribing import Subscription
from persist.client.shard.read.listen import Progress
from persist.client.sql.bind.followed import followed
from persist.client.sql.parse.statements import Fetch, Subscribe
from persist.client.sql.results import Result
from persist.core.catalog.ddl.resolve import places
from persist.core.catalog.ddl.statements import Acknowledge, QualifiedName
from persist.core.catalog.errors import no_environment
from persist.core.catalog.values import Id, ObjectType
from persist.core.data.schema import DIFF, TS
from persist.core.frontier import TIME_MAX
from persist.errors import NotReadable

if TYPE_CHECKING:
    from persist.client.sql.querying import Queries

PROGRESSED: Final = pa.field("progressed", pa.bool_(), nullable=False)


class Following:
    """The rows of SUBSCRIBE, as they come: ``ts``, ``progressed`` (with PROGRESS), ``diff``, and the columns.

    A row of progress says that everything before ``ts`` was given; its columns are null. Close it, or use it as a
    context manager.
    """

    def __init__(self, subscription: Subscription, schema: pa.Schema, progress: bool) -> None:
        """``open`` makes them. ``schema``: of the rows."""
        self.schema = schema
        self.notice = ""
        """What there is to say besides."""
        self._subscription = subscription
        self._progress = progress

    @classmethod
    async def open(cls, queries: "Queries", statement: Subscribe) -> Self:
        """Begin. Raises UnknownObject, SqlNotSupported (a query, not a collection), and as ``Reads.subscribe``."""
        bound, _ = await queries.bound(statement.query, definite=True)
        name, columns = followed(bound)
        as_of = statement.as_of
        subscription = await reads_of(queries).subscribe(
            name,
            as_of=as_of.time if as_of is not None and not as_of.at_least else None,
            at_least=as_of.time if as_of is not None and as_of.at_least else None,
            isolation=queries.variables.isolation,
            snapshot=statement.snapshot,
            progress=statement.progress,
            up_to=statement.up_to,
            columns=columns,
            timeout=queries.variables.timeout,
        )
        queries.touched = {each.data for each in bound.reads if each.data is not None}
        described = bound.reads[0].schema
        assert described is not None
        fields = [field for field in [*described.key, *described.val] if columns is None or field.name in columns]
        if columns is not None:
            fields.sort(key=lambda field: columns.index(field.name))
        shown = [field.with_nullable(True) for field in fields]
        told = [TS, PROGRESSED] if statement.progress else [TS]
        return cls(subscription, pa.schema([*told, DIFF, *shown]), statement.progress)

    @property
    def as_of(self) -> int:
        """The time it began at."""
        return self._subscription.as_of

    async def batches(self) -> AsyncIterator[pa.Table]:
        """Rows, as they come, until UP TO, or until it is closed. Raises what subscriptions raise."""
        async for event in self._subscription:
            if isinstance(event, Progress):
                yield self._progressed(TIME_MAX if event.upper.time is None else event.upper.time)
                continue
            rows = event.table
            if self._progress:
                rows = rows.append_column(PROGRESSED, pa.array([False] * rows.num_rows))
            yield rows.select(self.schema.names).cast(self.schema)

    async def close(self) -> None:
        """End it."""
        await self._subscription.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _progressed(self, ts: int) -> pa.Table:
        told: dict[str, object] = {TS.name: ts, PROGRESSED.name: True, DIFF.name: 0}
        return pa.Table.from_pylist([told], self.schema)


class Cursors:
    """The cursors that a session reads from, each from where it came to."""

    def __init__(self, queries: "Queries") -> None:
        self._queries = queries
        self._opened: dict[Id, Cursor] = {}

    async def fetch(self, statement: Fetch) -> Result:
        """FETCH: updates by rising ts, and the position to acknowledge, which is the result's ``ts``.

        Raises UnknownObject, InvalidArgument (no cursor), NotReadable, BelowHold, LocationError.
        """
        id, cursor = await self._cursor(statement.cursor)
        timeout = 0.0 if statement.timeout_ms is None else statement.timeout_ms / 1000
        try:
            found = await cursor.fetch(statement.count, timeout=timeout)
        except NotReadable:
            # Others acknowledged further. The next fetch, after this was raised, begins where they came to.
            del self._opened[id]
            raise
        finally:
            # SUBTLE: what is not acknowledged yet the cursor keeps. What is, by whatever session, this one must not.
            await cursor.rest()
        rows = found.updates
        rest = [name for name in rows.schema.names if name not in (TS.name, DIFF.name)]
        table = rows.select([TS.name, DIFF.name, *rest])
        return Result(
            f"FETCH {table.num_rows}",
            table,
            found.position,
            notice=f"ACKNOWLEDGE {cursor.name} UP TO {found.position} once these rows are taken over",
        )

    @contextmanager
    def returning(self) -> Iterator[None]:
        """A block whose end returns what was fetched in it. One that fails returns nothing: that is fetched again."""
        before = {id: each.position for id, each in self._opened.items()}
        try:
            yield
        except BaseException:
            for id, each in self._opened.items():
                each._go_back(before.get(id, each._begun))
            raise

    def meant(self, statement: Acknowledge) -> Acknowledge:
        """That of the cursor which was fetched from here under this name, whatever has the name by now.

        Another one would not deliver what was never fetched from it.
        """
        along = places(statement.name, self._queries.variables.session)
        names = [str(QualifiedName(statement.name.item, schema, database)) for database, schema in along]
        found = next((id for id, each in self._opened.items() if each.name in names), None)
        return statement if found is None or statement.id else replace(statement, id=str(found))

    def close(self) -> None:
        """Forget how far they came; the cursors themselves stay. Between two fetches nothing is held."""
        self._opened.clear()

    async def _cursor(self, name: QualifiedName) -> tuple[Id, Cursor]:
        """SUBTLE: by what has the name now. A cursor that was dropped and made anew begins anew."""
        reads = reads_of(self._queries)
        names = await reads.names(strict=True)
        there = {each.id for each in names.items(ObjectType.CURSOR)}
        self._opened = {id: each for id, each in self._opened.items() if id in there}
        item = names.resolve(name, reads.session)
        known = self._opened.get(item.id)
        if known is None:
            known = self._opened[item.id] = await open_cursor(reads, self._queries.environment.execute, item.name)
        else:
            reads.check_may_read(names, names.get(item.depends_on[0]))
        return item.id, known


def reads_of(queries: "Queries") -> Reads:
    """Reads by name, for the session of these queries."""

    async def names(strict: bool) -> Names:
        found = await queries.names(strict=strict)
        if found is None:
            raise no_environment()
        return found

    return Reads(queries.readers, names, queries.variables.session)
