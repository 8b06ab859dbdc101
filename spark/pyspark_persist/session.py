"""A local Spark session that is quiet, uses this interpreter for its workers, and finds the same packages."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17

_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
"""


def java_problem() -> str | None:
    """One sentence about what to do when Spark could not start a JVM here; None when it can."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).is_file():
        return f"Spark needs Java {JAVA_MIN} or newer and none was found: run `make setup`, or set JAVA_HOME."
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', answer.stderr)
    if found is None or int(found.group(1)) < JAVA_MIN:
        version = found.group(1) if found else "unknown"
        return f"Spark needs Java {JAVA_MIN} or newer, not {version} ({java}): run `make setup`, or set JAVA_HOME."
    return None


def local_session(name: str, scratch: Path, *, cores: int = 2, retries: int = 2) -> "SparkSession":
    """A session on ``local[cores, retries]`` without UI whose files go under ``scratch``."""
    from pyspark.sql import SparkSession

    export_python()
    # A host whose own name does not resolve would stop Spark at once.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    scratch.mkdir(parents=True, exist_ok=True)
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J)
    builder = (
        SparkSession.builder.master(f"local[{cores},{retries}]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.extraJavaOptions", f'"-Dlog4j2.configurationFile={log4j}" "-Djava.io.tmpdir={scratch}"')
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(cores))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
    )
    with _chatter_to(scratch / "start.log"):
        return builder.getOrCreate()


@contextlib.contextmanager
def session_of(name: str, scratch: Path) -> "Iterator[SparkSession]":
    """The session of this process, or one made as by ``local_session``, which ends with the block."""
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession()
    session = local_session(name, scratch) if found is None else found
    try:
        yield session
    finally:
        if found is None:
            session.stop()


@contextlib.contextmanager
def _chatter_to(log: Path) -> Iterator[None]:
    """Send what the JVM says while it starts to a file; if it does not start, say it after all."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("wb") as sink:
        os.dup2(sink.fileno(), 2)
    try:
        yield
    except BaseException:
        os.write(kept, log.read_bytes())
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def export_python() -> None:
    """Make Spark's Python processes this interpreter, with this process's import path."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    roots = [root for root in package_roots() if root not in known]
    os.environ["PYTHONPATH"] = os.pathsep.join([*roots, *filter(None, known)])


def package_roots() -> list[str]:
    """The folders that hold the packages Spark's processes must import."""
    import persist
    import pyspark_persist

    files = [str(module.__file__) for module in (persist, pyspark_persist)]
    return list(dict.fromkeys(str(Path(file).resolve().parent.parent) for file in files))
