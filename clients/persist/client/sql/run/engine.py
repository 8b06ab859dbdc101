"""Queries on DuckDB, within limits: memory, threads and time.

Only this module and ``instances`` know DuckDB. A query runs in threads of its own, so that it never waits for what it
waits on. Source: collections: queries; the fences around SQL.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NoReturn, Protocol, TypeVar

import pyarrow as pa

from persist.client.sql.errors import (
    CONDITION_HINT,
    CONDITION_MARK,
    NO_CONDITION,
    NO_TIME,
    NOT_WHOLE,
    REFUSED_MARK,
    TIME_HINT,
    TIME_MARK,
    WHOLE_HINT,
    SqlError,
    SqlFailed,
    SqlLimit,
)
from persist.client.sql.run.instances import Instance, Limits
from persist.errors import PersistError
from persist.extras import extra

with extra("sql"):
    import duckdb

T = TypeVar("T")

BATCH_ROWS: Final = 16_384
"""Rows of an answer that are handed over at once."""

_KIND: Final = re.compile(r"^(?:[A-Z][\w-]*(?: [A-Za-z]+)? Error|TransactionContext Error): ")


_REFUSED: Final = re.compile(rf"Could not convert string '(.*{REFUSED_MARK}.*)' to ", re.DOTALL)
_NO_TIME: Final = re.compile(rf"{TIME_MARK}([^\"{TIME_MARK}]*)", re.DOTALL)
_NO_CONDITION: Final = f"Unrecognized Regex option {CONDITION_MARK}"
_FAILURES: Final = (duckdb.Error, pa.ArrowException, OSError, RuntimeError, ValueError)


class Relation(Protocol):
    """What a query reads: as often as it wants, each time from the beginning."""

    error: PersistError | None
    """Why it could not be read to its end."""

    def __arrow_c_schema__(self) -> object:
        """Its columns."""
        ...

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Its rows."""
        ...

    def abandon(self) -> None:
        """Nothing waits for rows of it any more."""
        ...


class Engine:
    """One DuckDB in memory, empty, for the queries of one session. It is there while one of them runs."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._instance: Instance | None = None
        self._running = 0

    @contextlib.asynccontextmanager
    async def query(self, sql: str, relations: Mapping[str, Relation]) -> "AsyncIterator[Answer]":
        """The answer to a query, whose rows come as they are asked for, until the end of the block.

        Cancelled with its task. Raises SqlError (DuckDB does not understand it, or it does not only read), SqlFailed
        (it went wrong on its rows), SqlLimit, and what reading its relations raises.
        """
        with self._begun() as instance:
            running = _QueryThread(instance, relations)
            loop = asyncio.get_running_loop()
            deadline = None if self.limits.timeout is None else loop.time() + self.limits.timeout
            try:
                reader = await running.call(lambda: running.start(sql), deadline)
                yield Answer(reader, running, deadline)
            finally:
                await running.close()

    async def table(self, sql: str, relations: Mapping[str, Relation]) -> pa.Table:
        """The whole answer to a query. Raises as ``query``."""
        async with self.query(sql, relations) as answer:
            return await answer.to_arrow()

    async def schema(self, sql: str, relations: Mapping[str, Relation]) -> pa.Schema:
        """The columns of a query's answer, from relations without rows. Raises as ``query``."""
        async with self.query(f"SELECT * FROM ({sql}) LIMIT 0", relations) as answer:
            # As a subquery its columns have other names where two have one.
            names = await answer.names_of(sql)
            return pa.schema([field.with_name(name) for field, name in zip(answer.schema, names, strict=True)])

    async def plan(self, sql: str, relations: Mapping[str, Relation]) -> str:
        """How DuckDB runs a query. Raises as ``query``."""
        with self._begun() as instance:
            running = _QueryThread(instance, relations)
            try:
                return await running.call(lambda: running.plan(sql), None)
            finally:
                await running.close()

    @contextlib.contextmanager
    def answered(self, sql: str, relations: Mapping[str, Relation]) -> Iterator[pa.RecordBatchReader]:
        """The answer to a query, in this thread, which waits for it as long as it takes. Raises as ``query``."""
        with self._begun() as instance:
            cursor = instance.cursor()
            try:
                for name, relation in relations.items():
                    cursor.register(name, relation)
                yield _reader(cursor.sql(_query(cursor, sql)))
            except _FAILURES as error:
                instance.look_at(error)
                raise _failure(error) from error
            finally:
                cursor.close()

    @contextlib.contextmanager
    def _begun(self) -> Iterator[Instance]:
        """What a query runs on, which others that run meanwhile share."""
        if self._instance is None:
            self._instance = Instance.taken(self.limits)
        instance = self._instance
        self._running += 1
        try:
            yield instance
        finally:
            self._running -= 1
            if not self._running:
                self._instance = None
                instance.give_back()


