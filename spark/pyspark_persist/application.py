"""What the driver's process knows of its session and sees to, which the processes that Spark plans in cannot."""

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from persist import InvalidArgument

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Application = tuple[str, str, str]
"""A session's user, and its application's id and name."""

QUERY_ID: Final = "sql.streaming.queryId"
"""The property under which Spark says to jobs, and to tasks, for which streaming query they run."""

_LACKS: Final = 3
_PROBE: Final = f"""\
import importlib.util, sys
sys.exit({_LACKS} * any(importlib.util.find_spec(name) is None for name in ("persist", "pyspark_persist")))
"""
_PROBE_SECONDS: Final = 60
_probed: Final[set[str]] = {sys.executable}


def application_of(spark: "SparkSession") -> Application | None:
    """The session's; None with Spark Connect, whose server is elsewhere."""
    context = getattr(spark, "_sc", None)
    if context is None:
        return None
    return str(context.sparkUser()), str(context.applicationId), str(context.appName)


def query_name(query_id: str) -> str:
    """What shards call a streaming query, among all that count versions."""
    return f"spark:{query_id}"


def query_of(spark: "SparkSession") -> str:
    """The streaming query whose ``foreachBatch`` this thread runs; empty of none, and with Spark Connect."""
    context = getattr(spark, "_sc", None)
    query = None if context is None else context.getLocalProperty(QUERY_ID)
    return query_name(query) if query else ""


def activate(spark: "SparkSession") -> None:
    """Make it this thread's session, in which Spark looks for data sources: ``df.write`` finds none in a new thread."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def check_python(context: "SparkContext") -> None:
    """Refuse a Python for Spark's processes that lacks this package: they would fail one by one, later, by a traceback.

    One that is not on this machine, or gets packages from Spark (``--py-files``), is not looked at.
    Raises InvalidArgument.
    """
    python = shutil.which(context.pythonExec)
    if python is None or python in _probed or context._python_includes:
        return
    try:
        found = subprocess.run([python, "-c", _PROBE], capture_output=True, check=False, timeout=_PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return
    if found.returncode == _LACKS:
        raise InvalidArgument(
            "the Python that Spark's processes run with does not have persist",
            hint="set PYSPARK_PYTHON to one that has, such as this process's, before Spark starts",
            spark=python,
            this=sys.executable,
        )
    _probed.add(python)
