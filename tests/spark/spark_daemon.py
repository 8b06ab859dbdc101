"""Spark's daemon of Python workers for tests, named by ``spark.python.daemon.module``: what workers import is there.

It forks its workers, which then import nothing, and look for cycles among their own objects only: after each task
Spark's collects all garbage. Nothing that starts threads or speaks gRPC may be imported here. The processes of
``test_deaths.py`` have Spark's own.
"""

import gc
import importlib
import sys

from pyspark.daemon import manager

PRELOADED = (
    "pyarrow.compute", "pyarrow.parquet", "persist", "persist_ingest.location", "pyspark_persist", "spark_faults",
    "pyspark_persist.read.planning", "pyspark_persist.read.reading", "pyspark_persist.read.streaming",
    "pyspark_persist.write.writing",
)  # fmt: skip

if __name__ == "__main__":
    for name in (*PRELOADED, *sys.argv[1:]):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    manager()
