"""Compaction on Spark, for shards beyond one machine: executors merge key ranges, the driver commits once.

The planning and the merge are those of every compaction (``Client.begin_compaction``). The driver holds the claim and
keeps it fresh; a task that is tried again leaves parts behind that no state names, for the sweeper.
Source: architecture.md section 7; spark.md section 2.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from persist_ingest.location import Target
from pyspark_persist.read.dealing import Dealt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import persist

__all__ = ["compact"]

PIECE_BYTES = 64 << 20
"""Encoded bytes of a piece, unless the number of pieces is given."""


def compact(
    spark: "SparkSession", target: Target, *, pieces: int | None = None, begun: Callable[[Any], None] | None = None
) -> "persist.Compacted":
    """Compact everything of a shard that no other process compacts into one run; None when there is nothing to do.

    ``pieces``: how many tasks, about; None: one for each 64 MiB. ``begun``
    is called with what was claimed before the job starts. Raises LeaseExpired (another process took it over),
    LocationError, and what Spark raises when a task fails for good; then nothing has changed, and what was written is
    deleted as far as it is known.
    """
    compaction = target.client().begin_compaction(target.shard_id)
    if compaction is None:
        return None
    results: list[bytes] = []
    try:
        if begun is not None:
            begun(compaction)
        made = compaction.pieces(pieces or -(-max(1, compaction.encoded_bytes) // PIECE_BYTES))
        if made:
            results = _run(spark, made)
    except BaseException:
        compaction.abandon(results)
        raise
    return compaction.commit(results)


def _run(spark: "SparkSession", made: list[Any]) -> list[bytes]:
    """Each piece in a task of its own; results in the order of the pieces."""
    dealt = Dealt(made)
    done = dealt.numbers(spark).mapInArrow(_CarryOut(dealt), "number long, result binary").collect()
    return [bytes(row["result"]) for row in sorted(done, key=lambda row: int(row["number"]))]


class _CarryOut:
    """What executors run: pieces by number in, their results out."""

    def __init__(self, pieces: Dealt[Any]) -> None:
        self._pieces = pieces

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, piece in self._pieces.of(batches):
            arrays = [pa.array([number], pa.int64()), pa.array([piece.run()], pa.binary())]
            yield pa.RecordBatch.from_arrays(arrays, names=["number", "result"])  # type: ignore[arg-type]  # narrower than Arrow is
