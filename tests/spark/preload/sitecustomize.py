"""Found by Python when it begins, where tests put this folder on the path: Spark's processes become forks.

Planners do not ask for Spark's own names of the programs of its daemon and workers, by which this could be had, too.
"""

import os
import sys

if "PERSIST_TEST_SPARK_FORKS" in os.environ and any(word.startswith("pyspark.") for word in sys.orig_argv):
    import spark_forks

    spark_forks.hand_over(os.environ[spark_forks.ADDRESS])
