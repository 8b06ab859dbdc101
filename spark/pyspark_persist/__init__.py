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
    from pyspark_persist.source import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_persist.table import CommitResult, PersistTable

__all__ = ["CommitResult", "DefaultSource", "PersistTable", "register"]


def register(spark: "SparkSession") -> None:
    """Make ``format("persist")`` known to this session, also where Spark could not discover it by itself.

    From then on this process holds what is read until the session stops: reads survive tasks of any length (options
    ``holdTtlSeconds``, ``holdMaxSeconds``). Not with Spark Connect, whose server is elsewhere.
    """
    from pyspark_persist.read.keeper import keeper_of

    context = getattr(spark, "_sc", None)
    try:
        address = None if context is None else keeper_of(context).address
    except OSError:  # no loopback here: planners hold what they plan
        address = None

    class KeptSource(DefaultSource):
        """Pickled by value, so that it takes the keeper's address along to the planners."""

        keeper = address

    spark.dataSource.register(DefaultSource if address is None else KeptSource)


def __getattr__(name: str) -> Any:
    if name in {"CommitResult", "PersistTable"}:
        from pyspark_persist import table

        return getattr(table, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
