"""A real Spark cluster on loopback: a master and two workers with one core each, every process a JVM of its own.

The workers have different addresses, since Spark starts no second attempt of a task on a host that runs the first.
"""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

from persist.testing.servers import free_port
from pyspark_persist.session import export_python

HOME = Path(pyspark.__file__).parent
SECONDS = 120
ADDRESSES = ("127.0.0.2", "127.0.0.3")


@contextlib.contextmanager
def spark_cluster(directory: Path) -> Iterator[str]:
    """Yields the master's URL. Nothing survives the block but the logs in ``directory``."""
    export_python()
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as running:
        running.enter_context(_jvm(directory, "master", "127.0.0.1", "--host", "127.0.0.1", "--port", str(port)))
        _wait_for(directory, "127.0.0.1", port)
        for address in ADDRESSES:
            place = ["--host", address, "--cores", "1", "--memory", "600m", "--work-dir", str(directory / address)]
            running.enter_context(_jvm(directory, "worker", address, *place, master))
        yield master


@contextlib.contextmanager
def _jvm(directory: Path, what: str, address: str, *arguments: str) -> Iterator[None]:
    name = f"org.apache.spark.deploy.{what}.{what.capitalize()}"
    environ = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": address,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
        "SPARK_NO_DAEMONIZE": "1",
    }
    command = [str(HOME / "bin" / "spark-class"), name, "--webui-port", "0", *arguments]
    with (directory / f"{what}-{address}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environ, cwd=directory, start_new_session=True)
    try:
        yield
    finally:
        # SIGTERM: a worker ends its executors with itself.
        process.terminate()
        process.wait(SECONDS)


def _wait_for(directory: Path, host: str, port: int) -> None:
    for _ in range(SECONDS * 10):
        with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
            return
        time.sleep(0.1)
    raise AssertionError((directory / f"master-{host}.log").read_text()[-2000:])
