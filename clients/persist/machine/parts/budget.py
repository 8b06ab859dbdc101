"""How a merge divides the memory it may take, so that all it holds at a time stays within one bound.

Counted are: blocks fetched ahead and being fetched, the block each open run is decoded from with its pages, rows
decoded ahead, rows buffered of each run, what sorting them takes, the row group and the part being built, and the part
being uploaded. What of this grows with the number of runs decides how many are merged in one pass.
Source: persist-semantics.md section 3, compaction memory rule; kernel.md section 3, memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from persist.core.data.types import has_words
from persist.core.shard.batch import Part
from persist.machine.parts.fetch import RANGE_BYTES_MAX, WHOLE_BYTES_MAX
from persist.machine.parts.reading import MergeSizes, Reading
from persist.machine.parts.runs import RunView
from persist.settings import Settings
from persist.wire.columnar import GROUP_BYTES

MEMORY_BYTES_MIN: Final = 64 << 20
"""The smallest bound there is: below it two runs of the widest row groups could not be merged."""

_RESERVE: Final = 16 << 20
"""Memory that does not grow with the input: stacks of threads, compression contexts, the allocator's spare memory."""
_PARTS: Final = 3.2
"""Parts held: one that grows, one being uploaded, and the copy some stores' clients make of it."""
_ROWS: Final = 5
"""What a merge holds, in bytes buffered of all runs: these, half as many ahead, sorting, and the rows it emits."""
_FETCHED: Final = 3
"""What fetching ahead holds, in bytes ahead: these, copies on their way, and ranges of which the end is wanted."""
_SHARE: Final = 0.7
"""Of what parts leave, for what grows with the number of runs."""
_BETWEEN: Final = 48
"""The part of all this that a row group takes which only passes between two passes."""
_PAGE_BYTES: Final = 1 << 20
_BATCH_BYTES: Final = 512 << 10
_BATCH_ROWS: Final = 4096
_BUFFERED_ROWS_MIN: Final = 1024
_BUFFERED_BYTES_MIN: Final = 64 << 10
_BUFFERED_BYTES_MAX: Final = 16 << 20
_ROW_BYTES: Final = 48
"""Beside its values: a canonical key and row numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassBytes:
    """What one pass holds of and for its runs, in bytes.

    ``fetch_bytes``: fetched and not decoded yet. ``range_bytes``: neighbouring blocks fetched together.
    """

    sizes: MergeSizes
    fetch_bytes: int
    range_bytes: int
    row_group_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The bound of one compaction. ``part_bytes``: the target size of new parts."""

    memory_bytes: int
    part_bytes: int
    fetch_bytes_max: int = RANGE_BYTES_MAX

    @classmethod
    def of(cls, settings: Settings) -> "Budget":
        """That of ``settings.compaction_memory_bytes``, which counts as 64 MiB when it is less."""
        memory = memory_bound(settings)
        return cls(
            memory_bytes=memory,
            part_bytes=min(settings.part_bytes_max, max(1 << 16, (memory - MEMORY_BYTES_MIN // 2) // 16)),
            fetch_bytes_max=settings.fetch_bytes_max,
        )

    def runs_in_next_pass(self, reading: Reading) -> tuple[RunView, ...]:
        """The runs to merge next: all where that fits, else the smallest ones, two at least."""
        runs = sorted(reading.runs, key=_size)
        room, taken = _SHARE * self._room, 0
        for run in runs:
            need = _need(reading, (run,))
            room -= need.run + _ROWS * need.buffered_min
            if room < 0 and taken >= 2:
                break
            taken += 1
        if taken == len(runs) or taken <= 2:
            return tuple(runs[:taken])
        # So many that the passes after this one are full.
        return tuple(runs[: (len(runs) - 2) % (taken - 1) + 2])

    def plan(self, reading: Reading, *, last: bool = True) -> PassBytes:
        """What to hold in a pass that merges all runs of this read.

        Unless it is the ``last``, its row groups are small: of such, many can be read at a time.
        """
        room, runs, need = self._room, max(1, len(reading.runs)), _need(reading, reading.runs)
        rest = max(room // 16, room - sum(_need(reading, (run,)).run for run in reading.runs))
        group = min(GROUP_BYTES, rest // 4 if last else room // _BETWEEN)
        buffered = min(_BUFFERED_BYTES_MAX, rest * 7 // 100)
        fetch = min(self.fetch_bytes_max, (rest - group - _ROWS * buffered) // _FETCHED)
        rows = max(1, buffered // runs // need.row)
        return PassBytes(
            sizes=MergeSizes(
                rows=rows,
                run_bytes=buffered // runs,
                batch_rows=max(1, min(rows, _BATCH_ROWS, _BATCH_BYTES // need.row)),
                ahead_bytes=buffered // runs // 4,
            ),
            fetch_bytes=fetch,
            range_bytes=max(need.block, min(RANGE_BYTES_MAX, fetch // runs)),
            row_group_bytes=group,
        )

    @property
    def _room(self) -> int:
        return max(1 << 20, int(self.memory_bytes - _RESERVE - _PARTS * self.part_bytes))


@dataclass(frozen=True, slots=True)
class _Need:
    """What runs take, each, in bytes: what cannot be had for less, and a row."""

    block: int
    run: int
    row: int

    @property
    def buffered_min(self) -> int:
        return max(_BUFFERED_BYTES_MIN, min(_BATCH_BYTES, _BUFFERED_ROWS_MIN * self.row))


def _need(reading: Reading, runs: Sequence[RunView]) -> _Need:
    parts = [part for run in runs for part in run.parts]
    row = max((part.decoded_bytes // max(1, part.rows) for part in parts), default=0) + _ROW_BYTES
    block = max(map(_block, parts), default=0)
    varying = sum(not has_words(field.type) for field in reading.schema.updates)
    pages = max((_pages(part, varying, len(reading.schema.updates) - varying) for part in parts), default=0)
    batch = min(_BATCH_BYTES, _BATCH_ROWS * row)
    return _Need(block, block + pages + 2 * batch, row)


def memory_bound(settings: Settings) -> int:
    """What one compaction may take: the setting, or the smallest bound there is."""
    return max(MEMORY_BYTES_MIN, settings.compaction_memory_bytes)


def _block(part: Part) -> int:
    """The bytes a part is decoded from at a time."""
    if part.encoded_bytes <= WHOLE_BYTES_MAX:
        return part.encoded_bytes
    return max((block.length for block in part.blocks), default=0) + part.footer_bytes


def _pages(part: Part, varying: int, words: int) -> int:
    """One decompressed page of each column."""
    groups = max(1, sum(block.row_groups for block in part.blocks))
    rows, size = part.rows // groups, part.decoded_bytes // groups
    return min(size, varying * _PAGE_BYTES + words * min(_PAGE_BYTES, 8 * rows))


def _size(run: RunView) -> int:
    return sum(part.decoded_bytes for part in run.parts)
