"""Several names at one time: DataFrames that may be joined, because their times mean the same and are the same.

What is loaded one by one is checked one by one: that two loads are joined inside Spark cannot be seen here.
Source: design 004; catalog-semantics.md section 6.2.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from persist.typed import Fields
from pyspark_persist.options.parsing import parse_read
from pyspark_persist.registering import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Timedomain(Mapping[str, "DataFrame"]):
    """DataFrames by the names that were given, all at ``ts``. Keep it, or the DataFrames, until Spark has planned them.

    ``explanation``: why it is this time.
    """

    def __init__(self, frames: Mapping[str, "DataFrame"], held: Mapping[str, Any]) -> None:
        self._frames = dict(frames)
        self._held = dict(held)
        first = next(iter(self._held.values()))
        self.ts: int = first.ts
        self.explanation: Any = first.explanation
        for name, frame in self._frames.items():
            weakref.finalize(frame, _kept, self._held[name])

    def __getitem__(self, name: str) -> "DataFrame":
        return self._frames[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._frames)

    def __len__(self) -> int:
        return len(self._frames)

    def release(self) -> None:
        """Release what is held. What Spark has planned by then it holds itself."""
        for contents in self._held.values():
            contents.release()


def timedomain(
    spark: "SparkSession",
    names: Sequence[str],
    as_of: int | None = None,
    *,
    at_least: int | None = None,
    isolation: str = "strict serializable",
    environment: str = "default",
    **options: object,
) -> Timedomain:
    """DataFrames of these names at one time of one timeline: a join of them is what was there at that time.

    ``as_of``: at this time or an error; ``at_least``: at it or later; else as ``Environment.read``. ``options``: where,
    as ``location=`` or ``endpoint=``, and what else ``format("persist")`` takes. Raises MultipleTimelines, which names
    each object and its timeline, and as ``Environment.read_together``.
    """
    register(spark)
    texts = {name: str(value) for name, value in options.items()}
    target = parse_read({**texts, "table": names[0]}).target if names else parse_read(texts).target
    with target.client().environment(environment) as opened:
        held = opened.read_together(
            list(names), as_of=as_of, at_least=at_least, isolation=isolation, timeout=target.timeout
        )
    return Timedomain({name: _frame(spark, contents, texts) for name, contents in held.items()}, held)


def _frame(spark: "SparkSession", contents: Any, options: Mapping[str, str]) -> "DataFrame":
    if contents.shard is None:
        return spark.createDataFrame(contents.to_arrow().drop_columns(["diff"]))
    where: Fields = {**options, "shard": str(contents.shard), "asOf": str(contents.ts)}
    frame = spark.read.format("persist").options(**where).load()
    return frame.select(*[name for name in contents.output().names if name != "diff"])


def _kept(contents: object) -> None:
    """Referred to by a DataFrame, so that what it reads is held for as long as that is there."""
