"""The server of ``spark_forks`` beside a program whose JVM begins meanwhile.

Spark gives a Python process of its planners 10 s to come, which no setting changes and which an interpreter that
imports us does not keep to on a busy machine: a fork does.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PRELOAD = str(Path(__file__).parent)


@contextmanager
def spark_forks(*folders: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """A server for the Python processes of JVMs that begin in this block, which find modules in these folders, too.

    Its socket, and what waits until it answers: before that, such a process is none of its forks.
    """
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*folders, PRELOAD, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory(prefix="spark-forks-") as folder:
        address = f"{folder}/socket"
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([PRELOAD, *filter(None, sys.path)]),
            "PYTHONHASHSEED": "0",
        }
        os.environ["PERSIST_TEST_SPARK_FORKS"] = address
        with subprocess.Popen(
            [sys.executable, "-u", "-m", "spark_forks", address], stdin=subprocess.PIPE, env=environ
        ) as server:
            yield address, lambda: _answered(address, server)
            server.communicate()


def _answered(address: str, server: "subprocess.Popen[bytes]") -> None:
    """Return once the server answers. Raises RuntimeError: it ended."""
    while server.poll() is None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            try:
                asking.connect(address)
                return
            except OSError:
                time.sleep(0.05)
    raise RuntimeError(f"the server of forks ended with {server.returncode}")
