"""A year of real flights through Spark executors into a shard, read back at several times, checked against the source.

Run it with ``python -m examples.flights``. Exit code 0 when every answer agrees with the source file,
1 when one differs or something fails. What is written: see ``truth.py``.
"""

import argparse
import contextlib
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import persist
from examples import report
from examples.server import all_services
from examples.truth import COLUMNS, DAY_MS, KEY, VAL, WEEK_MS, Truth, same_rows, source_file
from persist.runtime import system
from pyspark_persist.session import java_problem, session_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLLOW_SECONDS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing the job did: rows it moved, how long it took, whether the answer agrees (None: no such thing)."""

    name: str
    detail: str
    rows: int
    seconds: float | None
    agrees: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One snapshot: when, what it holds, and whether it is the source file's answer."""

    as_of: int
    rows: int
    scheduled: int
    cancelled: int
    seconds: float
    agrees: bool


@dataclass(slots=True)
class FlightsOutcome:
    """Everything the job found."""

    steps: list[Step] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Every answer was the source file's, and there were answers."""
        checks = [step.agrees for step in self.steps if step.agrees is not None] + [r.agrees for r in self.readings]
        return bool(checks) and all(checks)


class Job:
    """One run over one fresh shard at the location ``where`` (data source options). ``truth``: what answers must be."""

    def __init__(self, spark: "SparkSession", where: Mapping[str, str], csv: Path, truth: Truth, *, weeks: int) -> None:
        self.spark = spark
        self.where = dict(where)
        self.csv = csv
        self.truth = truth
        self.shard = persist.ShardId.new()
        self.outcome = FlightsOutcome()
        self.start = truth.first_week_ms
        self.weeks = weeks
        self.written_at = 0.0
        self.end = self.start + weeks * WEEK_MS

    def run(self, client: "persist.Client") -> FlightsOutcome:
        """Write week by week, followed by ``client``, then read snapshots and changes back."""
        from pyspark_persist import register

        register(self.spark)
        schema = persist.Schema(key=KEY, val=VAL)
        client.open_writer(self.shard, schema=schema)
        follower = Follower(client, self.shard, self.end)
        follower.start()
        self._write()
        self._snapshots(self._times())
        self._changes()
        self._follow(follower)
        return self.outcome

    # ---- writing -------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        weeks = self.weeks
        with _watch() as watch:
            flights = self._flights().cache()
            count = flights.count()
        self.outcome.steps.append(Step(name="parse", detail="CSV by Spark", rows=count, seconds=watch.seconds))
        written = 0
        with _watch() as watch, report.progress("writing weeks", weeks) as advance:
            for week in range(weeks):
                written += self._write_week(flights, week)
                advance()
        self.written_at = system().monotonic()
        self.outcome.steps.append(
            Step(name="write", detail=f"{weeks} weekly commits by executors", rows=written, seconds=watch.seconds)
        )

    def _write_week(self, flights: "DataFrame", week: int) -> int:
        lower, upper = self.start + week * WEEK_MS, self.start + (week + 1) * WEEK_MS
        frame = events(flights, lower, upper)
        expected = 0 if week == 0 else lower
        writer = frame.write.format("persist").options(**self.where).option("shard", self.shard)
        writer.option("expectedUpper", expected).option("newUpper", upper).mode("append").save()
        return self.truth.updates_between(lower, upper)

    def _flights(self) -> "DataFrame":
        from pyspark.sql import functions as f

        raw = self.spark.read.csv(str(self.csv), header=True, schema=_CSV, nullValue="NA", emptyValue="")
        departs = f.expr("time_hour + make_dt_interval(0, 0, minute, 0)")
        known = {
            "day": f.make_date("year", "month", "day"),
            "departs": departs,
            "status": f.when(f.col("dep_time").isNotNull(), "flown").otherwise("cancelled"),
        }
        columns = [known.get(name, f.col(name)).alias(name) for name in COLUMNS]
        return raw.select(*columns, f.unix_millis(departs).alias("sched_ms"))

    # ---- reading -------------------------------------------------------------------------------------------------

    def _times(self) -> list[int]:
        """Instants to look at: early, on no boundary, on a commit's boundary, just before one, and the very end."""
        weeks = self.weeks
        span = weeks * WEEK_MS
        noon = self.start + (span // 2) // DAY_MS * DAY_MS + DAY_MS // 2
        boundary = self.start + (3 * weeks // 4) * WEEK_MS
        return sorted({self.start + span // 8, self.start + span // 3, noon, boundary - 1, boundary, self.end - 1})

    def _snapshots(self, times: Sequence[int]) -> None:
        for as_of in times:
            with _watch() as watch:
                table = self._read().option("asOf", as_of).load().toArrow()
            self.outcome.readings.append(_reading(as_of, table, self.truth.snapshot(as_of), watch.seconds))
        self._by_carrier(times[-1])

    def _by_carrier(self, as_of: int) -> None:
        """The same by aggregation on executors: rows and delays of each carrier."""
        from pyspark.sql import functions as f

        with _watch() as watch:
            frame = self._read().option("asOf", as_of).option("columns", "carrier,dep_delay").load()
            sums = frame.groupBy("carrier").agg(f.count("*").alias("n"), f.sum("dep_delay").alias("s")).collect()
        found = {row["carrier"]: (row["n"], row["s"]) for row in sums}
        grouped = self.truth.snapshot(as_of).group_by("carrier").aggregate([([], "count_all"), ("dep_delay", "sum")])
        expected = {row["carrier"]: (row["count_all"], row["dep_delay_sum"]) for row in grouped.to_pylist()}
        rows = sum(n for n, _ in expected.values())
        self.outcome.steps.append(
            Step(
                name="aggregate",
                detail="delays of each carrier",
                rows=rows,
                seconds=watch.seconds,
                agrees=found == expected,
            )
        )

    def _changes(self) -> None:
        """One week of the change feed: each departure shows as an update of its row."""
        week = self.weeks // 2
        lower, upper = self.start + week * WEEK_MS, self.start + (week + 1) * WEEK_MS
        with _watch() as watch:
            feed = (
                self._read().option("readChangeFeed", "true").option("computeUpdates", "true").option("columns", "dest")
            )
            counted = (
                feed.option("startingVersion", lower)
                .option("endingVersion", upper - 1)
                .load()
                .groupBy("_change_type")
                .count()
            )
            found = {row["_change_type"]: row["count"] for row in counted.collect()}
        departures = self.truth.departures_between(lower, upper)
        appearances = self.truth.updates_between(lower, upper) - 2 * departures
        expected = {"insert": appearances, "update_preimage": departures, "update_postimage": departures}
        expected = {kind: count for kind, count in expected.items() if count}
        self.outcome.steps.append(
            Step(
                name="change feed",
                detail="one week, pre and post images",
                rows=sum(found.values()),
                seconds=watch.seconds,
                agrees=found == expected,
            )
        )

    def _follow(self, follower: "Follower") -> None:
        """What ``listen`` delivered must be every update, interval by interval, and add up to the last snapshot."""
        follower.join(FOLLOW_SECONDS)
        agrees = follower.finished_at is not None and follower.agrees_with(self.truth)
        detail = f"failed: {follower.error}"
        if follower.finished_at is not None:
            behind_ms = max(0.0, follower.finished_at - self.written_at) * 1000
            detail = f"every update, {behind_ms:.0f} ms after the last"
        self.outcome.steps.append(Step(name="listen", detail=detail, rows=follower.rows, seconds=None, agrees=agrees))

    def _read(self) -> Any:
        return self.spark.read.format("persist").options(**self.where).option("shard", self.shard)


class Follower(threading.Thread):
    """Listens to the shard from its beginning until ``end``, while the job writes."""

    def __init__(self, client: "persist.Client", shard: persist.ShardId, end: int) -> None:
        super().__init__(name="follower", daemon=True)
        self.client, self.shard, self.end = client, shard, end
        self.tables: list[pa.Table] = []
        self.marks: list[tuple[int, int]] = []
        self.rows = 0
        self.finished_at: float | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Collect updates and progress until the shard is complete up to ``end``."""
        try:
            reader = self.client.open_reader(self.shard)
            for event in reader.listen(as_of=0):
                if isinstance(event, persist.Updates):
                    self.tables.append(pa.table(event.table))
                    self.rows += event.table.num_rows
                    continue
                self.marks.append((event.upper.time, self.rows))  # type: ignore[arg-type]  # the shard is not closed
                if event.upper.beyond(self.end - 1):
                    break
            self.finished_at = system().monotonic()
        except Exception as error:  # the thread's owner reports it as a failed check
            self.error = error

    def agrees_with(self, truth: Truth) -> bool:
        """At every frontier the updates are as many as the source says; all together they are its last snapshot."""
        if any(seen != truth.updates_between(0, upper) for upper, seen in self.marks):
            return False
        updates = pa.concat_tables(self.tables)
        summed = updates.group_by(list(COLUMNS)).aggregate([("diff", "sum")])
        left = summed.filter(pc.not_equal(summed["diff_sum"], 0))
        if not pc.all(pc.equal(left["diff_sum"], 1)).as_py():
            return False
        return same_rows(left.select(list(COLUMNS)), truth.snapshot(self.end - 1))


def events(flights: "DataFrame", lower: int, upper: int) -> "DataFrame":
    """The updates with lower <= time < upper: appearances a week ahead; on the day the retraction and the flown row."""
    from pyspark.sql import functions as f

    unknown = ("tailnum", "dep_delay", "arr_delay", "air_time")
    nulls = {name: f.lit(None).cast(flights.schema[name].dataType) for name in unknown}
    before = [
        f.lit("scheduled").alias("status") if name == "status" else nulls.get(name, f.col(name)).alias(name)
        for name in COLUMNS
    ]
    after = [f.col(name) for name in COLUMNS]

    def event(row: list[Any], time: Any, diff: int) -> Any:
        return f.struct(*row, time.alias("_ts"), f.lit(diff).cast("bigint").alias("_diff"))

    time = f.col("sched_ms")
    all_three = f.array(event(before, time - WEEK_MS, 1), event(before, time, -1), event(after, time, 1))
    near = flights.where((time >= lower) & (time < upper + WEEK_MS))
    exploded = near.select(f.explode(all_three).alias("event")).select("event.*")
    return exploded.where((f.col("_ts") >= lower) & (f.col("_ts") < upper))


def _reading(as_of: int, found: pa.Table, expected: pa.Table, seconds: float) -> Reading:
    status = found["status"]
    return Reading(
        as_of=as_of,
        rows=found.num_rows,
        scheduled=int(pc.sum(pc.equal(status, "scheduled")).as_py() or 0),
        cancelled=int(pc.sum(pc.equal(status, "cancelled")).as_py() or 0),
        seconds=seconds,
        agrees=same_rows(found, expected),
    )


@dataclass(slots=True)
class _Watch:
    seconds: float = 0.0


@contextlib.contextmanager
def _watch() -> Iterator[_Watch]:
    watch, started = _Watch(), system().monotonic()
    try:
        yield watch
    finally:
        watch.seconds = system().monotonic() - started


_CSV: Final = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,"
    " arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT,"
    " distance INT, hour INT, minute INT, time_hour TIMESTAMP"
)


def run(data: Path, *, weeks: int | None = None, truth: Truth | None = None) -> FlightsOutcome:
    """The whole job under ``data``: services, Spark, a fresh shard. ``truth``: other answers to compare with."""
    data.mkdir(parents=True, exist_ok=True)
    with _watch() as loading:
        csv = source_file(data)
        source = Truth.read(csv)
    with contextlib.ExitStack() as stack:
        with _watch() as starting:
            spark = stack.enter_context(session_of("persist flights", data / "spark"))
            endpoint = stack.enter_context(all_services(data / "persist"))
        job = Job(spark, {"endpoint": endpoint}, csv, truth or source, weeks=min(weeks or source.weeks, source.weeks))
        job.outcome.steps.append(
            Step(name="source", detail="flights CSV, by Arrow", rows=source.rows, seconds=loading.seconds)
        )
        job.outcome.steps.append(Step(name="start", detail="Spark and the services", rows=0, seconds=starting.seconds))
        client = stack.enter_context(persist.connect(endpoint))
        return job.run(client)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, and say by the exit code whether every answer was right."""
    parser = argparse.ArgumentParser(prog="flights", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--data", type=Path, help="keep shards and files here (default: a folder that is removed again)"
    )
    parser.add_argument("--weeks", type=int, help="write only the first weeks of the year")
    given = parser.parse_args(argv)
    problem = java_problem()
    if problem is not None:
        print(problem, file=sys.stderr)
        return 1
    with contextlib.ExitStack() as stack:
        data = given.data or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="persist-flights-", ignore_cleanup_errors=True))
        )
        started = system().monotonic()
        try:
            outcome = run(data, weeks=given.weeks)
        except persist.PersistError as error:
            print(f"flights: {error}", file=sys.stderr)
            return 1
        report.show(outcome.steps, outcome.readings, agrees=outcome.agrees, seconds=system().monotonic() - started)
        return 0 if outcome.agrees else 1


if __name__ == "__main__":
    sys.exit(main())
