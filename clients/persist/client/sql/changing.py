"""INSERT, UPDATE and DELETE, and transactions of them: what is read at one time, what is written, and the commit.

A transaction reads at the time of its first read, and sees what it wrote. It commits with nothing in between: none of
the rows that it asked for may have changed since, and no primary key may be there twice. A statement outside of BEGIN
is a transaction of its own, which begins again when another was first. Source: collections: queries.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowChunks
from persist.client.collections.reading.choosing import AskedTime, AtOneTime
from persist.client.collections.reading.inputs import Tables, stored
from persist.client.collections.reading.transaction import ReadTransaction
from persist.client.shard.read.snapshot import Snapshot
from persist.client.shard.write.inputs import with_defaults
from persist.client.sql import given as values_given
from persist.client.sql.bind.binding import TARGET, BoundQuery, BoundRelation
from persist.client.sql.bind.exact import by_meaning
from persist.client.sql.errors import Sent, SqlConflict, SqlError, SqlFailed, SqlNotSupported
from persist.client.sql.fitting import Each, fitted
from persist.client.sql.parse.literals import Literals
from persist.client.sql.parse.queries import table_of
from persist.client.sql.parse.statements import Delete, Dml, Insert, InsertRows, Select, Update
from persist.client.sql.querying import Queries, arrow, streamed
from persist.client.sql.results import Result
from persist.client.sql.run.engine import Relation
from persist.client.sql.run.relations import Rows, repeated
from persist.client.sql.system import CatalogNames, system_collection, system_rows
from persist.client.sql.transacting.doubts import OwnDoubts
from persist.client.sql.transacting.meant import Meant
from persist.client.table.rows import lacking, times, updates_of, widened
from persist.client.table.table import Table
from persist.client.table.transaction import TableTransaction, transact
from persist.client.table.unique import KeyTwice, check_keys
from persist.client.timeline.register import seconds
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import UnknownObject
from persist.core.catalog.values import Id, ObjectType
from persist.core.data.predicate import Predicate
from persist.core.data.schema import TS, Schema
from persist.core.data.update import consolidate, normalise
from persist.core.time.isolation import Isolation
from persist.core.time.read_time import AsOf
from persist.core.time.timeline import EPOCH_MILLISECONDS
from persist.errors import Indeterminate, NotYetAvailable
from persist.extras import extra
from persist.threads import computed

if TYPE_CHECKING:
    from persist.retry.deadline import Deadline

with extra("sql"):
    from sqlglot import exp

T = TypeVar("T")

CONDITIONS_MAX: Final = 16
"""A transaction that asked for rows of one table in more ways is taken to have asked for all."""
ROW: Final = "persist_row"
"""Begins the name of what says which row of its table a statement changes: of no column of that."""

_LETTERS: Final = {Insert: "a", InsertRows: "a", Update: "w", Delete: "d"}
_TAGS: Final = {Insert: "INSERT", InsertRows: "INSERT", Update: "UPDATE", Delete: "DELETE"}


@dataclass(slots=True)
class Written:
    """What a transaction does to one table: updates at time 0. ``schema``: of the updates, see ``whole``."""

    described: Described
    updates: pa.Table
    schema: Schema


@dataclass(slots=True)
class ChangingTransaction:
    """A transaction while it lasts. ``ts`` None: it has not read yet.

    ``explicit``: it was begun by BEGIN; then ``reader`` holds what it may read later, too.
    """

    isolation: Isolation
    explicit: bool = False
    ts: int | None = None
    reader: ReadTransaction | None = None
    reads: list[AtOneTime] = field(default_factory=list)
    rows: dict[Id, list[Predicate]] = field(default_factory=dict)
    """Which rows of each collection its answers depend on: those of any of these."""
    writes: dict[Id, Written] = field(default_factory=dict)
    meant: Meant = field(default_factory=Meant)

    def depend_on(self, relations: Iterable[BoundRelation]) -> None:
        """Its answers depend on the rows that these need; of many conditions, on all."""
        for each in relations:
            known = self.rows.setdefault(each.described.id, [])
            predicate = Predicate(each.conditions)
            if predicate not in known:
                known.append(predicate)
            if len(known) > CONDITIONS_MAX or not each.conditions:
                known[:] = [Predicate()]

    async def release(self) -> None:
        """Release what it reads."""
        reads, self.reads = self.reads, []
        if self.reader is not None:
            await self.reader.end()
        else:
            await asyncio.gather(*(each.release() for each in reads))


class RowChanger:
    """Runs what changes rows, for one session."""

    def __init__(self, queries: Queries, sent: Sent) -> None:
        self._queries = queries
        self._sent = sent
        self._tables = Tables(queries.access)
        self.doubts = OwnDoubts(queries.access.doubts)

    def deadline(self) -> "Deadline":
        """Of a statement that begins now."""
        return self._queries.access.client.location.attempts.deadline(self._queries.variables.timeout)

    async def alone(self, statement: Dml) -> Result:
        """A statement as a transaction of its own. Raises as ``within`` and ``commit``; NotYetAvailable (others first).

        Nothing has happened after an error, unless it is Indeterminate.
        """
        deadline = self.deadline()
        while True:
            work = ChangingTransaction(self._queries.variables.isolation)
            try:
                result = await self.within(work, statement)
                ts = await self.commit(work, deadline)
                return Result(result.tag, result.table, ts)
            except SqlConflict as error:
                if deadline.remaining() <= 0:
                    raise NotYetAvailable(
                        "others committed first each time", hint="repeat it with a longer statement_timeout"
                    ) from error
            finally:
                await work.release()

    async def select(self, work: ChangingTransaction, select: Select) -> Result:
        """A query within a transaction. Raises as ``Queries.answer``, and SqlNotSupported (AS OF)."""
        if select.as_of is not None:
            raise SqlNotSupported("a transaction reads at one time of its own", hint="AS OF outside of BEGIN … COMMIT")
        bound, names = await self._queries.bound(select.query, work.meant)
        table, ts = await self._run(work, bound, names)
        return Result(f"SELECT {table.num_rows}", table, ts)

    async def schema(self, work: ChangingTransaction | None, name: QualifiedName) -> Schema:
        """Of a table that rows are going to be put into. Raises UnknownObject, PrivilegeMissing, SqlError."""
        meant = Meant() if work is None else work.meant
        schema = (await self._target(meant, InsertRows(name, (), pa.table({})))).schema
        assert schema is not None
        return schema

    async def within(self, work: ChangingTransaction, statement: Dml) -> Result:
        """A statement of a transaction: what it changes is seen by those after it, and by others once it commits.

        Raises UnknownObject, PrivilegeMissing, SqlError and those of it (a table that is not written so, a value that
        does not fit, null where none may be, a primary key that is there twice), and what reading raises.
        """
        target = await self._target(work.meant, statement)
        schema = target.schema
        assert schema is not None
        if isinstance(statement, Insert | InsertRows):
            shown = await self._inserted(work, statement, target, schema)
            old = schema.updates.empty_table()
        else:
            old, shown, schema = await self._matched(work, statement, target, schema)
        puts = not isinstance(statement, Delete)
        new = await self._computed(shown, updates_of, shown, schema) if puts else schema.updates.empty_table()
        returned = None
        if statement.returning:
            returned = await self._returned(statement, target, shown.select(target.column_names))
        if target.mode != "wal":
            await self._direct(work, target, new, statement)
        else:
            before = work.writes.get(target.id)
            pieces = [times(old, -1), new]
            if before is not None:
                schema = whole(before.schema, schema)
                pieces = [widened(each, schema) for each in (before.updates, *pieces)]
            updates = pa.concat_tables(pieces)
            with _keys_of(target):
                work.writes[target.id] = await self._computed(updates, _written, updates, target, schema)
        return Result(f"{_TAGS[type(statement)]} {shown.num_rows}", returned)

    async def commit(self, work: ChangingTransaction, deadline: "Deadline") -> int | None:
        """Let everything happen at one time, which is returned; None: there was nothing.

        Raises SqlConflict (another was first; nothing happened), SqlFailed (a primary key is there already),
        LocationError: after Indeterminate it may have happened.
        """
        writes = {id: each for id, each in work.writes.items() if each.updates.num_rows}
        if not writes:
            return work.ts

        timeout = self._queries.variables.timeout

        async def happen(transaction: TableTransaction) -> TableTransaction:
            await self._check_there(work.meant, writes.values())
            await self._check_unchanged(work, transaction, deadline)
            for each in writes.values():
                table = await self._opened(each.described, deadline)
                # SUBTLE: columns were added since a row was read that is the same still: it has none of them.
                updates = await table.fitted(each.updates, timeout=timeout)
                transaction.insert(table, updates.drop_columns([TS.name]))
            return transaction

        access = self._queries.access
        first = next(iter(writes.values())).described
        log = await access.log_of(first.timeline or EPOCH_MILLISECONDS)
        with _keys_of(*(each.described for each in writes.values())), self._sent.sending():
            done = await transact(access.client.location, log, happen, timeout=timeout)
        return done.ts

    async def _check_there(self, meant: Meant, writes: Iterable[Written]) -> None:
        """Raise SqlConflict when a table was dropped since a statement named it: a log takes rows for it all the same,
        and no reader would find them. And when a name has come to mean something else.
        """
        names = await self._queries.names(strict=True)
        for each in writes:
            try:
                there = None if names is None else names.get(each.described.id).data
            except UnknownObject:
                there = None
            if there is None or there != each.described.data:
                raise SqlConflict(
                    "a table that the transaction writes to was dropped meanwhile",
                    hint="nothing of it happened: repeat it from BEGIN, into what has the name now, if anything",
                    table=each.described.name,
                )
        if names is not None:
            meant.check(names)

    async def _computed(self, rows: pa.Table, function: Callable[..., T], *args: object) -> T:
        return await computed(self._queries.runtime, rows.num_rows, function, *args)

    async def _check_unchanged(
        self, work: ChangingTransaction, transaction: TableTransaction, deadline: "Deadline"
    ) -> None:
        """Raise SqlConflict when rows that were asked for have changed since. What is no table is read as it was."""
        for read in work.reads:
            for held in read.held.values():
                if held.table is None or held.table.wal is None:
                    continue
                now = await transaction.snapshot(held.table, timeout=seconds(deadline))
                if now.as_of <= read.ts:
                    continue
                changes = await held.reader.diffs(read.ts + 1, now.as_of + 1, timeout=seconds(deadline))
                for rows in work.rows.get(held.stands_for.id, []):
                    if (await changes.to_arrow(where=rows)).num_rows:
                        raise SqlConflict(
                            "another transaction was first",
                            hint="nothing of this one happened: repeat it from BEGIN",
                            table=held.stands_for.name,
                        )

    async def _target(self, meant: Meant, statement: Dml) -> Described:
        """The table that a statement changes. Raises UnknownObject, PrivilegeMissing, SqlError."""
        queries = self._queries
        letter = _LETTERS[type(statement)]
        view = await queries.names(strict=True)
        looking = meant.looking(CatalogNames(view, letter))
        found = looking.resolve(statement.table, queries.variables.session)
        looking.keep()
        if found.kind is not ObjectType.TABLE or found.fed_by is not None or found.data is None:
            raise SqlError(
                "only tables are written by statements", hint="name a table", name=found.name, kind=found.kind
            )
        if found.mode != "wal" and not isinstance(statement, Insert | InsertRows):
            raise SqlNotSupported(
                "this table is written directly: rows are only added",
                hint="CREATE TABLE makes tables that are changed, too; table.upsert and table.delete change it by key",
                name=found.name,
            )
        return found

    async def _inserted(
        self, work: ChangingTransaction, statement: Insert | InsertRows, target: Described, schema: Schema
    ) -> pa.Table:
        given = await self._given(work, statement)
        every = [*schema.key, *schema.val]
        wanted = statement.columns or tuple(field.name for field in every)[: len(given)]
        columns = [field.name for field in every]
        known = by_meaning(wanted, columns)
        unknown = [name for name in wanted if name not in known]
        if unknown or len(set(known.values())) < len(wanted):
            raise SqlError(
                "no such column, or twice", hint=f"of {', '.join(columns)}", columns=", ".join(unknown or wanted)
            )
        if len(wanted) != len(given):
            raise SqlError("as many values as columns are needed", columns=len(wanted or every), values=len(given))
        named = {known[name]: column for name, column in zip(wanted, given, strict=True)}
        first = next(iter(given), None)
        rows = 0 if first is None else first.rows if isinstance(first, Each) else len(first)
        return await computed(self._queries.runtime, rows, fitted, named, every, rows)

    async def _given(self, work: ChangingTransaction, statement: Insert | InsertRows) -> "Sequence[ArrowChunks | Each]":
        """The columns of what is put in: of VALUES each value by itself, of all else as one type."""
        if isinstance(statement, InsertRows):
            return statement.rows.columns
        if isinstance(statement.query, Literals):
            found: Sequence[Each] = await self._queries.runtime.offload(values_given.read, statement.query)
            return found
        rows = values_given.rows_in(statement.query)
        if rows is None:
            table, _ = await self._run(work, *await self._queries.bound(statement.query, work.meant))
            return table.columns
        offload = self._queries.runtime.offload
        values: values_given.Given = await offload(values_given.Given, rows)
        while (query := await offload(values.query)) is not None:
            table, _ = await self._run(work, *await self._queries.bound(query, work.meant))
            values.take(table)
        found = await offload(values.columns)
        return found

    async def _matched(
        self, work: ChangingTransaction, statement: Update | Delete, target: Described, schema: Schema
    ) -> tuple[pa.Table, pa.Table, Schema]:
        """The rows a statement takes away, as updates; what it puts there instead, or took; and the schema of both."""
        table = table_of(statement.table)
        table.meta[TARGET] = True
        table.set("alias", exp.TableAlias(this=exp.to_identifier(statement.alias, quoted=True)))
        assignments = dict(statement.assignments) if isinstance(statement, Update) else {}
        every = [*schema.key, *schema.val]
        columns = [field.name for field in every]
        known = by_meaning(assignments, columns)
        if unknown := [name for name in assignments if name not in known]:
            raise SqlError("no such column", hint=f"of {', '.join(columns)}", columns=", ".join(unknown))
        query = exp.select(exp.column(_row_in(target), statement.alias, quoted=True))
        for at, expression in enumerate(assignments.values()):
            query = query.select(exp.alias_(expression.copy(), f"persist_new_{at}"))
        query = query.from_(table)
        for other in statement.others:
            query = query.join(other.copy(), join_type="CROSS") if not isinstance(other, exp.Join) else query
            if isinstance(other, exp.Join):
                query.append("joins", other.copy())
        if statement.where is not None:
            query = query.where(statement.where.copy())
        bound, names = await self._queries.bound(query, work.meant)
        rows, schema = await self._target_rows(work, bound, names, target)
        found, _ = await self._run(work, bound, names, rows)
        names_of = None if isinstance(statement, Delete) else [known[name] for name in assignments]
        return *await self._computed(found, _taken, found, rows, schema, names_of), schema

    async def _target_rows(
        self, work: ChangingTransaction, bound: BoundQuery, names: CatalogView | None, target: Described
    ) -> tuple[pa.Table, Schema]:
        """The rows that a statement may change, with all columns that they have, and the schema of these.

        SUBTLE: that may be more than the table is known to have here: a client's catalog may be some moments old, and
        its shard gets a column before the catalog says so. Without all of its columns a row could not be taken away.
        """
        relation = next(each for each in bound.relations.values() if each.target)
        _check_same(relation, target)
        snapshots = await self._snapshots(work, bound, names)
        work.depend_on([relation])
        written = work.writes.get(target.id)
        where = Predicate(relation.conditions) if written is None and relation.conditions else None
        schema = await self._whole(work, snapshots[target.id], target)
        found = await snapshots[target.id].to_arrow(None, where)
        if written is not None:
            schema = whole(schema, written.schema)
        return await self._computed(found, _present, found, written, schema), schema

    async def _whole(self, work: ChangingTransaction, snapshot: Snapshot, target: Described) -> Schema:
        """Raises SqlConflict where an index answers for the table, and has not all of its columns."""
        assert target.schema is not None
        schema = whole(target.schema, snapshot.schema)
        stands_in = any(
            held.described.id != target.id for read in work.reads for id, held in read.held.items() if id == target.id
        )
        if stands_in:
            assert target.data is not None
            newest = await self._queries.access.client.schema(target.data)
            if lacking(schema, newest.updates.names):
                raise SqlConflict(
                    "columns were added to the table since the time that is read",
                    hint="nothing of this happened: repeat it",
                    table=target.name,
                )
        return schema

    async def _run(
        self, work: ChangingTransaction, bound: BoundQuery, names: CatalogView | None, target: pa.Table | None = None
    ) -> tuple[pa.Table, int]:
        """The answer to a query as the transaction sees it, and the time it is of."""
        snapshots = await self._snapshots(work, bound, names)
        work.depend_on(bound.relations.values())
        made: dict[str, Relation] = {}
        for name, each in bound.relations.items():
            system = system_collection(each.described)
            written = work.writes.get(each.described.id)
            if system is not None:
                role = self._queries.variables.session.role
                rows = await system_rows(system, self._queries.environment, names, role)
                made[name] = Rows(rows.select(arrow(each, each.columns).names))
            elif each.target and target is not None:
                numbers = pa.array(range(target.num_rows), pa.int64())
                made[name] = Rows(
                    target.select(each.described.column_names).append_column(_row_in(each.described), numbers)
                )
            elif written is not None:
                snapshot = snapshots[each.described.id]
                found = await snapshot.to_arrow(None)
                schema = whole(written.schema, snapshot.schema)
                rows = await self._computed(found, _present, found, written, schema)
                made[name] = Rows(rows.select(each.described.column_names))
            else:
                made[name] = streamed(each, snapshots[each.described.id])
        ts = work.ts if work.ts is not None else await self._queries.now(bound, AskedTime())
        return await self._queries.engine.table(await self._queries.said(bound, ts), made), ts

    async def _snapshots(
        self, work: ChangingTransaction, bound: BoundQuery, names: CatalogView | None
    ) -> Mapping[Id, Snapshot]:
        """What a query reads, at the time of the transaction; that is chosen when it reads for the first time."""
        known = {id: each for read in work.reads for id, each in read.snapshots.items()}
        roots = [each for each in bound.reads if system_collection(each) is None]
        if names is None or all(each.id in known for each in stored(names, roots)):
            return known
        timeout = self._queries.patience
        asked = AskedTime(isolation=work.isolation, purpose="transaction")
        if work.explicit:
            work.reader = work.reader or ReadTransaction(self._queries.readers, names, asked)
            found = await work.reader.read(roots, timeout=timeout)
        else:
            at = None if work.ts is None else AsOf(work.ts)
            found = await self._queries.readers.at_one_time(names, roots, replace(asked, as_of=at), timeout=timeout)
        self._queries.touch(found)
        work.reads.append(found)
        work.ts = found.ts
        return {**known, **found.snapshots}

    async def _returned(self, statement: Dml, target: Described, rows: pa.Table) -> pa.Table:
        """RETURNING: of the rows that were put in, or taken away."""
        alias = statement.table.item if isinstance(statement, Insert | InsertRows) else statement.alias
        table = table_of(target.name)
        table.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
        query = exp.select(*(each.copy() for each in statement.returning)).from_(table)
        bound, _ = await self._queries.bound(query)
        if len(bound.relations) != 1:
            raise SqlNotSupported("RETURNING reads the rows of its statement only", hint="SELECT afterwards")
        _check_same(next(iter(bound.relations.values())), target)
        return await self._queries.engine.table(
            await self._queries.said(bound, 0), dict.fromkeys(bound.relations, Rows(rows))
        )

    async def _direct(self, work: ChangingTransaction, target: Described, new: pa.Table, statement: Dml) -> None:
        """SUBTLE: rows of a table that is written directly are there at once, and no COMMIT can take part in that."""
        if work.explicit:
            raise SqlNotSupported(
                "a table that is written directly takes no part in transactions",
                hint="INSERT outside of BEGIN … COMMIT",
                name=target.name,
            )
        table, timeout = await self._opened(target, self.deadline()), self._queries.variables.timeout
        # Columns may have been added since this opened it, or by another writer to its shard.
        given = (await table.fitted(new, timeout=timeout)).drop_columns([TS.name])
        await self.doubts.check(target, given, statement, timeout)
        self._queries.touched |= {table.shard}
        try:
            with _keys_of(target), self._sent.sending():
                work.ts = await table.insert(given, timeout=timeout)
        except (Indeterminate, asyncio.CancelledError):
            self.doubts.add(target, table, given, statement)
            raise

    async def _opened(self, described: Described, deadline: "Deadline") -> Table:
        table = await self._tables.get(described, deadline)
        assert table is not None
        return table


def _check_same(relation: BoundRelation, target: Described) -> None:
    """Raise SqlConflict when the name of a table came to mean another one while its statement was made ready."""
    if relation.described.id != target.id:
        raise SqlConflict(
            "the table was renamed meanwhile", hint="nothing of this happened: repeat it", table=target.name
        )


def whole(schema: Schema, other: Schema) -> Schema:
    """The schema with the columns behind its own that the other one has besides, as the shard of a table may."""
    there = set(schema.updates.names)
    more = [field for field in (*other.key, *other.val) if field.name not in there]
    return Schema(schema.key, pa.schema([*schema.val, *more])) if more else schema


def _written(updates: pa.Table, target: Described, schema: Schema) -> Written:
    """What the updates come to. Raises KeyTwice."""
    found = consolidate(updates, schema)
    if target.is_keyed:
        check_keys(found, schema)
    return Written(target, found, schema)


def _row_in(target: Described) -> str:
    """SUBTLE: DuckDB takes the first of two columns of a name, in whatever case."""
    names = {each.lower() for each in target.column_names}
    return next(name for name in (f"{ROW}{'_' * count}" for count in range(len(names) + 1)) if name not in names)


def _taken(
    found: pa.Table, rows: pa.Table, schema: Schema, assigned: Sequence[str] | None
) -> tuple[pa.Table, pa.Table]:
    """What a statement takes away, and what it puts there: ``found`` has the places of ``rows``, and what is assigned.

    ``assigned`` None: it puts nothing.
    """
    # A row that several rows of others match is changed once.
    first = pc.index_in(pc.unique(found.column(0)), found.column(0).combine_chunks())
    found = found.take(first)
    taken = rows.take(found.column(0))
    old = updates_of(taken, schema)
    if assigned is None:
        return old, taken
    every = [*schema.key, *schema.val]
    given = {field.name: taken.column(field.name) for field in every}
    for at, name in enumerate(assigned, 1):
        given[name] = found.column(at)
    return old, fitted(given, every, taken.num_rows)


def _present(rows: pa.Table, written: Written | None, schema: Schema) -> pa.Table:
    """The rows of a snapshot as a transaction sees them, each as often as it is there. ``schema``: has all columns."""
    if written is not None:
        updates = normalise(widened(with_defaults(rows), schema), schema)
        rows = consolidate(pa.concat_tables([updates, widened(written.updates, schema)]), schema)
    columns = pa.schema([*schema.key, *schema.val])
    return pa.Table.from_batches([repeated(each, columns) for each in rows.to_batches()], schema=columns)


@contextlib.contextmanager
def _keys_of(*tables: Described) -> Iterator[None]:
    """Where a primary key that would be there twice is what is wrong with a statement: SqlFailed, with its table."""
    try:
        yield
    except KeyTwice as error:
        names = ", ".join(str(each.name) for each in tables if each.is_keyed)
        raise SqlFailed(
            error.message, hint="UPDATE the row that has it, or DELETE it first", table=names, **error.details
        ) from error
