"""Statements of a text, one after the other: what each gives, on standard output."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from persist.arrow import ArrowColumn
from persist.client.collections.plain import rows_of, values_of, with_texts
from persist.client.sql.copying import check_names
from persist.client.sql.parse import statements as s
from persist.client.sql.parse.printing import printed
from persist.client.sql.parse.text import parse
from persist.client.sql.results import Result
from persist.client.sql.session import SqlSession
from persist.dates import dated
from persist.errors import InvalidArgument
from persist_cli.output import OutputFailed, streaming
from persist_cli.partly import NO, PartlyDone, happened
from persist_cli.terminal import counted, escaped, note, print_json_line, print_table

if TYPE_CHECKING:
    from persist.client.collections.environment import Environment
    from persist.client.collections.reading.lagging import Lagging
    from persist.client.sql.run.port import Runner
    from persist_cli.options import LocationTarget

ROWS_MAX: Final = 1000
"""Rows of a table for people: what one scrolls through."""

QUIET_SECONDS: Final = 1.0
"""A statement that takes longer says on a terminal that it runs."""

_TIMES: Final = frozenset({"at", "acknowledged", "since", "upper"})
"""What lists of the system call times, besides those whose names end in ``_ms``."""

_MARKS: Final = "|/-\\"


class Printed(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"


def text_of(file: Path | None) -> str | None:
    """The statements in a file; None: none was named. Raises InvalidArgument."""
    if file is None:
        return None
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument("this file cannot be read", hint="a text file in UTF-8", file=file, why=error) from error


def parsed(text: str) -> list[s.Parsed]:
    """The statements of a text. Raises SqlSyntax, SqlNotSupported: none of them is run."""
    return parse(text)


def creates(statements: Sequence[s.Parsed]) -> bool:
    """Whether they begin with something new, so that also the location may be new."""
    return bool(statements) and printed(statements[0].statement).startswith("CREATE ")


@contextlib.contextmanager
def engine(runner: str, master: str | None) -> "Iterator[Runner | None]":
    """The engine of that name, for a block; None: DuckDB. Raises UsageError (Spark without Java), MissingExtra."""
    if runner != "spark":
        yield None
        return
    from persist_cli.admin.spark import session

    # What is wrong with a query is said by its error, and not besides by PySpark's own log.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    with session(master, "persist sql") as spark:
        from pyspark_persist import SparkRunner

        yield SparkRunner(spark)


def session_of(
    environment: "Environment", target: "LocationTarget | None", runner: "Runner | None" = None
) -> SqlSession:
    """A session with all that this process may reach: its files, and upstreams that are ingested into ``target``."""
    from persist_cli.sql.sources import IngestedSources

    sources = IngestedSources(target, environment) if target is not None else None
    return SqlSession(environment, files=True, sources=sources, runner=runner)


async def run_all(
    environment: "Environment",
    statements: Sequence[s.Parsed],
    form: Printed,
    target: "LocationTarget | None",
    runner: "Runner | None" = None,
) -> None:
    """Run statements one after the other, until one fails. Raises PartlyDone: it says what took effect by then."""
    session = session_of(environment, target, runner)
    effects = Effects()
    try:
        for number, each in enumerate(statements, 1):
            try:
                result = await run_one(session, each, form)
            except OutputFailed as error:
                if not effects.done:
                    raise
                raise PartlyDone(error, "", effects.done) from error
            except Exception as error:
                raise PartlyDone(error, effects.of_failed(each.statement, session, error), effects.done) from error
            effects.took(number, each.statement, result, session)
        if session.in_transaction:
            note("the transaction was not committed: nothing of it happened")
    finally:
        await session.close()


_NO_EFFECT: Final = (s.Select, s.Subscribe, s.Show, s.Explain, s.Fetch, s.SetVariable, s.Begin, s.Rollback)


class Effects:
    """Which statements took effect: those between BEGIN and COMMIT with the COMMIT."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._begun: list[str] = []

    def took(self, number: int, statement: s.Statement, result: Result | None, session: SqlSession) -> None:
        """A statement has ended well."""
        if isinstance(statement, s.Begin | s.Rollback):
            self._begun = []
        if isinstance(statement, s.CommitTransaction):
            if result is not None and result.tag == "COMMIT":
                self.done += self._begun
            self._begun = []
        elif result is not None and _changes(statement):
            (self._begun if session.in_transaction else self.done).append(f"{number}. {result.tag}")

    def of_failed(self, statement: s.Statement, session: SqlSession, error: Exception) -> str:
        """Whether a statement that failed happened; empty: it changes nothing. In a transaction nothing did."""
        if not _changes(statement):
            return ""
        return NO if session.in_transaction else happened(error)


def _changes(statement: s.Statement) -> bool:
    if isinstance(statement, s.Copy):
        return statement.table is not None
    return not isinstance(statement, _NO_EFFECT)


async def run_one(session: SqlSession, parsed: s.Parsed, form: Printed) -> Result | None:
    """Run a statement and print what it gives. None: its rows were printed as they came."""
    if isinstance(parsed.statement, s.Subscribe):
        with streaming():
            await _follow(session, parsed, form)
        return None
    streamed = form is not Printed.TABLE and not session.in_transaction
    if isinstance(parsed.statement, s.Select) and streamed:
        async with waiting(session), session.answer(parsed.statement) as (answer, _):
            with streaming():
                await _print_batches(answer.schema, answer.batches(), form)
            if answer.notice:
                note(answer.notice)
        return None
    async with waiting(session):
        result = await session.run(parsed.statement)
    with contextlib.nullcontext() if result.table is None else streaming():
        await show(result, form)
    return result


