"""Spark's Python processes are forks of a daemon, and each imports what its work needs; here the daemon has it.

Importing was a fifth of what Spark's tests cost, their JVMs included. Python looks for a module of this name when it
begins, and finds it where tests put this folder on the path; planners do not ask for Spark's own name of the daemon's
program. Tests of what dies and begins anew on a cluster (``test_deaths``) leave this folder out.

Spark has its own Python package first on the path, as an archive: what is imported from one is compiled each time, by
every daemon and every process that reads a stream, of which each query has one. The same package is installed here.
"""

import gc
import importlib
import sys

ARCHIVES = ("/pyspark.zip", "-src.zip")
PRELOADED = ("numpy", "pandas", "pyarrow.compute", "persist.aio", "persist.client.blocking.client", "pyspark_persist")
GARBAGE = 50_000
"""Objects between two looks for cycles, which importing makes none of."""

_look = gc.collect


def _look_and_freeze(generation: int = 2) -> int:
    """After each task a worker looks for cycles in all it has: once is enough for what stays."""
    found = _look(generation)
    gc.freeze()
    return found


if any(word.startswith("pyspark.") for word in sys.orig_argv):
    sys.path[:] = [path for path in sys.path if not path.endswith(ARCHIVES)]
    gc.set_threshold(GARBAGE)
if "pyspark.daemon" in sys.orig_argv:
    workers = [word for word in sys.orig_argv if word.startswith("pyspark.") and word != "pyspark.daemon"]
    for module in (*PRELOADED, *(workers or ["pyspark.worker"])):
        importlib.import_module(module)
    gc.freeze()
    gc.collect = _look_and_freeze
