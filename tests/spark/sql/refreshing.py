"""Views on Spark, refreshed by a process that is to die: ``python refreshing.py LOCATION SCRATCH PLACE NUMBER``.

PLACE: ``job`` (while executors work), ``written`` (parts are in Blob, nothing is appended), ``appended`` (it is, and
the process does not know). NUMBER: at which refresh.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import persist
from persist.client.collections.views import kept
from pyspark_persist import SparkRunner
from pyspark_persist.query import runner
from pyspark_persist.session import local_session

POLL = 0.02


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(place: str, number: int, spark: Any) -> None:
    rows, engine = vars(kept)["KeptRows"], vars(runner)
    count = 0
    appended, computed = rows.append_parts, engine["difference"]

    async def append_parts(self: Any, *given: Any) -> bool:
        nonlocal count
        count += 1
        if place == "written" and count >= number:
            die()
        done = await appended(self, *given)
        if place == "appended" and count >= number:
            die()
        return done

    def difference(session: Any, refresh: Any) -> Any:
        if place == "job" and count + 1 >= number:
            threading.Thread(target=die_in_job, args=(spark,), daemon=True).start()
        return computed(session, refresh)

    rows.append_parts = append_parts
    engine["difference"] = difference


def die_in_job(spark: Any) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not tracker.getActiveJobsIds():
        time.sleep(POLL)
    die()


def main(location: str, scratch: str, place: str, number: int) -> None:
    spark = local_session("refreshing", Path(scratch))
    spark.sparkContext.setLogLevel("OFF")
    die_at(place, number, spark)
    with persist.embedded(location) as client, client.views(SparkRunner(spark)) as views:
        while True:
            views.work()
            print(*(f"{each.name}={each.upper.time}" for each in views.states()), flush=True)
            time.sleep(0.2)


if __name__ == "__main__":
    # A group of its own, so that driver, JVM and Python processes die together.
    os.setpgrp()
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
