"""Merging the parts of many runs into one run of new parts, in bounded memory, with parts reused where nothing changes.

A part whose keys no other part overlaps, and whose times need no advancing, is kept by reference, unread. What lies
between such parts is merged in one streaming pass, or in several where so many runs overlap that one pass would not fit
the budget. Nothing names the new parts until they are committed: a caller that gives up calls ``discard``.
Source: kernel.md section 3; persist-semantics.md section 3, compaction memory rule.
"""

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from persist.core.data.splits import KeyRange
from persist.core.ids import ShardId, WriterId, part_key
from persist.core.shard.batch import ORDER_VERSION, PART_FORMAT, Part
from persist.errors import LocationError
from persist.machine.parts.ahead import ahead_in
from persist.machine.parts.budget import Budget
from persist.machine.parts.fetch import Fetcher, Verify, ranges
from persist.machine.parts.negative import TakenBack
from persist.machine.parts.place import Place
from persist.machine.parts.reading import Reading
from persist.machine.parts.runs import RunView, only, overlapping
from persist.machine.parts.threads import ahead_pool, decode, may_block
from persist.retry.tasks import Tasks, finished
from persist.storage.ports import DELETES_MAX
from persist.wire.columnar import Encoded, encode_parts

WRITER_VERSION = 1
"""The release number in the keys of parts."""

_AHEAD_BYTES_MIN = 32 << 20


def segments(reading: Reading, *, reuse_bytes_min: int) -> list[Part | Reading]:
    """What a compaction is made of, in key order: parts to keep as they are, and reads of what is to be merged.

    Parts smaller than ``reuse_bytes_min`` are merged with their neighbours, or small parts would stay small for ever.
    """
    done: list[Part | list[Part]] = []
    views = {id(part): run for run in reading.runs for part in run.parts}
    for group in overlapping(reading.parts):
        alone = group[0]
        if len(group) == 1 and _may_stay(alone, views[id(alone)], reading, reuse_bytes_min):
            done.append(alone)
        elif done and isinstance(done[-1], list):
            done[-1].extend(group)
        else:
            done.append(list(group))
    return [
        each if isinstance(each, Part) else dataclasses.replace(reading, runs=only(reading.runs, each)) for each in done
    ]


def _may_stay(part: Part, run: RunView, reading: Reading, reuse_bytes_min: int) -> bool:
    return (
        part.key is not None
        and part.encoded_bytes >= reuse_bytes_min
        and run.covers(part)
        and (reading.key_range is None or _within(part, reading.key_range))
        and part.ts_rewrite is None
        and part.min_ts >= reading.since
        and part.schema_id == reading.schemas[-1].schema_id
        and (part.format, part.order_version) == (PART_FORMAT, ORDER_VERSION)
    )


def _within(part: Part, keys: KeyRange) -> bool:
    """Whether all keys of the part lie in the range."""
    begins = keys.lower is None or keys.lower <= part.key_lower
    return begins and (keys.upper is None or (part.key_upper is not None and part.key_upper < keys.upper))


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
        on_part: Callable[[Part], None] = lambda part: None,
        taken_back: TakenBack | None = None,
    ) -> None:
        """``on_rows`` is called with the rows written since its last call; ``on_part`` with each part of the result as
        soon as it is known: what it raises ends the merge. ``taken_back`` looks at the rows that are written."""
        self._place = place
        self._shard = shard
        self._owner = owner
        self._budget = budget
        self._verify = verify
        self._on_rows = on_rows
        self._on_part = on_part
        self._taken_back = taken_back
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
                self._on_part(segment)
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
        timeout, names = self._place.settings.store_timeout_ms / 1000, sorted(keys)
        for at in range(0, len(names), DELETES_MAX):
            # What stays behind is the sweeper's.
            with contextlib.suppress(LocationError):
                await self._place.blob.delete_many(names[at : at + DELETES_MAX], timeout=timeout)
        self._keys -= keys
        keys.clear()

    async def _merged(self, reading: Reading) -> list[Part]:
        """One run of new parts, in as many passes as the budget asks for: the smallest runs are written most often."""
        while reading.runs:
            runs = self._budget.runs_in_next_pass(reading)
            last = len(runs) == len(reading.runs)
            parts = await self._written(dataclasses.replace(reading, runs=runs), last=last)
            if last:
                return parts
            self._between |= {part.key for part in parts if part.key is not None}
            # By identity: of two runs that are alike both count.
            taken = {id(run) for run in runs}
            kept = [run for run in reading.runs if id(run) not in taken]
            view = (RunView(parts=tuple(parts), lower=0, upper=None),) if parts else ()
            reading = dataclasses.replace(reading, runs=(*kept, *view))
        return []

    async def _written(self, reading: Reading, *, last: bool) -> list[Part]:
        """The rows of a read as new parts: one is built while the one before it is uploaded."""
        place, plan = self._place, self._budget.plan(reading, last=last)
        fetcher = Fetcher(
            place.blob,
            ranges(reading.parts, reading.key_range, plan.range_bytes),
            settings=place.settings,
            attempts=place.attempts,
            budget_bytes=plan.fetch_bytes,
            verify=self._verify,
        )
        big = reading.decoded_bytes > _AHEAD_BYTES_MIN and may_block(place.runtime)
        ahead = ahead_in(ahead_pool(), bytes_max=plan.sizes.ahead_bytes) if big else None
        encoder = encode_parts(
            map(
                _table_of(self._taken_back if last else None), reading.batches(fetcher.reader, None, ahead, plan.sizes)
            ),
            reading.schema,
            reading.schemas[-1].schema_id,
            part_bytes_max=self._budget.part_bytes,
            row_group_rows=place.settings.row_group_rows,
            row_group_bytes=plan.row_group_bytes,
        )
        parts: list[Part] = []
        upload: asyncio.Task[None] | None = None
        try:
            quick = reading.is_quick
            if quick or not may_block(place.runtime):
                await fetcher.settle()
            step = _here if quick else functools.partial(decode, place.runtime)
            while (encoded := await step(next, encoder, None)) is not None:
                part = dataclasses.replace(encoded.part, key=self._new_key(), consolidated_since=reading.since)
                if last:
                    self._on_part(part)
                if upload is not None:
                    await upload
                upload = self._uploads.start(self._upload(part, encoded))
                # The upload alone holds it from here on.
                del encoded
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
        # SUBTLE: a thread may be writing it all the same, and what is deleted before it is written would stay.
        await finished(setting)
        self._on_rows(part.rows)


def _table_of(taken_back: TakenBack | None) -> Callable[[pa.RecordBatch], pa.Table]:
    def table(batch: pa.RecordBatch) -> pa.Table:
        if taken_back is not None:
            taken_back.look_at(batch)
        return pa.Table.from_batches([batch])

    return table


async def _here(function: Callable[..., object], *args: object) -> Any:
    return function(*args)