class Answer:
    """The rows of a query, once."""

    def __init__(self, reader: pa.RecordBatchReader, running: "_QueryThread", deadline: float | None) -> None:
        self.schema = reader.schema
        self.notice = ""
        """What there is to say besides."""
        self._reader = reader
        self._running = running
        self._deadline = deadline

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows, as they are found. Raises SqlFailed, SqlLimit, and what reading relations raises."""
        while (batch := await self._running.call(self._next, self._deadline)) is not None:
            if batch.num_rows:
                yield batch

    async def to_arrow(self) -> pa.Table:
        """All rows. Raises as ``batches``."""
        return pa.Table.from_batches([batch async for batch in self.batches()], schema=self.schema)

    async def names_of(self, sql: str) -> list[str]:
        """What the columns of another query over the same relations are called. Raises as ``Engine.query``."""
        return await self._running.call(lambda: self._running.names(sql), self._deadline)

    def _next(self) -> pa.RecordBatch | None:
        try:
            return self._reader.read_next_batch()
        except StopIteration:
            return None


class _QueryThread:
    """A query in a thread of its own, until it ends or is ended."""

    def __init__(self, instance: Instance, relations: Mapping[str, Relation]) -> None:
        self._instance = instance
        self._cursor = instance.cursor()
        self._relations = relations
        self._thread = ThreadPoolExecutor(1, "persist-sql")

    def start(self, sql: str) -> pa.RecordBatchReader:
        for name, relation in self._relations.items():
            self._cursor.register(name, relation)
        return _reader(self._cursor.sql(_query(self._cursor, sql)))

    def names(self, sql: str) -> list[str]:
        return list(self._cursor.sql(_query(self._cursor, sql)).columns)

    def plan(self, sql: str) -> str:
        for name, relation in self._relations.items():
            self._cursor.register(name, relation)
        _query(self._cursor, sql)
        return "\n".join(str(row[-1]) for row in self._cursor.execute(f"EXPLAIN {sql}").fetchall())

    async def call(self, work: Callable[[], T], deadline: float | None) -> T:
        """What ``work`` returned in the thread, which is interrupted if nothing waits for it any more."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, work)
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(future)
        except TimeoutError:
            await self._interrupted(future)
            raise SqlLimit(
                "the statement took too long", hint="SET statement_timeout = '10m', or ask for less"
            ) from None
        except asyncio.CancelledError:
            await self._interrupted(future)
            raise
        except _FAILURES as error:
            self._raise(error)

    async def close(self) -> None:
        for relation in self._relations.values():
            relation.abandon()
        loop = asyncio.get_running_loop()
        with contextlib.suppress(duckdb.Error):
            await asyncio.shield(loop.run_in_executor(self._thread, self._cursor.close))
        self._thread.shutdown(wait=False)

    async def _interrupted(self, future: "asyncio.Future[T]") -> None:
        """Return once the thread has ended what it did."""
        self._instance.is_sound = False
        for relation in self._relations.values():
            relation.abandon()
        while not future.done():
            # It may have been between two queries: asked again until it has ended.
            self._cursor.interrupt()
            await asyncio.wait([future], timeout=0.05)
        future.exception()

    def _raise(self, error: Exception) -> NoReturn:
        self._instance.look_at(error)
        for relation in self._relations.values():
            if relation.error is not None:
                raise relation.error from error
        raise _failure(error) from error


def named(expression: str) -> str:
    """What DuckDB calls a column that is this, and has no name. Raises SqlError: it does not understand it."""
    try:
        return str(duckdb.SQLExpression(expression).get_name())
    except _FAILURES as error:
        raise _failure(error) from error


def _query(cursor: "duckdb.DuckDBPyConnection", sql: str) -> "duckdb.Statement":
    """The one statement that it is. Raises SqlError: it does not only read, and could leave something behind."""
    match cursor.extract_statements(sql):
        case [statement] if statement.type == duckdb.StatementType.SELECT:
            return statement
    raise SqlError("this is no query")


def _failure(error: Exception) -> SqlError:
    """What DuckDB raised, as it is raised here."""
    if (refused := _REFUSED.search(str(error))) is not None:
        got = refused[1].replace(REFUSED_MARK, "", 1)[:80]
        return SqlFailed(NOT_WHOLE, hint=WHOLE_HINT, got=got)
    if (refused := _NO_TIME.search(str(error))) is not None:
        return SqlFailed(NO_TIME, hint=TIME_HINT, got=refused[1][:80])
    if _NO_CONDITION in str(error):
        return SqlError(NO_CONDITION, hint=CONDITION_HINT)
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in str(error):
        return SqlLimit("the statement needs more memory than it may have", hint="ask for less, or use Spark")
    known = isinstance(error, duckdb.BinderException | duckdb.CatalogException | duckdb.ParserException)
    unknown = isinstance(error, duckdb.NotImplementedException | duckdb.PermissionException)
    kind = SqlError if known or unknown else SqlFailed
    return kind(_said(error))


def _reader(result: "duckdb.DuckDBPyRelation") -> pa.RecordBatchReader:
    # Of DuckDB before 1.5 and since.
    made = getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader
    reader: pa.RecordBatchReader = made(BATCH_ROWS)
    return reader


def _said(error: Exception) -> str:
    """What DuckDB says, without what it says of the text that was made for it."""
    text = _KIND.sub("", str(error)).split("\n\n")[0].split("\nLINE ")[0]
    return " ".join(text.split())[:500]
