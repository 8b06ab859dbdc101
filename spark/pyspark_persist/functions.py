"""Table functions for SQL: what a table held at a time, and how it changed, where Spark's own syntax does not reach.

    SELECT * FROM persist_snapshot('flights', 12)
    SELECT * FROM persist_changes('flights', 3, 12)

Planned and held as reads by ``format("persist")`` are, when the query is analysed: definite from then on. One task
reads it all. Source: spark.md sections 0 and 2.3.
"""

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult, UserDefinedTableFunction
from pyspark.util import PythonEvalType

from persist import InvalidArgument
from pyspark_persist.finding import current_schema
from pyspark_persist.options.parsing import parse_read
from pyspark_persist.read.reading import SnapshotReader
from pyspark_persist.read.view import schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_persist.read.keeper import Address

_WHERE: Final = ("location", "endpoint", "blob", "consensus")
_registered: "Final[weakref.WeakSet[SparkSession]]" = weakref.WeakSet()


@dataclass
class Planned(AnalyzeResult):  # type: ignore[misc]  # pyspark is untyped here
    """A read as it was planned when the query was analysed."""

    reader: Any = None
    partitions: tuple[InputPartition, ...] = ()


class _PlannedRead:
    """What the task runs: every partition of what was planned."""

    def __init__(self, planned: Planned) -> None:
        self._planned = planned

    def eval(self, *_: object, **__: object) -> Iterator[pa.RecordBatch]:
        """The rows, whatever the arguments were: they were looked at when it was planned."""
        for partition in self._planned.partitions:
            yield from self._planned.reader.read(partition)


def register_functions(spark: "SparkSession", keeper: "Address | None") -> None:
    """Make ``persist_snapshot`` and ``persist_changes`` known to this session, once."""
    if spark in _registered:
        return
    for name, function in functions(keeper).items():
        # SUBTLE: Spark's own ``arrow_udtf`` takes no function whose columns depend on its arguments; its engine does.
        made = UserDefinedTableFunction(
            function, returnType=None, name=name, evalType=PythonEvalType.SQL_ARROW_UDTF, deterministic=True
        )
        spark.udtf.register(name, made)
    _registered.add(spark)


def functions(keeper: "Address | None") -> dict[str, type]:
    """The functions by name. ``keeper``: the driver's process that holds what is planned, if there is one."""

    # Classes of a function: pickled by value, so that they take along where what they plan is held.
    class Snapshot(_PlannedRead):
        @staticmethod
        def analyze(
            table: AnalyzeArgument, as_of: AnalyzeArgument | None = None, **where: AnalyzeArgument
        ) -> AnalyzeResult:
            return planned({"table": table, "asOf": as_of}, where, keeper)

    class Changes(_PlannedRead):
        @staticmethod
        def analyze(
            table: AnalyzeArgument,
            start: AnalyzeArgument,
            end: AnalyzeArgument | None = None,
            **where: AnalyzeArgument,
        ) -> AnalyzeResult:
            return planned({"table": table, "startingVersion": start, "endingVersion": end}, where, keeper)

    return {"persist_snapshot": Snapshot, "persist_changes": Changes}


def planned(
    given: Mapping[str, AnalyzeArgument | None], where: Mapping[str, AnalyzeArgument], keeper: "Address | None"
) -> Planned:
    """The read that the arguments ask for. Raises as ``load`` does, and InvalidArgument."""
    unknown = sorted(set(where) - set(_WHERE))
    if unknown:
        raise InvalidArgument(
            "no such argument of this function",
            hint=f"after its own, it takes {', '.join(_WHERE)}",
            argument=unknown[0],
        )
    texts = {name: _text(name, argument) for name, argument in {**given, **where}.items() if argument is not None}
    options = {name: text for name, text in texts.items() if text is not None}
    if "startingVersion" in given:
        options["readChangeFeed"] = "true"
    named = options.pop("table", "")
    parsed = parse_read({**options, "path": named})
    schema: StructType = schema_of(parsed, current_schema(parsed.target))
    reader = SnapshotReader(parsed, schema, keeper)
    return Planned(schema=schema, reader=reader, partitions=tuple(reader.partitions()))


def _text(name: str, argument: AnalyzeArgument) -> str | None:
    """An argument as an option has it; None for a null."""
    if argument.isTable or not argument.isConstantExpression:
        raise InvalidArgument("the argument must be a constant", hint="a number or a text", argument=name)
    return None if argument.value is None else str(argument.value)
