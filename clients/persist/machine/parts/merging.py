"""Merging the parts of many runs into one run of new parts, in bounded memory, with parts reused where nothing changes.

A part whose keys no other part overlaps, and whose times need no advancing, is kept by reference, unread. What lies
between such parts is merged in one streaming pass, or in several where so many runs overlap that one pass would not fit
the budget. Nothing names the new parts until somebody commits them: whoever gives up calls ``discard``.
Source: kernel.md section 3; persist-semantics.md section 3, compaction memory rule.
"""

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from persist.core.ids import ShardId, WriterId, part_key
from persist.core.shard.batch import ORDER_VERSION, PART_FORMAT, Part
from persist.errors import LocationError
from persist.machine.parts.ahead import ahead_in
from persist.machine.parts.fetch import Fetcher, Verify, ranges
from persist.machine.parts.place import Place
from persist.machine.parts.reading import Reading, RunView
from persist.machine.parts.threads import ahead_pool, decode, may_block
from persist.machine.tasks import Tasks
from persist.wire.columnar import Encoded, encode_parts

WRITER_VERSION = 1
"""The release number in the keys of parts."""

_KEY_BYTES = 32
_MERGE_ROWS_MIN = 4_096
_ON_LOOP_BYTES_MAX = 256 << 10
_AHEAD_BYTES_MIN = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How a merge divides what memory it may take: a quarter for parts under way, half for the merge, the rest slack.

    ``part_bytes``: the target size of new parts. ``merge_bytes``: rows and row groups held of all runs together.
    ``fetch_bytes``: fetched and not decoded yet.
    """

    part_bytes: int
    merge_bytes: int
    fetch_bytes: int

    @classmethod
    def of(cls, memory_bytes: int, *, part_bytes_max: int, fetch_bytes_max: int) -> "Budget":
        """The division of ``memory_bytes``."""
        return cls(
            part_bytes=max(1 << 16, min(part_bytes_max, memory_bytes // 8)),
            merge_bytes=max(1 << 20, memory_bytes // 2),
            fetch_bytes=max(1 << 20, min(fetch_bytes_max, memory_bytes // 8)),
        )

    def runs_at_once(self, reading: Reading) -> int:
        """How many of these runs can be merged in one pass; two at least, whatever that takes."""
        rows = max(1, reading.rows)
        decoded, encoded = reading.decoded_bytes // rows + _KEY_BYTES, reading.encoded_bytes // rows + 1
        groups = (part.rows // max(1, sum(block.row_groups for block in part.blocks)) for part in reading.parts)
        largest = max(groups, default=1)
        block = max((block.length for part in reading.parts for block in part.blocks), default=0)
        per_run = 3 * _MERGE_ROWS_MIN * decoded + 3 * largest * encoded + block
        return max(2, self.merge_bytes // max(1, per_run))


def segments(reading: Reading, *, reuse_bytes_min: int) -> list[Part | Reading]:
    """What a compaction is made of, in key order: parts to keep as they are, and reads of what is to be merged.

    Parts smaller than ``reuse_bytes_min`` are merged with their neighbours, or small parts would stay small for ever.
    """
    done: list[Part | list[Part]] = []
    views = {id(part): run for run in reading.runs for part in run.parts}
    for group in _overlapping(reading.parts):
        alone = group[0]
        if len(group) == 1 and _may_stay(alone, views[id(alone)], reading, reuse_bytes_min):
            done.append(alone)
        elif done and isinstance(done[-1], list):
            done[-1].extend(group)
        else:
            done.append(list(group))
    return [each if isinstance(each, Part) else _only(reading, each) for each in done]


def _overlapping(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """The parts in groups whose key bounds touch; groups lie apart, in key order."""
    group: list[Part] = []
    reach: bytes | None = b""
    for part in sorted(parts, key=lambda part: part.key_lower):
        if group and reach is not None and part.key_lower > reach:
            yield group
            group, reach = [], b""
        group.append(part)
        reach = None if reach is None or part.key_upper is None else max(reach, part.key_upper)
    if group:
        yield group


def _may_stay(part: Part, run: RunView, reading: Reading, reuse_bytes_min: int) -> bool:
    return (
        part.key is not None
        and part.encoded_bytes >= reuse_bytes_min
        and run.covers(part)
        and part.ts_rewrite is None
        and part.min_ts >= reading.since
        and part.schema_id == reading.schemas[-1].schema_id
        and (part.format, part.order_version) == (PART_FORMAT, ORDER_VERSION)
    )


def _only(reading: Reading, parts: list[Part]) -> Reading:
    wanted = {id(part) for part in parts}
    runs = (
        dataclasses.replace(run, parts=tuple(part for part in run.parts if id(part) in wanted)) for run in reading.runs
    )
    return dataclasses.replace(reading, runs=tuple(run for run in runs if run.parts))


class Merging:
    """One merge: reads, writes new parts under ``owner``, and knows which of them to delete."""

    def __init__(
        self,
        place: Place,
        *,
        shard: ShardId,
        owner: WriterId,
        budget: Budget,
        verify: Verify | None = None,
        on_rows: Callable[[int], None] = lambda rows: None,
    ) -> None:
        """``on_rows`` is told how many rows were written since it was told last."""
        self._place = place
        self._shard = shard
        self._owner = owner
        self._budget = budget
        self._verify = verify
        self._on_rows = on_rows
        self._uploads = Tasks()
        self._writes = Tasks()
        self._keys: set[str] = set()
        self._between: set[str] = set()
        self.reused = 0

    async def run(self, reading: Reading) -> tuple[Part, ...]:
        """The parts of one run with the updates of ``reading``. Raises CorruptData, LocationError, what verify does."""
        parts: list[Part] = []
        for segment in segments(reading, reuse_bytes_min=self._budget.part_bytes // 2):
            if isinstance(segment, Part):
                parts.append(segment)
                self.reused += 1
            else:
                parts += await self._merged(segment)
        return tuple(parts)

    async def merged(self, reading: Reading) -> tuple[Part, ...]:
        """As ``run``, and no part is kept as it is: for a range of keys, in which parts may lie by halves."""
        return tuple(await self._merged(reading))

    async def tidy(self) -> None:
        """Delete what only passed between two passes of this merge."""
        await self._delete(self._between)

    async def discard(self) -> None:
        """Stop and delete every new part. Only when no command named them, or provably none ever will."""
        await self._uploads.close()
        await self._delete(self._keys)

    async def _delete(self, keys: set[str]) -> None:
        timeout = self._place.settings.store_timeout_ms / 1000
        for key in sorted(keys):
            # What stays behind is the sweeper's.
            with contextlib.suppress(LocationError):
                await self._place.blob.delete(key, timeout=timeout)
        self._keys -= keys
        keys.clear()

    async def _merged(self, reading: Reading) -> list[Part]:
        """One run of new parts, in as many passes as the budget asks for."""
        while len(reading.runs) > (at_once := self._budget.runs_at_once(reading)):
            views: list[RunView] = []
            for start in range(0, len(reading.runs), at_once):
                some = dataclasses.replace(reading, runs=reading.runs[start : start + at_once])
                parts = tuple(await self._written(some))
                self._between |= {part.key for part in parts if part.key is not None}
                if parts:
                    views.append(RunView(parts=parts, lower=0, upper=None))
            reading = dataclasses.replace(reading, runs=tuple(views))
        return await self._written(reading) if reading.runs else []

    async def _written(self, reading: Reading) -> list[Part]:
        """The rows of a read as new parts: one is built while the one before it is uploaded."""
        place, budget = self._place, self._budget
        reading = dataclasses.replace(reading, merge_bytes_max=budget.merge_bytes)
        planned = ranges(reading.parts, reading.key_range)
        fetcher = Fetcher(
            place.blob,
            planned,
            settings=place.settings,
            attempts=place.attempts,
            budget_bytes=budget.fetch_bytes,
            verify=self._verify,
        )
        big = reading.decoded_bytes > _AHEAD_BYTES_MIN and may_block(place.runtime)
        encoder = encode_parts(
            map(_table, reading.batches(fetcher.reader, None, ahead_in(ahead_pool()) if big else None)),
            reading.schema,
            reading.schemas[-1].schema_id,
            part_bytes_max=budget.part_bytes,
            row_group_rows=place.settings.row_group_rows,
        )
        parts: list[Part] = []
        upload: asyncio.Task[None] | None = None
        try:
            small = reading.decoded_bytes <= _ON_LOOP_BYTES_MAX
            if small or not may_block(place.runtime):
                await fetcher.settle()
            step = _here if small else functools.partial(decode, place.runtime)
            while (encoded := await step(next, encoder, None)) is not None:
                part = dataclasses.replace(encoded.part, key=self._new_key(), consolidated_since=reading.since)
                if upload is not None:
                    await upload
                upload = self._uploads.start(self._upload(part, encoded))
                parts.append(part)
            if upload is not None:
                await upload
        finally:
            await fetcher.close()
        return parts

    def _new_key(self) -> str:
        entropy = self._place.runtime.random_bytes(16)
        key = part_key(self._shard, self._owner, WRITER_VERSION, entropy)
        self._keys.add(key)
        return key

    async def _upload(self, part: Part, encoded: Encoded) -> None:
        place, key = self._place, part.key
        assert key is not None
        setting = self._writes.start(
            place.attempts.repeat(
                place.attempts.deadline(None),
                lambda seconds: place.blob.set(key, encoded.data, timeout=seconds),
                limit_ms=place.settings.blob_timeout_ms,
            )
        )
        try:
            await asyncio.shield(setting)
        except asyncio.CancelledError:
            # SUBTLE: a thread may be writing it all the same, and what is deleted before it is written would stay.
            await asyncio.wait({setting})
            raise
        self._on_rows(part.rows)


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


async def _here(function: Callable[..., Any], *args: object) -> Any:
    return function(*args)
