"""Spark's Python processes are forks of a daemon, and each imports what its work needs; here the daemon has it.

Importing was a third of what Spark's tests cost. Python looks for a module of this name when it begins, and finds it
where tests put this folder on the path. Spark's own name for the daemon's program is not asked for by planners. Tests
of what an executor's process does when it begins with nothing (``test_deaths``) leave this folder out.
"""

import gc
import importlib
import sys

PRELOADED = ("numpy", "pandas", "pyarrow.compute", "persist.aio", "persist.client.blocking.client", "pyspark_persist")

if "pyspark.daemon" in sys.orig_argv:
    workers = [word for word in sys.orig_argv if word.startswith("pyspark.") and word != "pyspark.daemon"]
    for module in (*PRELOADED, *(workers or ["pyspark.worker"])):
        importlib.import_module(module)
    gc.freeze()
