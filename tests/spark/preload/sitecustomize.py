"""Found by Python when it begins, where tests put this folder on the path: Spark's processes become forks.

Planners do not ask for Spark's own names of the programs of its daemon and workers, by which this could be had, too.
"""

import importlib
import os
import sys

SERVER = os.environ.get("PERSIST_TEST_SPARK_FORKS")
if SERVER is not None and any(word.startswith("pyspark.") for word in sys.orig_argv):
    importlib.import_module("spark_forks").hand_over(SERVER)
