"""What executors make of a change's rows: retractions and new rows as diffs, in parts that the driver commits.

A row of a change is its kind, how often, and the row as it was and as it is to be, by place: ``o0``, ``o1``, … and
``n0``, ``n1``, …. What is refused here travels to the driver as a value: no task is tried again for it.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist import InvalidArgument, UsageError
from persist.arrow import Numbers
from pyspark_persist.change.target import COUNT, ROW
from pyspark_persist.write.writing import Write

KIND: Final = "_change_type"
"""What becomes of a row: one of the following."""
DELETE, UPDATE, INSERT, STRAY = range(4)

Batches: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What tasks do with batches."""

RESULT: Final = "message binary, refusal binary, deleted long, updated long, inserted long"
"""What a task answers with, as Spark writes it."""
_KINDS: Final[Mapping[str, pa.DataType]] = {
    "message": pa.binary(),
    "refusal": pa.binary(),
    "deleted": pa.int64(),
    "updated": pa.int64(),
    "inserted": pa.int64(),
}


def old(place: int) -> str:
    """The column that holds what was there."""
    return f"o{place}"


def new(place: int) -> str:
    """The column that holds what is to be there."""
    return f"n{place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteChanges:
    """The function executors run: all rows of a change that fall to a task in, one answer out.

    ``once``: rows come in the order of ROW, and one that comes twice is refused. ``first``: what makes changes of what
    comes in; None: it is changes.
    """

    write: Write
    names: tuple[str, ...]
    once: bool = False
    first: Batches | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batches = batches if self.first is None else self.first(batches)
        counts = np.zeros(3, dtype=np.int64)
        message, refusal = None, None
        try:
            message = self.write.write(self._updates(batches, counts)).prepared.to_bytes()
        except UsageError as error:
            refusal = pickle.dumps(error)
        row = [message, refusal, *counts.tolist()]
        arrays = [pa.array([value], kind) for value, kind in zip(row, _KINDS.values(), strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(_KINDS))

    def _updates(self, batches: Iterator[pa.RecordBatch], counts: Numbers) -> Iterator[pa.RecordBatch]:
        last: int | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            if self.once:
                last = _distinct(batch, last)
            kinds = batch.column(KIND).to_numpy()
            if (kinds == STRAY).any():
                raise InvalidArgument(
                    "rows of the DataFrame are not among those that are overwritten",
                    hint="leave out those for which where does not hold, or give a wider where",
                    rows=int((kinds == STRAY).sum()),
                )
            often = pc.fill_null(batch.column(COUNT), 1).to_numpy()
            counts += _counted(kinds, often)
            yield from self._side(batch, kinds != INSERT, -often, old)
            yield from self._side(batch, kinds != DELETE, often, new)

    def _side(
        self, batch: pa.RecordBatch, chosen: Numbers, diffs: Numbers, column: Callable[[int], str]
    ) -> Iterator[pa.RecordBatch]:
        """What was there, or what is to be there, of the rows that are chosen."""
        if not chosen.any():
            return
        kept = batch.filter(pa.array(chosen))
        data = [kept.column(column(place)) for place in range(len(self.names))]
        yield pa.RecordBatch.from_arrays([*data, pa.array(diffs[chosen])], names=[*self.names, COUNT])


def _counted(kinds: Numbers, often: Numbers) -> Numbers:
    """How many rows are deleted, updated and inserted. What is taken away less often than never is put back: rows that
    are inserted but those that are deleted are how many more there are, whatever the change is.
    """
    taken = often[kinds == DELETE]
    put_back = -taken[taken < 0].sum()
    found = [taken[taken > 0].sum(), np.abs(often[kinds == UPDATE]).sum(), often[kinds == INSERT].sum() + put_back]
    return np.array(found, dtype=np.int64)


def _distinct(batch: pa.RecordBatch, last: int | None) -> int | None:
    """The last row of the table in this batch. Raises InvalidArgument when one comes twice."""
    rows = batch.column(ROW).drop_null().to_numpy()
    if not len(rows):
        return last
    if (rows[1:] == rows[:-1]).any() or rows[0] == last:
        raise InvalidArgument(
            "several rows of the source would change one row of the table: nothing was changed",
            hint="keep one row of the source for each key, as with dropDuplicates",
        )
    return int(rows[-1])
