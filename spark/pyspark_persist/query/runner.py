"""The engine that persist is given: queries and refreshes as jobs of one Spark application.

Source: docs/sql.md, queries that Spark runs.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import pyarrow as pa
from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    ParseException,
    PySparkException,
    SparkRuntimeException,
)

from persist import Determinate, PersistError
from persist.runners import PlannedQuery, PlannedRefresh, PreparedBatch, SqlFailed, SqlNotSupported
from persist.runtime import system
from persist.threads import users
from pyspark_persist.application import check_python
from pyspark_persist.query.frames import answer_of, exactly, frame_of, session_of
from pyspark_persist.query.refreshing import difference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

NAME: Final = "spark"
_OF_TEXTS: Final = (AnalysisException, ParseException)
_OF_ROWS: Final = (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)


class SparkRunner:
    """Runs SQL on a Spark session: ``client.sql(text, runner=SparkRunner(spark))``, and ``client.views(…)``.

    Answers are collected into this process, at most ``spark.driver.maxResultSize`` of them. Safe for many tasks; each
    query has a session beside the given one, whose settings and views it neither sees nor changes.
    Raises InvalidArgument: with Spark Connect, and where Spark's Python does not have this package.
    """

    name = NAME

    def __init__(self, spark: "SparkSession") -> None:
        session_of(spark)
        check_python(spark.sparkContext)
        self._spark = spark

    async def run(self, query: PlannedQuery) -> pa.Table:
        """See ``persist.runners.Runner``."""

        def answered(session: "SparkSession") -> pa.Table:
            return exactly(answer_of(session, query).toArrow(), query.schema)

        return await self._job(answered)

    async def plan(self, query: PlannedQuery) -> str:
        """See ``persist.runners.Runner``."""

        def explained(session: "SparkSession") -> str:
            execution: Any = frame_of(session, query)._jdf.queryExecution()
            return str(execution.executedPlan().toString())

        return await self._job(explained)

    async def refresh(self, refresh: PlannedRefresh) -> Sequence[PreparedBatch]:
        """See ``persist.runners.Runner``."""
        return await self._job(lambda session: difference(session, refresh))

    async def _job(self, work: Callable[["SparkSession"], T]) -> T:
        """What ``work`` returned in a thread, whose jobs end when nothing waits for them any more."""
        tag = f"persist-{system().random_bytes(16).hex()}"
        done = asyncio.ensure_future(users(system(), self._tagged, tag, work))
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            while not done.done():
                # It may have been between two jobs: asked again until it has ended.
                await users(system(), self._spark.sparkContext.cancelJobsWithTag, tag)
                await asyncio.wait([done], timeout=0.1)
            done.exception()
            raise
        except PersistError:
            raise
        except PySparkException as error:
            _raise(error)

    def _tagged(self, tag: str, work: Callable[["SparkSession"], T]) -> T:
        session = session_of(self._spark)
        session.sparkContext.addJobTag(tag)
        try:
            return work(session)
        finally:
            session.sparkContext.removeJobTag(tag)


def _raise(error: PySparkException) -> NoReturn:
    """What Spark says, as what it is: of the text, of the rows, or of the job, which may go well the next time."""
    why = _first(error)
    if isinstance(error, _OF_TEXTS):
        raise SqlNotSupported("Spark does not run this", hint="SET runner = 'duckdb'", why=why) from error
    if isinstance(error, _OF_ROWS):
        raise SqlFailed(
            "the query cannot be answered over these rows", hint="correct the rows or the query", why=why
        ) from error
    raise Determinate("the job failed", hint="see Spark's log, and run it again", why=why) from error


def _first(error: PySparkException) -> str:
    return str(error).strip().partition("\n")[0][:300]
