"""Where the work of a step runs: in this process when it is little, as a Spark job when it is much.

A Spark job costs about 100 ms whatever it does. Source: sources.md section 6.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from persist import Antichain, PersistError, UsageError
from persist.sources import SourceFrontier
from persist_ingest.pipeline.work import Done, Work, carry_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_BYTES_MIN: Final = 16 << 20
"""Upstream bytes of a step from which on a Spark job is worth its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step did. ``upper``: what is complete in all exports that run; ``frontier``: what is bound.

    ``rows``, ``bytes``: what was written; ``reread``: rows read although they were durable; ``appended``: exports whose
    upper this step moved, ``overtaken``: those that another ingester moved first.
    """

    upper: Antichain
    frontier: SourceFrontier
    rows: int = 0
    bytes: int = 0
    reread: int = 0
    appended: int = 0
    overtaken: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Runner:
    """Carries works out. ``session`` makes the Spark session when it is first needed; None: never."""

    session: "Callable[[], SparkSession] | None" = None
    spark_bytes_min: int = SPARK_BYTES_MIN
    jobs: int = 0

    @property
    def tasks(self) -> int:
        """How many tasks a large step is cut into."""
        if self.session is None:
            return 1
        return int(self.session().sparkContext.defaultParallelism)

    def wants(self, weight: int) -> bool:
        """A step of this many bytes goes to Spark."""
        return self.session is not None and weight >= self.spark_bytes_min

    def run(self, works: Sequence[Work], report: Callable[[int], None]) -> list[Done]:
        """The results of all works, in their order. Raises what ``carry_out`` raises, and what Spark raises."""
        weight = sum(work.task.weight for work in works)
        # An ordered task refers to what came before, which is remembered in this process.
        if self.session is None or not self.wants(weight) or any(work.task.ordered for work in works):
            return [carry_out(work, report) for work in works]
        self.jobs += 1
        context = self.session().sparkContext
        answers = context.parallelize(list(works), len(works)).mapPartitions(_on_executor).collect()
        for answer in answers:
            # What the others wrote stays unnamed, for the sweeper.
            if isinstance(answer, PersistError):
                raise answer
        done: list[Done] = answers
        report(sum(each.rows for each in done))
        return done


def _on_executor(works: Iterator[Any]) -> Iterator[Done | PersistError]:
    """What became of each work. Definite errors come back as they are, and are not tried again by Spark."""
    # SUBTLE: the iterator is exhausted, or Spark would throw this Python worker away.
    for work in list(works):
        try:
            answer: Done | PersistError = carry_out(work)
        except UsageError as error:
            answer = error
        yield answer
