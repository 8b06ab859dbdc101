"""Making the data source known to a session."""

from typing import TYPE_CHECKING

from pyspark_persist.source import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_persist.application import Application
    from pyspark_persist.read.keeper import Address


def register(spark: "SparkSession") -> None:
    """Make ``format("persist")`` known to this session, also where Spark could not discover it by itself.

    From then on this process holds what is read until the session stops: reads survive tasks of any length (options
    ``holdTtlSeconds``, ``holdMaxSeconds``); and SQL has the table functions ``persist_snapshot`` and
    ``persist_changes``. Neither with Spark Connect, whose server is elsewhere.

    Call it again in each thread of yours that writes by ``df.write``: Spark looks for data sources in the session of
    the thread, and calls them missing (DATA_SOURCE_NOT_FOUND) where a new thread has none; this gives it one.
    Raises InvalidArgument where the Python that Spark's processes run with does not have this package.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        spark.dataSource.register(DefaultSource)
        return
    from pyspark_persist.application import activate, application_of, check_python
    from pyspark_persist.functions import register_functions
    from pyspark_persist.read.keeper import keeper_of

    check_python(context)
    activate(spark)
    try:
        address = keeper_of(context).address
    except OSError:  # no loopback here: planners hold what they plan
        address = None
    spark.dataSource.register(_kept_source(address, context.defaultParallelism, application_of(spark)))
    register_functions(spark, address)


def _kept_source(address: "Address | None", parallelism: int, whose: "Application | None") -> type[DefaultSource]:

    class KeptSource(DefaultSource):
        """Pickled by value, so that it takes along to the planners what only the driver's own process knows."""

        keeper = address
        cores = parallelism
        application = whose

    return KeptSource
