"""Spark's Python processes as forks of one that has imported what they need.

A JVM starts some seven daemons, and an interpreter for each query of a stream: half a CPU second of imports each. Such
a process hands its files, words and environment over as soon as it begins (``hand_over``, by ``sitecustomize``) to a
server (``python -m spark_forks``), whose fork does what it was to do. It lives on as the shadow of its fork: signals
are passed on, and when one of them ends, however that comes, so does the other.
"""

import fcntl
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import sys
from pathlib import Path

JVM = "PERSIST_TEST_SPARK_JVM"
"""Names, in the environment of a fork, the process that started its shadow."""
PRELOADED = (
    "encodings.idna", "numpy", "pandas", "pyarrow.compute", "persist.aio", "persist.catalog",
    "persist.client.blocking.client", "persist.client.shard.compaction", "persist.machine.parts.merging",
    "persist.storage.blob.file", "persist.storage.consensus.sqlite", "persist_ingest.pipeline.work",
    *(f"pyspark_persist.{name}" for name in (
        "change.among", "change.pairing", "change.source", "change.tasks", "compact", "read.streaming", "write.writing",
    )),
    "pyspark.worker", "pyspark.sql.streaming.datasource",
    *(f"pyspark.sql.worker.{name}" for name in (
        "commit_data_source_write", "create_data_source", "lookup_data_sources", "plan_data_source_read",
        "python_streaming_sink_runner", "write_into_data_source",
    )),
)  # fmt: skip
GARBAGE = 50_000
"""Objects between two looks for cycles, which importing makes none of."""

_ARCHIVES = (".zip", ".jar")
"""Spark has its own packages first on the path, as such: each process lists them, and compiles what comes from them."""
_STANDARD = (0, 1, 2)
_look = gc.collect


def hand_over(address: str) -> None:
    """Become the shadow of a fork. Returns where no server answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        try:
            server.connect(address)
        except OSError:
            return
        path = [each for each in sys.path if not each.endswith(_ARCHIVES)]
        words = sys.orig_argv[sys.orig_argv.index("-m") + 1 :]
        socket.send_fds(server, [b"."], _STANDARD)
        server.sendall(marshal.dumps((words, dict(os.environ), os.getcwd(), path, os.getppid())))
        server.shutdown(socket.SHUT_WR)
        pid = int(server.recv(20) or 0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in _STANDARD:
            os.dup2(nothing, number)
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(each, lambda number, _: os.kill(pid, number))
        server.recv(1)  # nothing comes: it is closed when the fork ends
        os._exit(0)  # a JVM asks none of them how it ended


def serve(address: str) -> None:
    """Fork for each process that asks. Returns in forks, and once standard input has ended."""
    for module in PRELOADED:
        importlib.import_module(module)
    _look()
    gc.freeze()
    gc.collect = _look_and_freeze
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(address)
        listening.listen(64)
        while sys.stdin not in (ready := select.select([listening, sys.stdin], [], [])[0]):
            assert ready
            connection, _ = listening.accept()
            _, files, _, _ = socket.recv_fds(connection, 1, len(_STANDARD))
            given = b"".join(iter(lambda: connection.recv(1 << 16), b""))  # noqa: B023  # read before the next comes
            pid = os.fork() if files and given else 0
            if files and given and not pid:
                listening.close()
                _be(connection, files, *marshal.loads(given))
                return
            for file in files:
                os.close(file)
            if pid:
                connection.sendall(str(pid).encode())
            connection.close()


def _be(
    shadow: socket.socket,
    files: list[int],
    words: list[str],
    environment: dict[str, str],
    directory: str,
    path: list[str],
    jvm: int,
) -> None:
    """Be what the process was to be that handed itself over."""
    for number, file in zip(_STANDARD, files, strict=True):
        os.dup2(file, number)
        os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A signal that ends this process when its shadow's end of the connection is closed.
    fcntl.fcntl(shadow, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(shadow, fcntl.F_SETFL, fcntl.fcntl(shadow, fcntl.F_GETFL) | os.O_ASYNC)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment, **{JVM: str(jvm)})
    # By which tests find those of one kind.
    Path("/proc/self/comm").write_text(words[-1].rpartition(".")[2])
    sys.path[:] = [directory, *path]
    sys.argv = [words[0], *words[1:]]
    sys.orig_argv = [sys.executable, "-m", *words]
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    shadow.close()


def _look_and_freeze(generation: int = 2) -> int:
    """After each task a worker looks for cycles in all it has: once is enough for what stays."""
    found = _look(generation)
    gc.freeze()
    return found


if __name__ == "__main__":
    gc.set_threshold(GARBAGE)
    serve(sys.argv[1])
