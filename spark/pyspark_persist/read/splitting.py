"""How finely the driver cuts what its own jobs read."""

from typing import TYPE_CHECKING, Final

from pyspark_persist.options.options import TARGET_PARTITION_BYTES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPLIT_BYTES_MIN: Final = 4 << 20


def pieces(spark: "SparkSession", encoded_bytes: int) -> int:
    """How many tasks read it: few, because each costs about 50 ms, but as many as work at once if that is worth it."""
    context = getattr(spark, "_sc", None)
    at_once = 1 if context is None else int(context.defaultParallelism)
    return max(1, -(-encoded_bytes // TARGET_PARTITION_BYTES), min(at_once, -(-encoded_bytes // _SPLIT_BYTES_MIN)))
