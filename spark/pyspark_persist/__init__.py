"""Spark data source ``persist``: batch and streaming, read and write, exactly once.

    import pyspark_persist
    pyspark_persist.register(spark)                      # auto-registered where Spark can import this package
    spark.read.format("persist").option("location", "./data").option("shard", "s…").option("asOf", 12).load()

``PersistTable`` is the same for Python callers. Every option is listed in ``names.py``.
"""

from typing import TYPE_CHECKING, Any

from persist import extras

# SUBTLE: Spark imports every ``pyspark_*`` package at its first query, and one that fails hides all of them. So this
# module imports nothing but Spark's own classes; the rest comes with the first use.
with extras.extra("spark"):
    from pyspark_persist.registering import register
    from pyspark_persist.source import DefaultSource

if TYPE_CHECKING:
    from pyspark_persist.query.asking import sql
    from pyspark_persist.query.runner import SparkRunner
    from pyspark_persist.table import ChangeResult, CommitResult, MergeBuilder, PersistTable
    from pyspark_persist.together import Timedomain, timedomain

__all__ = [
    "ChangeResult",
    "CommitResult",
    "DefaultSource",
    "MergeBuilder",
    "PersistTable",
    "SparkRunner",
    "Timedomain",
    "register",
    "sql",
    "timedomain",
]


def __getattr__(name: str) -> Any:
    if name in {"ChangeResult", "CommitResult", "MergeBuilder", "PersistTable"}:
        from pyspark_persist import table

        return getattr(table, name)
    if name in {"Timedomain", "timedomain"}:
        from pyspark_persist import together

        return getattr(together, name)
    if name == "SparkRunner":
        from pyspark_persist.query.runner import SparkRunner

        return SparkRunner
    if name == "sql":
        from pyspark_persist.query.asking import sql

        return sql
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