async def show(result: Result, form: Printed) -> None:
    """Print a result: rows, or for people what was done."""
    if result.table is None:
        if form is Printed.TABLE:
            print(result.tag)
    elif form is Printed.TABLE:
        _print_table(result)
    else:
        await _print_batches(result.table.schema, _batches(result.table), form)
    if result.notice:
        note(result.notice)


async def _batches(table: pa.Table) -> AsyncIterator[pa.RecordBatch]:
    for batch in table.to_batches():
        yield batch


def _print_table(result: Result) -> None:
    assert result.table is not None
    rows = result.table.slice(0, ROWS_MAX)
    if result.table.schema.names in (["plan"], ["definition"]):
        print("\n".join(escaped(str(value)) for value in rows.column(0).to_pylist()))
        return
    caption = counted(result.table.num_rows, "row")
    if result.table.num_rows > ROWS_MAX:
        caption = f"the first {ROWS_MAX:,} of {caption}; --csv, --json and COPY give all"
    columns = [_dated(name, column) for name, column in zip(rows.schema.names, rows.columns, strict=True)]
    shown = [[_cell(value) for value in row] for row in zip(*columns, strict=True)]
    print_table(result.table.schema.names, shown, caption=caption)


def _dated(name: str, column: ArrowColumn) -> list[object]:
    """Times of the system, such as that of a hold, with their dates."""
    values: list[object] = values_of(column)
    if column.type != pa.uint64() or not (name in _TIMES or name.endswith("_ms")):
        return values
    return [dated(value) if isinstance(value, int) else value for value in values]


def _cell(value: object) -> object:
    # A table for people distinguishes null from an empty text.
    return "null" if value is None else value


async def _print_batches(schema: pa.Schema, batches: AsyncIterator[pa.RecordBatch], form: Printed) -> None:
    with _writer(schema, form) as put:
        async for batch in batches:
            put(batch)


@contextlib.contextmanager
def _writer(schema: pa.Schema, form: Printed) -> Iterator[Callable[[pa.RecordBatch], object]]:
    if form is Printed.JSON:
        check_names(schema)
        yield _print_json
    elif form is Printed.CSV:
        from pyarrow import csv

        csv.write_csv(schema.empty_table(), sys.stdout.buffer)
        # Batch by batch: a column is text where it has a value that Arrow does not write.
        plain = csv.WriteOptions(include_header=False)

        def put(batch: pa.RecordBatch) -> None:
            csv.write_csv(with_texts(batch), sys.stdout.buffer, plain)
            sys.stdout.buffer.flush()

        yield put
    else:
        with pa.ipc.new_stream(sys.stdout.buffer, schema) as writer:  # type: ignore[arg-type]  # narrower than Arrow is
            yield lambda batch: (writer.write_batch(batch), sys.stdout.buffer.flush())
    sys.stdout.flush()


def _print_json(batch: pa.RecordBatch) -> None:
    for row in rows_of(batch):
        print_json_line({name: _number(value) for name, value in row.items()})


def _number(value: object) -> object:
    # Sums of whole numbers are whole numbers.
    return int(value) if isinstance(value, Decimal) and value.as_tuple().exponent == 0 else value


async def _follow(session: SqlSession, parsed: s.Parsed, form: Printed) -> None:
    """Print the updates of a SUBSCRIBE as they come, until UP TO, or until it is interrupted."""
    assert isinstance(parsed.statement, s.Subscribe)
    following = await session.follow(parsed.statement)
    async with following:
        note(f"from {following.as_of} on; Ctrl-C ends it")
        if following.notice:
            note(following.notice)
        if form is not Printed.TABLE:
            await _print_batches(following.schema, _pieces(following.batches()), form)
            return
        print("\t".join(map(escaped, following.schema.names)), flush=True)
        async for rows in following.batches():
            for row in zip(*map(values_of, rows.columns), strict=True):
                print("\t".join(escaped(str(_cell(value))) for value in row), flush=True)


async def _pieces(tables: AsyncIterator[pa.Table]) -> AsyncIterator[pa.RecordBatch]:
    async for table in tables:
        for batch in table.to_batches():
            yield batch


@contextlib.asynccontextmanager
async def waiting(session: SqlSession) -> AsyncIterator[None]:
    """A block that says, once it takes long, what it waits for; and on a terminal that it runs, and for how long."""
    session.environment.reads.readers.told = _waits
    if not sys.stderr.isatty():
        yield
        return
    saying = asyncio.create_task(_say())
    try:
        yield
    finally:
        saying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await saying


def _waits(lagging: "Lagging") -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    note(str(lagging))


async def _say() -> None:
    from persist.runtime import system

    runtime = system()
    begun = runtime.monotonic()
    await runtime.sleep(QUIET_SECONDS)
    at = 0
    try:
        while True:
            seconds = runtime.monotonic() - begun
            print(f"\r{_MARKS[at % 4]} running, {seconds:.0f} s; Ctrl-C ends it", end="", file=sys.stderr, flush=True)
            at += 1
            await runtime.sleep(0.25)
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
