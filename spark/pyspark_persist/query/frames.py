"""A planned query as a DataFrame: its relations read from their pieces by executors, its answer in DuckDB's types.

Source: docs/sql.md, queries that Spark runs.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from persist import InvalidArgument
from persist.runners import Piece, PlannedRows
from pyspark_persist.change.rows import quoted
from pyspark_persist.spark_types import arrow_schema, cast_column, spark_schema, to_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PIECE_BYTES: Final = 32 << 20
"""Encoded bytes of a task's piece, about; and no more pieces than PIECES_MAX, and no fewer than there are cores."""
PIECES_MAX: Final = 1024

SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.orderByOrdinal": "true",
    "spark.sql.legacy.integerGroupingId": "false",
    "spark.sql.crossJoin.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}
"""What decides on an answer, whatever the session of the user has set: its own session is not touched."""


class AnyPlannedQuery(Protocol):
    """A ``persist.runners.PlannedQuery``, of either client."""

    @property
    def text(self) -> str:
        """The query."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The columns of its answer."""
        ...

    @property
    def relations(self) -> Mapping[str, PlannedRows]:
        """What it reads."""
        ...


def session_of(spark: "SparkSession") -> "SparkSession":
    """A session beside the user's one, in the same application, with settings and names of its own.

    Raises InvalidArgument with Spark Connect, whose server is elsewhere.
    """
    if getattr(spark, "_sc", None) is None:
        raise InvalidArgument(
            "SQL over names is planned in the driver's own process", hint="not with Spark Connect: format('persist')"
        )
    own = spark.newSession()
    for name, value in SETTINGS.items():
        own.conf.set(name, value)
    return own


def frame_of(session: "SparkSession", query: AnyPlannedQuery) -> "DataFrame":
    """The query over its relations, as Spark plans it; nothing is read yet. Raises what Spark says of the text."""
    for name, rows in query.relations.items():
        rows_of(session, rows).createOrReplaceTempView(name)
    return session.sql(query.text)


def answer_of(session: "SparkSession", query: AnyPlannedQuery) -> "DataFrame":
    """``frame_of`` with the columns that the query has, by their names and of their types. Raises TypeNotSupported."""
    return shaped(frame_of(session, query), query.schema)


def shaped(frame: "DataFrame", schema: pa.Schema) -> "DataFrame":
    """The columns of a frame under these names and in these types, by their places."""
    wanted = spark_schema(schema).fields
    places = [f"c{place}" for place in range(len(wanted))]
    numbered = frame.toDF(*places)
    return numbered.select(
        *[quoted(place).cast(field.dataType).alias(field.name) for place, field in zip(places, wanted, strict=True)]
    )


def rows_of(session: "SparkSession", rows: PlannedRows) -> "DataFrame":
    """The rows of a relation, a task for each piece."""
    context: Any = session.sparkContext
    wanted = min(PIECES_MAX, max(context.defaultParallelism, -(-rows.encoded_bytes // PIECE_BYTES)))
    shown = spark_schema(rows.schema)
    pieces = rows.pieces(wanted)
    if not pieces:
        return session.createDataFrame([], shown)
    numbers = session.range(0, len(pieces), 1, numPartitions=len(pieces))
    return numbers.mapInArrow(_ReadPieces(pieces, arrow_schema(shown)), shown)


def exactly(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows of an answer in the types that it has there. Raises SchemaMismatch (a value does not fit)."""
    columns = [cast_column(column, field) for column, field in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


class _ReadPieces:
    """What executors run: pieces by number in, their rows out."""

    def __init__(self, pieces: list[Piece], schema: pa.Schema) -> None:
        self._pieces = pieces
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for rows in self._pieces[number].batches():  # type: ignore[index]  # no nulls here
                    yield from to_spark(pa.Table.from_batches([rows]), self._schema)
