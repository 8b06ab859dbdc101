"""Where the work of a step runs: in this process when it is little, as a Spark job when it is much.

A Spark job costs about 100 ms whatever it does. Source: sources.md section 6.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from persist import Antichain, InvalidArgument, PersistError, UsageError
from persist.sources import SourceFrontier
from persist_ingest.pipeline.anew.attempt import Pace
from persist_ingest.pipeline.newest.key_ranges import RANGES_MAX, KeyRange
from persist_ingest.pipeline.newest.trouble import check_folder, told
from persist_ingest.pipeline.newest.upserts import let_go
from persist_ingest.pipeline.work import (
    Done,
    ExportPlan,
    Sent,
    Work,
    carry_out,
    carry_out_range,
    is_divisible,
    joined,
    sent,
)
from persist_ingest.sources.port import Unforeseen

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

SPARK_BYTES_MIN: Final = 16 << 20
"""Upstream bytes of a step from which on a Spark job is worth its start."""
KEY_RANGES: Final = 4
"""Ranges of an export's keys where there is Spark. Fixed, so that what is kept of them lasts as clusters change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """How a pipeline runs; none of it changes what it writes.

    ``tick_ms``: between the beginnings of two steps. ``commit_steps_late``: steps that the upstream keeps data for
    after it is durable. ``retain_ms``: how far back data shards stay readable. ``minter``: endpoints of
    TimestampMinter, or empty to mint here. ``told_ms``: between two words to ``status``; ``forget_ms``: between two
    compactions of the bindings; ``recount_ms``: between two counts of all rows, see ``Recount`` (0: none). ``pace``:
    of snapshots that it goes on with. ``state_dir``: where the newest rows of upserts are kept on each machine that
    looks them up; empty: in the user's folder of temporary files. ``key_ranges``: how many parts of an export's keys
    upserts are looked up in side by side, where there is Spark, and one after another here; 0: 4 where there is Spark,
    else 1. Another number has what is kept made anew.
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
    key_ranges: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.key_ranges <= RANGES_MAX:
            raise InvalidArgument(f"key_ranges is between 0 and {RANGES_MAX}", key_ranges=self.key_ranges)

    def checked(self) -> "PipelineOptions":
        """These, where they can be: raises InvalidArgument for a folder that can never be made on this machine."""
        if self.state_dir:
            with told():
                check_folder(self.state_dir)
        return self

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

    def ranges(self, asked: int) -> int:
        """How many an export's keys are divided into, where so many are asked for."""
        return asked or (1 if self.session is None else KEY_RANGES)

    def wants(self, weight: int) -> bool:
        """A step of this many bytes goes to Spark."""
        return self.session is not None and weight >= self.spark_bytes_min

    def run(self, works: Sequence[Work], report: Callable[[int], None]) -> list[Done]:
        """The results of all works, or of ranges of their keys. Raises what ``carry_out`` does, and what Spark does."""
        weight = sum(work.task.weight for work in works)
        # An ordered task refers to what came before, which is remembered in this process.
        if self.session is None or not self.wants(weight) or any(work.task.ordered for work in works):
            return [carry_out(work, report) for work in joined(works)]
        self.jobs += 1
        context = self.session().sparkContext
        given = context.parallelize(list(enumerate(works)), len(works))
        if any(is_divisible(work.task) for work in works):
            answers = _by_ranges(given, works[0].exports)
        else:
            answers = given.mapPartitions(_on_executor).collect()
        done: list[Done] = []
        for answer in answers:
            # What the others wrote stays unnamed, for the sweeper.
            if isinstance(answer, PersistError):
                raise answer
            done.append(answer)
        report(sum(each.rows for each in done))
        return done


def _by_ranges(given: "RDD[tuple[int, Work]]", exports: Mapping[str, ExportPlan]) -> "list[Done | PersistError]":
    """Rows are sent to the tasks that have the ranges of their keys, and what those know of them."""
    ranges = next(iter(exports.values())).ranges
    for plan in exports.values():
        # Executors may be on this machine.
        let_go(plan.contents)
    brought = given.mapPartitions(partial(_sending, ranges=ranges)).partitionBy(ranges, _as_it_is)
    try:
        answers: list[Done | PersistError] = brought.mapPartitionsWithIndex(
            partial(_in_range, exports=exports, ranges=ranges)
        ).collect()
        return answers
    finally:
        # Else its files stay until the JVM happens to look.
        brought._jrdd.rdd().cleanShuffleDependencies(False)


def _as_it_is(number: int) -> int:
    return number


def _sending(works: Iterator[tuple[int, Work]], *, ranges: int) -> Iterator[tuple[int, Sent | PersistError]]:
    for number, work in list(works):
        try:
            yield from sent(work, number, ranges)
        except Unforeseen:
            raise
        except PersistError as error:
            yield 0, error


def _in_range(
    number: int, given: Iterator[tuple[int, Sent | PersistError]], *, exports: Mapping[str, ExportPlan], ranges: int
) -> Iterator[Done | PersistError]:
    """What became of a range. What was sent may be an error, which is what becomes of the step then."""
    rest = iter(given)
    try:
        answer: Done | PersistError = carry_out_range(exports, KeyRange(number, ranges), _checked(rest))
    except Unforeseen:
        raise
    except PersistError as error:
        answer = error
    # SUBTLE: the iterator is exhausted, or Spark would throw this Python worker away.
    for _ in rest:
        pass
    yield answer


def _checked(given: Iterator[tuple[int, Sent | PersistError]]) -> Iterator[Sent]:
    for _, each in given:
        if isinstance(each, PersistError):
            raise each
        yield each


def _on_executor(works: Iterator[tuple[int, Work]]) -> Iterator[Done | PersistError]:
    """What became of each work. Definite errors come back as they are, and are not tried again by Spark."""
    # SUBTLE: the iterator is exhausted, or Spark would throw this Python worker away.
    for _, work in list(works):
        try:
            answer: Done | PersistError = carry_out(work)
        except Unforeseen:
            raise  # which may be of this executor alone
        except UsageError as error:
            answer = error
        yield answer
