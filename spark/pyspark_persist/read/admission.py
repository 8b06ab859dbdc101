"""How much of a shard one micro-batch takes: where its initial snapshot and its history may be cut.

A snapshot is one time, and is cut by keys; history is cut by times. Sizes are those of parts in the state, spread
evenly over the keys or times of each: limits are soft. Source: spark.md section 2.3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import persist
from persist import InvalidArgument
from persist_ingest.location import Target
from pyspark_persist.options.options import Admission
from pyspark_persist.read.planning import Where

PIECES_MAX: Final = 16
"""Into how many micro-batches one batch of history is cut at most: each reads all of its parts."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stream has come: to ``upper``; within its initial snapshot, that at ``upper`` - 1, to keys ``below``.

    ``below``: a canonical key; None: all keys. Upper 0 is before the initial snapshot.
    """

    upper: int
    below: bytes | None = None

    @property
    def in_snapshot(self) -> bool:
        """Whether the next rows are of the initial snapshot."""
        return self.upper == 0 or self.below is not None

    @property
    def order(self) -> tuple[int, bool, bytes]:
        """A sort key: later positions have larger ones."""
        return self.upper, self.below is None, self.below or b""

    def offset(self, target: Target, place: str) -> dict[str, object]:
        """The offset Spark keeps in its checkpoint. ``place``: identifies the location."""
        known = {"v": 1, "shard": target.shard, "upper": str(self.upper), "place": place}
        return known if self.below is None else {**known, "below": self.below.hex()}

    @classmethod
    def of(cls, offset: Mapping[str, object], target: Target, place: str) -> "Position":
        """The position of an offset. Raises InvalidArgument for one of another stream, or of another location.

        Offsets of before there were places have none.
        """
        if offset.get("v") != 1 or offset.get("shard") != target.shard:
            raise InvalidArgument(
                "the checkpoint's offset belongs to another shard or release",
                hint="use a checkpoint of this query, or a new checkpoint directory",
                offset=dict(offset),
                shard=target.shard,
            )
        if offset.get("place", place) != place:
            raise InvalidArgument(
                "the checkpoint was made at another location, or before this one was restored from a backup",
                hint="its times mean nothing here: start with a new checkpoint directory, by startingVersion where this"
                " shard is to be read from; if the same data was only moved, at the upper of this offset",
                offset=dict(offset),
                **target.described,
            )
        below = offset.get("below")
        return cls(int(str(offset["upper"])), None if below is None else bytes.fromhex(str(below)))


@dataclass(frozen=True, slots=True)
class Outstanding:
    """What a stream has not taken yet: updates, bytes and parts as the shard's state knows them."""

    rows: int = 0
    bytes: int = 0
    files: int = 0

    def plus(self, rows: int, bytes: int, files: int) -> "Outstanding":
        """This and so much more."""
        return Outstanding(self.rows + rows, self.bytes + bytes, self.files + files)

    @property
    def figures(self) -> dict[str, int]:
        """As progress reports have them, under the names that Delta gives its own."""
        return {"numRowsOutstanding": self.rows, "numBytesOutstanding": self.bytes, "numFilesOutstanding": self.files}


def key_within(snapshot: "persist.Snapshot", where: Where, below: bytes | None, limits: Admission) -> bytes | None:
    """The key below which the next piece of a snapshot ends, beyond ``below``; None: it takes all that is left."""
    whole = snapshot.splits(1, where=list(where))
    if not whole:
        return None
    sizes = ((whole[0].rows, limits.rows), (whole[0].encoded_bytes, limits.bytes), (len(whole[0].parts), limits.files))
    pieces = max(-(-size // limit) for size, limit in sizes if limit is not None)
    if pieces <= 1:
        return None
    for split in snapshot.splits(pieces, where=list(where)):
        edge: bytes | None = None if split.keys is None else split.keys.upper
        if edge is not None and (below is None or edge > below):
            return edge
    return None


def time_within(parts: Sequence[Any], lower: int, upper: int, limits: Admission) -> int:
    """The latest time t up to which the updates in ``[lower, t)`` keep the limits; beyond lower, at most upper.

    ``parts``: those of one batch, as a Split describes them. A limit counts as a share of the batch of at least one in
    PIECES_MAX; that of files does not count, as every piece reads them all.
    """
    kept = [
        (limit, sizes)
        for limit, sizes in (
            (limits.rows, [part.rows for part in parts]),
            (limits.bytes, [part.encoded_bytes for part in parts]),
        )
        if limit is not None
    ]

    def keeps(time: int) -> bool:
        shares = [_share(part, lower, time) for part in parts]
        return all(
            sum(size * share for size, share in zip(sizes, shares, strict=True)) <= max(limit, sum(sizes) / PIECES_MAX)
            for limit, sizes in kept
        )

    if keeps(upper):
        return upper
    # Never less than one time, and not as far as `beyond`.
    time, beyond = lower + 1, upper
    while beyond - time > 1:
        middle = (time + beyond) // 2
        if keeps(middle):
            time = middle
        else:
            beyond = middle
    return time


def _share(part: Any, lower: int, upper: int) -> float:
    """How much of a part lies in ``[lower, upper)``, if its updates are spread evenly over its times."""
    first, end = int(part.first_ts), int(part.last_ts) + 1
    inside = min(end, upper) - max(first, lower)
    return max(0, inside) / (end - first)
