"""A session: statements one after the other, with variables, and transactions over several of them.

Source: collections: queries.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Final, assert_never

import pyarrow as pa

from persist.client.collections.environment import Environment
from persist.client.collections.naming import name_of
from persist.client.collections.reading.live import states_of_holds
from persist.client.collections.reading.reads import isolation_of
from persist.client.shard.handles import Closes
from persist.client.shard.times import TimeLike, time_of
from persist.client.sql import copying, showing
from persist.client.sql.changing import ChangingTransaction, RowChanger
from persist.client.sql.defining import Defined, beginning_now, defined, is_definition
from persist.client.sql.errors import Sent, SqlError, SqlNotSupported
from persist.client.sql.following import Cursors, Following
from persist.client.sql.parse import statements as s
from persist.client.sql.parse.text import only
from persist.client.sql.querying import Queries
from persist.client.sql.results import Result
from persist.client.sql.run.engine import Answer
from persist.client.sql.run.outside import Sources
from persist.client.sql.run.port import Runner
from persist.client.sql.run.runner import Gathered, PlannedQuery
from persist.client.sql.variables import Variables
from persist.core.catalog.ddl import statements as ddl
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.effects import Executed
from persist.core.catalog.ddl.privileges import check_owns
from persist.core.catalog.ddl.resolve import unknown
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.values import ObjectType
from persist.core.time.isolation import Isolation
from persist.core.time.read_time import AsOf
from persist.errors import NotReadable, PersistError
from persist.redaction import scrub
from persist.threads import users

_NOT_BEGUN: Final = "none was begun"
BEGINNINGS: Final = 8
"""Times chosen for cursors before it is an error that each was gone before they were made."""


class SqlSession(Closes):
    """Runs SQL against one environment. For one task at a time; close it before its environment.

    A text may hold several statements. Outside of BEGIN each is a transaction of its own; between BEGIN and COMMIT
    either statements that define, which are one transaction of the catalog, or queries and changes of tables, which
    read at one time, see what they wrote, and happen at one time. After an error in it a transaction only ends.
    Nothing a statement says reaches a file, a host or the process, but COPY, which runs here only with ``files``.
    """

    _noun = "session"
    _again = "make another one"

    def __init__(
        self,
        environment: Environment,
        *,
        role: str | None = None,
        files: bool = False,
        sources: Sources | None = None,
        runner: Runner | None = None,
        owns: bool = False,
    ) -> None:
        """``files``: COPY may read and write files of this process. ``sources``: what CREATE and DROP SOURCE do here;
        without, they are refused. ``runner``: the engine that runs queries, unless SET runner says otherwise; None:
        DuckDB does. ``owns``: the environment is closed with it.
        """
        self.environment = environment
        opening = {"role": role or environment.session.role}
        self.variables = Variables(opening if runner is None else opening | {"runner": runner.name})
        self.files = files
        self._sources = sources
        self._owns = owns
        self._queries = Queries(environment, self.variables, runner)
        self._sent = Sent()
        self._changes = RowChanger(self._queries, self._sent)
        self._cursors = Cursors(self._queries)
        self._work: ChangingTransaction | None = None
        self._defines: list[Defined] = []
        self._defining = self.variables.session
        self._failed = False

    @property
    def in_transaction(self) -> bool:
        """Between BEGIN and its end."""
        return self._work is not None

    @property
    def has_failed(self) -> bool:
        """A statement of the transaction failed: it can only end."""
        return self._failed

    async def execute(self, text: str, params: object = None) -> list[Result]:
        """What became of each statement of a text, whose rows are in memory. None is run if one cannot be parsed.

        ``params``: values for ``?`` and ``$1`` (a sequence), or for ``:name`` (a mapping). Those before one that fails
        have happened. Raises SqlError and those of it, UnknownObject, PrivilegeMissing, MultipleTimelines, NotReadable,
        BelowHold, NotYetAvailable, and what else defining, reading and writing raise.
        """
        with self._cursors.returning(), self._telling():
            return [await self._ran(each.statement) for each in await self.parsed(text, params)]

    async def parsed(self, text: str, params: object = None) -> list[s.Parsed]:
        """The statements of a text. Raises SqlSyntax and SqlNotSupported: a transaction has failed then, as with a
        statement that goes wrong.
        """
        with self._failing():
            return await self._queries.parsed(text, params)

    async def run(self, statement: s.Statement) -> Result:
        """What became of a parsed statement. Raises as ``execute``."""
        with self._telling():
            return await self._ran(statement)

    async def _ran(self, statement: s.Statement) -> Result:
        ends = isinstance(statement, s.CommitTransaction | s.Rollback)
        # What sets a variable may be what gives the next one more time.
        return await self._guarded(
            self._run(statement), ends=ends, settles=not isinstance(statement, s.SetVariable | s.Rollback)
        )

    async def _guarded(
        self, work: Coroutine[object, object, Result], *, ends: bool = False, settles: bool = True
    ) -> Result:
        """What ``work`` gives, within the time that a statement may take. After an error a transaction only ends.

        ``settles``: once it is known what came of statements before it. Raises Determinate where that cannot be found.
        """
        if self._failed and not ends:
            work.close()
            raise SqlError("the transaction failed", hint="ROLLBACK, and begin again")
        self._sent.begin()
        self._queries.begin()
        with self._failing():
            try:
                async with asyncio.timeout(self.variables.timeout):
                    if settles:
                        await self._settled(work)
                    result = await work
                    notice = self._changes.doubts.notice(self._queries.touched, own=settles)
                    return replace(result, notice="; ".join(each for each in (notice, result.notice) if each))
            except TimeoutError:
                raise self._sent.timed_out() from None
            except RecursionError as error:
                hint = "put parts of it into views, or WITH"
                raise SqlError("the statement is nested too deeply", hint=hint) from error

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A block after whose error a transaction only ends: also one that was interrupted, of which it is not known
        what it has done, and one that was no statement.
        """
        try:
            yield
        except BaseException:
            self._failed = self.in_transaction
            raise

    async def _settled(self, work: Coroutine[object, object, Result]) -> None:
        try:
            await self._changes.doubts.settle(self.variables.timeout)
        except BaseException:
            work.close()
            raise

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """A block whose answers are handed over: what they say of rows before is said then, and not if it fails."""
        try:
            yield
        except BaseException:
            self._changes.doubts.lose()
            raise
        self._changes.doubts.tell()

    @asynccontextmanager
    async def query(self, text: str, params: object = None) -> AsyncIterator[tuple[Answer | Gathered, int]]:
        """The rows of one query as they are found, never all in memory, and their time. Raises as ``execute``.

        Their ``notice`` says what there is to say besides.
        """
        statement = await self._one(text, params)
        if not isinstance(statement, s.Select):
            raise SqlError("this is no query", hint="execute(text)")
        async with self.answer(statement) as found:
            yield found

    @asynccontextmanager
    async def answer(self, select: s.Select) -> AsyncIterator[tuple[Answer | Gathered, int]]:
        """As ``query``, of a parsed one."""
        if self.in_transaction:
            raise SqlError("in a transaction rows are not given as they are found", hint="execute(text)")
        self._queries.begin()
        await self._changes.doubts.settle(self.variables.timeout)
        async with self._queries.answer(select) as (found, ts):
            with self._telling():
                found.notice = self._changes.doubts.notice(self._queries.touched)
            yield found, ts

    async def planned(
        self,
        text: str,
        params: object = None,
        *,
        as_of: TimeLike | None = None,
        at_least: TimeLike | None = None,
        isolation: Isolation | str | None = None,
    ) -> PlannedQuery:
        """One query in the words of Spark, over rows that are held at one time until it is released.

        ``as_of``: at this time or an error; ``at_least``: at it or later; else as the text says. ``isolation``: None is
        that of the session. Raises as ``execute`` for a query with ``runner``, but for what running it raises.
        """
        statement = await self._one(text, params)
        if not isinstance(statement, s.Select):
            raise SqlError("this is no query", hint="execute(text)")
        if self.in_transaction:
            raise SqlError("in a transaction no query is planned for elsewhere", hint="COMMIT it first")
        given = as_of if as_of is not None else at_least
        if (as_of is not None and at_least is not None) or (given is not None and statement.as_of is not None):
            raise SqlError("a query has one time", hint="give one of AS OF in the text, as_of and at_least")
        self._queries.begin()
        asked = self._queries.asked(statement)
        if given is not None:
            now_ms = self.environment.access.client.location.runtime.now_ms()
            asked = replace(asked, as_of=AsOf(time_of(given, now_ms), at_least=at_least is not None))
        if isolation is not None:
            asked = replace(asked, isolation=isolation_of(isolation))
        try:
            async with asyncio.timeout(self.variables.timeout):
                return await self._queries.planned(statement, asked)
        except TimeoutError:
            raise self._sent.timed_out() from None

    async def subscribe(self, text: str, params: object = None) -> Following:
        """The updates of SUBSCRIBE, as they come, until it is closed. Raises as ``execute``.

        Their ``notice`` says what there is to say besides.
        """
        statement = await self._one(text, params)
        if not isinstance(statement, s.Subscribe):
            raise SqlError("this is no SUBSCRIBE", hint="execute(text)")
        return await self.follow(statement)

    async def follow(self, statement: s.Subscribe) -> Following:
        """As ``subscribe``, of a parsed one."""
        if self.in_transaction:
            raise SqlError("a transaction does not follow", hint="COMMIT it first")
        await self._changes.doubts.settle(self.variables.timeout)
        following = await Following.open(self._queries, statement)
        with self._telling():
            following.notice = self._changes.doubts.notice(self._queries.touched)
        return following

    async def insert(self, name: str, rows: pa.Table) -> Result:
        """Put rows into a table, as INSERT does: columns by name. Raises as ``execute``."""
        with self._telling():
            return await self._guarded(self._change(s.InsertRows(name_of(name), tuple(rows.schema.names), rows)))

    async def reset(self) -> None:
        """Roll back what was begun, and forget what was set."""
        await self._end()
        self._cursors.close()
        self._changes.doubts.release()
        self.variables.values.clear()

    async def close(self) -> None:
        """Roll back what was begun, and release everything."""
        await self._end()
        self._cursors.close()
        self._changes.doubts.release()
        if self._owns:
            await self.environment.close()

    async def _one(self, text: str, params: object) -> s.Statement:
        return only(await self.parsed(text, params)).statement

    async def _run(self, statement: s.Statement) -> Result:
        if is_definition(statement):
            return await self._define(statement)  # type: ignore[arg-type]  # is_definition has said so
        match statement:
            case s.Select():
                return await self._select(statement)
            case s.Insert() | s.Update() | s.Delete():
                return await self._change(statement)
            case s.Begin() | s.CommitTransaction() | s.Rollback():
                return await self._transact(statement)
            case s.SetVariable(name, values):
                self.variables.set(name, values)
                return Result("SET" if values else "RESET")
            case s.AlterSource():
                return await self._alter_source(statement)
            case s.Show():
                names = await self._queries.names(strict=True)
                asked = names if statement.what in showing.OF_HOLDS else None
                states = {} if asked is None else await states_of_holds(self.environment.access.client, asked)
                return showing.shown(statement, names, self.variables, states)
            case s.Explain():
                return await self._explain(statement)
            case s.Copy():
                return await self._copy(statement)
            case s.Subscribe():
                raise SqlNotSupported(
                    "SUBSCRIBE gives rows as they come", hint="session.subscribe(text), persist sql, or CREATE CURSOR"
                )
            case s.Fetch():
                return await self._cursors.fetch(statement)
        assert_never(statement)  # type: ignore[arg-type]  # those that define were asked for before

    async def _select(self, select: s.Select) -> Result:
        if self._work is not None:
            self._check_not_defining()
            if self._queries.runner is not None:
                raise SqlNotSupported(
                    "a query in a transaction is run by DuckDB, where what the transaction wrote is",
                    hint="COMMIT first, or SET runner = 'duckdb'",
                )
            return await self._changes.select(self._work, select)
        async with self._queries.answer(select) as (answer, ts):
            table = await answer.to_arrow()
        return Result(f"SELECT {table.num_rows}", table, ts)

    async def _change(self, statement: s.Dml) -> Result:
        if self._work is None:
            return await self._changes.alone(statement)
        self._check_not_defining()
        return await self._changes.within(self._work, statement)

    async def _copy(self, statement: s.Copy) -> Result:
        if not self.files:
            raise SqlNotSupported("COPY reads and writes files at the client", hint="persist sql, or files=True")
        runtime = self.environment.access.client.location.runtime
        if statement.query is not None:
            result = await self._select(statement.query)
            await users(runtime, copying.write, statement, result.to_arrow())
            return Result(f"COPY {len(result)}", ts=result.ts)
        assert statement.table is not None
        schema = await self._changes.schema(self._work, statement.table)
        rows = await users(runtime, copying.read, statement, schema)
        # A file's header has no quotes: as a name without them, it means a column in any case.
        known = {field.name for field in (*schema.key, *schema.val)}
        header = (name if name in known else name.lower() for name in rows.schema.names)
        columns = statement.columns or (tuple(header) if statement.named else ())
        done = await self._change(s.InsertRows(statement.table, columns, rows))
        return Result(f"COPY {rows.num_rows}", ts=done.ts)

    async def _define(self, statement: ddl.Statement | s.Definition) -> Result:
        try:
            return await self._defined(statement)
        except PersistError as error:
            if isinstance(statement, ddl.CreateSource | ddl.CreateSink):
                _hide(error)
            raise

    async def _defined(self, statement: ddl.Statement | s.Definition) -> Result:
        if self._sources is not None and isinstance(statement, ddl.CreateSource | ddl.Drop):
            beyond = await self._outside(statement, self._sources)
            if beyond is not None:
                return beyond
        if self._work is not None and (self._work.reads or self._work.writes):
            raise SqlNotSupported(
                "a transaction defines, or reads and writes", hint="COMMIT, and define in another transaction"
            )
        if isinstance(statement, ddl.Acknowledge):
            statement = self._cursors.meant(statement)
        made = await defined(statement, self._queries, [each.statement for each in self._defines])
        if self._work is not None:
            session = self.variables.session
            if self._defines and session != self._defining:
                raise SqlNotSupported(
                    "all definitions of a transaction are made in the name of one role, along one search_path",
                    hint="COMMIT, and SET it between transactions",
                )
            self._defining = session
            self._defines.append(made)
            return Result("QUEUED", notice="it happens at COMMIT")
        (done,) = await self._execute([made], self.variables.session)
        return Result(done.tag, notice=done.notice)

    async def _outside(self, statement: ddl.CreateSource | ddl.Drop, sources: Sources) -> Result | None:
        """What became of a statement about a source that a pipeline ingests; None: this is none."""
        names = await self._queries.names(strict=True)
        session = self.variables.session
        there = [] if names is None else [names.find(name, session) for name in _sources_in(statement)]
        found = [names.get(id) for id in there if id is not None and names is not None]
        made = isinstance(statement, ddl.CreateSource)
        if not made and not any(each.kind is ObjectType.SOURCE and each.remap is not None for each in found):
            return None
        if self._work is not None:
            raise SqlNotSupported("a source is made and dropped by itself", hint="COMMIT first: its upstream is asked")
        if isinstance(statement, ddl.Drop):
            if len(statement.names) > 1:
                raise SqlNotSupported("one source is dropped at a time", hint="a statement each")
            with self._sent.sending():
                await sources.drop(found[0], session.role, cascade=statement.cascade)
            return Result("DROP SOURCE")
        if found and statement.if_not_exists:
            return Result("CREATE SOURCE", notice=f"{found[0].kind.words} {found[0].name} exists, skipping")
        with self._sent.sending():
            return Result("CREATE SOURCE", notice=await sources.create(statement, session.role))

    async def _alter_source(self, statement: s.AlterSource) -> Result:
        if self._sources is None:
            raise SqlNotSupported(
                "sources are altered where they are made: in persist sql, and by persist source alter",
                hint="persist source alter NAME -o option=value",
                source=statement.name,
            )
        if self._work is not None:
            raise SqlNotSupported("a source is altered by itself", hint="COMMIT first")
        names = await self._queries.names(strict=True)
        id = None if names is None else names.find(statement.name, self.variables.session)
        found = None if id is None or names is None else names.get(id)
        if found is None or names is None or found.kind is not ObjectType.SOURCE or found.remap is None:
            if statement.if_exists and found is None:
                return Result("ALTER SOURCE", notice=f"there is no source {statement.name}, skipping")
            raise unknown("source", str(statement.name))
        role = names.role(self.variables.session.role)
        check_owns(names, role, ObjectType.SOURCE, str(found.name), found)
        with self._sent.sending():
            await self._sources.alter(found, dict(statement.options))
        return Result("ALTER SOURCE")

    async def _execute(self, defines: list[Defined], session: Session) -> tuple[Executed, ...]:
        """Once more where the time at which a cursor was to begin is gone before its hold is there."""
        timeout, tries = self.variables.timeout, BEGINNINGS if any(each.begins_now for each in defines) else 1
        while True:
            statements = await beginning_now(defines, self._queries)
            tries -= 1
            try:
                with self._sent.sending():
                    return await self.environment.execute(*statements, session=session, timeout=timeout)
            except NotReadable:
                if not tries:
                    raise

    async def _transact(self, statement: s.Begin | s.CommitTransaction | s.Rollback) -> Result:
        if isinstance(statement, s.Begin):
            if self._work is not None:
                raise SqlError("a transaction was begun already", hint="COMMIT or ROLLBACK it first")
            self._work = ChangingTransaction(statement.isolation or self.variables.isolation, explicit=True)
            return Result("BEGIN")
        work, defines, failed = self._work, self._defines, self._failed
        if work is None:
            return Result("ROLLBACK" if isinstance(statement, s.Rollback) else "COMMIT", notice=_NOT_BEGUN)
        try:
            if failed or isinstance(statement, s.Rollback):
                return Result("ROLLBACK", notice="a statement of it failed" if failed else "")
            if defines:
                await self._execute(defines, self._defining)
                return Result("COMMIT")
            return Result("COMMIT", ts=await self._changes.commit(work, self._changes.deadline()))
        finally:
            await self._end()

    async def _end(self) -> None:
        work, self._work, self._defines, self._failed = self._work, None, [], False
        if work is not None:
            await work.release()

    async def _explain(self, statement: s.Explain) -> Result:
        if statement.what is s.Explained.TIMESTAMP:
            explanation = await self._queries.explanation(statement.query)
            names, values = zip(*explanation.fields(), strict=True)
            return Result("EXPLAIN", pa.table({"field": list(names), "value": list(values)}), explanation.query_ts)
        plan = await self._queries.plan(statement.query)
        return Result("EXPLAIN", pa.table({"plan": plan.splitlines()}))

    def _check_not_defining(self) -> None:
        if self._defines:
            raise SqlNotSupported(
                "a transaction defines, or reads and writes", hint="COMMIT, and begin another transaction"
            )

    def __repr__(self) -> str:
        """The environment, the role, and whether it is in a transaction."""
        state = ", in a transaction" if self.in_transaction else ""
        where, role = (
            f"{self.environment.name} of {self.environment.access.client.location}",
            self.variables.get("role"),
        )
        return f"<SqlSession of {where} as {role}{state}>"


def _hide(error: PersistError) -> None:
    """Take from an error what a statement said that is secret."""
    error.message, error.hint = scrub(error.message), scrub(error.hint)
    error.details = {name: scrub(value) for name, value in error.details.items()}


def _sources_in(statement: ddl.CreateSource | ddl.Drop) -> Sequence[QualifiedName]:
    if isinstance(statement, ddl.CreateSource):
        return (statement.name,)
    return statement.names if statement.kind is ObjectType.SOURCE else ()


async def whole(session: SqlSession, text: str, params: object) -> list[Result]:
    """``execute`` of a text with which its session ends. Raises SqlError besides: a transaction is not whole in it."""
    results = await session.execute(text, params)
    if session.in_transaction:
        raise SqlError("the text ends within a transaction: nothing of it happened", hint=_OF_ONE)
    if any(each.notice.endswith(_NOT_BEGUN) for each in results):
        raise SqlError("the text ends a transaction that it did not begin: what was before has happened", hint=_OF_ONE)
    return results


_OF_ONE: Final = "BEGIN and COMMIT stand in one text, or in client.session()"
