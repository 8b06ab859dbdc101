"""``persist admin compact --engine spark``: executors merge ranges of keys, this process commits each shard once."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from persist.errors import UsageError
from persist.extras import extra
from persist.typed import Record
from persist_cli.options import LocationTarget
from persist_cli.outcomes import Outcomes
from persist_cli.terminal import counted, note, print_json, print_table

_COLUMNS = ("shard", "batches", "rows", "rows_after", "bytes", "bytes_after", "parts_reused", "applied")


def compact(target: LocationTarget, shards: list[str], *, master: str | None, pieces: int | None, json: bool) -> int:
    """Compact each shard into one run. The exit code.

    Raises UsageError without Java; LeaseExpired, CorruptData, LocationError of the only shard there is.
    """
    from pyspark_persist import PersistTable, register

    where = {name: value for name in ("location", "blob", "consensus") if (value := getattr(target, name)) is not None}
    outcomes = Outcomes(alone=len(shards) == 1)
    with session(master, "persist admin compact") as spark:
        register(spark)
        for shard in shards:
            with outcomes.of(shard):
                done = PersistTable.forShard(spark, shard, **where).compact(pieces=pieces)
                outcomes.rows.append({"shard": shard} if done is None else _row(shard, done))
    rows = outcomes.rows
    if json:
        print_json({"shards": rows})
        return outcomes.code
    columns = (*_COLUMNS, "error") if outcomes.failed else _COLUMNS
    print_table(columns, [[row.get(name) for name in columns] for row in rows])
    outcomes.say(target.words)
    note(f"{counted(sum('rows' in row for row in rows), 'shard')} compacted, {len(rows)} looked at")
    return outcomes.code


def _row(shard: str, done: Any) -> Record:
    return {
        "shard": shard,
        "batches": done.batches,
        "rows": done.rows_before,
        "rows_after": done.rows_after,
        "bytes": done.bytes_before,
        "bytes_after": done.bytes_after,
        "parts_reused": done.parts_reused,
        "applied": done.applied,
    }


@contextlib.contextmanager
def session(master: str | None, name: str) -> Iterator[Any]:
    """A session on the cluster named, or on this machine."""
    with extra("spark"):
        from pyspark.sql import SparkSession

        from pyspark_persist.session import java_problem, local_session
    problem = java_problem()
    if problem is not None:
        raise UsageError(problem)
    with tempfile.TemporaryDirectory() as scratch:
        if master is None:
            spark = local_session(name, Path(scratch))
        else:
            spark = SparkSession.builder.master(master).appName(name).getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()
