"""Where the work of a step runs: in this process when it is little, as a Spark job when it is much.

A Spark job costs about 100 ms whatever it does. Source: sources.md section 6.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from persist import Antichain, PersistError, UsageError
from persist.sources import SourceFrontier
from persist_ingest.pipeline.anew.attempt import Pace
from persist_ingest.pipeline.work import Done, Work, carry_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_BYTES_MIN: Final = 16 << 20
"""Upstream bytes of a step from which on a Spark job is worth its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """How a pipeline runs; none of it changes what it writes.

    ``tick_ms``: between the beginnings of two steps. ``commit_steps_late``: steps that the upstream keeps data for
    after it is durable. ``retain_ms``: how far back data shards stay readable. ``minter``: endpoints of
    TimestampMinter, or empty to mint here. ``told_ms``: between two words to ``status``; ``forget_ms``: between two
    compactions of the bindings; ``recount_ms``: between two counts of all rows, see ``Recount`` (0: none). ``pace``:
    of snapshots that it goes on with. ``state_dir``: where the newest rows of upserts are kept on this machine; empty:
    in the user's folder of temporary files.
    """

    tick_ms: int = 250
    commit_steps_late: int = 1
    retain_ms: int = 600_000
    minter: str = ""
    told_ms: int = 2_000
    forget_ms: int = 5_000
    recount_ms: int = 3_600_000
    pace: Pace = field(default_factory=Pace)
    state_dir: str = ""

    @property
    def paced(self) -> Pace:
        """How snapshots are gone on with, here."""
        return dataclasses.replace(self.pace, state_dir=self.state_dir or self.pace.state_dir)


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
