"""Batches encoded once for several appends, of which one at most is taken.

Who writes at the upper loses an attempt each time that the upper moves meanwhile. Encoding large rows takes longer than
the upper stays where it is, so what is encoded anew for each attempt would never be in time.
Source: persist-semantics.md feature rows 19, 20, 23; docs/adr/0012-numbered-calls.md.
"""

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Final, Protocol, Self

import pyarrow as pa

from persist.client.shard.write.batch import ON_LOOP_BYTES_MAX, BatchBuilder
from persist.client.shard.write.inputs import UpdatesLike
from persist.core.data.schema import Schema
from persist.core.ids import ShardId, WriterId
from persist.core.shard.batch import Run
from persist.retry.deadline import Deadline
from persist.runtime import Runtime

FRESH_SHARE: Final = 8
"""A batch is made anew after this part of a writer's lease: what lies in Blob and nothing names is swept after it."""

Rows = Mapping[ShardId, pa.Table]
"""Updates by the table they are for."""


class KeptBatch:
    """Parts that nothing names yet, of rows at time 0. See ``WriteHandle.keep``.

    Each append of it is ``named``, and ends by itself. ``release`` ends the batch: the parts stay where an append of
    it happened, or is in doubt, and are deleted as soon as none is left that did, or may have.
    """

    def __init__(
        self, builder: BatchBuilder, runs: tuple[Run, ...], writer_id: WriterId, *, runtime: Runtime, lease_ms: int
    ) -> None:
        """``lease_ms``: of the writer, of which half, at least, was left when the first part was uploaded."""
        self.runs = runs
        self.writer_id = writer_id
        self.runtime = runtime
        self._fresh_until = runtime.monotonic() + lease_ms / 1000 / FRESH_SHARE
        self._builder = builder
        self._keys = frozenset(part.key for run in runs for part in run.parts if part.key)
        self._is_held = True
        self._appends = 0
        """Those that happened, or are under way or in doubt."""

    @property
    def is_fresh(self) -> bool:
        """Whether another attempt can name the parts before they might be swept."""
        return self.runtime.monotonic() < self._fresh_until

    def named(self) -> "KeptParts":
        """What an append names the parts by, which begins now."""
        self._appends += 1
        return KeptParts(self, self._builder)

    async def ended(self, *, seconds: float | None = None) -> None:
        """Note that an append of it did not happen, nor will."""
        self._appends -= 1
        await self._delete(seconds)

    async def release(self) -> None:
        """End it. Once."""
        self._is_held = False
        await self._delete(None)

    async def _delete(self, seconds: float | None) -> None:
        if not self._is_held and not self._appends:
            await self._builder.discard(only=self._keys, seconds=seconds)


class KeptParts:
    """The parts of one append of a kept batch.

    SUBTLE: what it comes to says nothing of another append of the same batch, which may have happened without an
    answer: neither of the batch's parts nor of those that were spilled for that one.
    """

    def __init__(self, kept: KeptBatch, builder: BatchBuilder) -> None:
        self._kept = kept
        self._builder = builder
        self._spilled = set[str]()
        self._is_over = False

    async def spill(
        self, runs: tuple[Run, ...], schema_of: Callable[[int], Awaitable[Schema]], deadline: Deadline
    ) -> tuple[Run, ...]:
        """See ``BatchBuilder.spill``."""
        before = self._builder.keys
        try:
            return await self._builder.spill(runs, schema_of, deadline)
        finally:
            self._spilled |= self._builder.keys - before

    async def discard(self, *, seconds: float | None = None) -> None:
        """Nothing of this append happened, nor will. What was spilled for it is deleted; all, where it was the last."""
        if self._is_over:
            return
        self._is_over = True
        await self._builder.discard(only=self._spilled, seconds=seconds)
        await self._kept.ended(seconds=seconds)


class Beside:
    """Who made the parts of an append of a kept batch and of a few updates that were not known when it was kept."""

    def __init__(self, kept: KeptParts, builder: BatchBuilder) -> None:
        self._kept = kept
        self._builder = builder

    async def spill(
        self, runs: tuple[Run, ...], schema_of: Callable[[int], Awaitable[Schema]], deadline: Deadline
    ) -> tuple[Run, ...]:
        """See ``BatchBuilder.spill``."""
        return await self._builder.spill(runs, schema_of, deadline)

    async def discard(self, *, seconds: float | None = None) -> None:
        """See ``KeptParts.discard``. The few are made again for the next append."""
        await self._builder.discard(seconds=seconds)
        await self._kept.discard(seconds=seconds)


class Keeps(Protocol):
    """A writer of a shard: a ``WriteHandle``."""

    async def keep(self, updates: UpdatesLike, *, timeout: float | None = None) -> KeptBatch:
        """See there."""


class Once:
    """What the attempts of one write append: encoded anew only where they write something else. For one task.

    A block, whose end ends the batch.
    """

    def __init__(self) -> None:
        self._kept: KeptBatch | None = None
        self._writer: Keeps | None = None
        self._rows: Rows = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._release()

    async def of(self, writer: Keeps, rows: Rows, made: Callable[[], Awaitable[pa.Table]], timeout: float) -> KeptBatch:
        """The batch of the updates that are ``made`` of these rows. Raises as ``WriteHandle.keep``."""
        kept = self._kept
        if kept is None or self._writer is not writer or not kept.is_fresh or not await self._has(rows, kept.runtime):
            await self._release()
            kept = self._kept = await writer.keep(await made(), timeout=timeout)
            self._writer, self._rows = writer, rows
        return kept

    async def _has(self, rows: Rows, runtime: Runtime) -> bool:
        if rows is self._rows:
            return True
        size = sum(each.nbytes for each in rows.values())
        return same(rows, self._rows) if size <= ON_LOOP_BYTES_MAX else await runtime.offload(same, rows, self._rows)

    async def _release(self) -> None:
        kept, self._kept, self._rows = self._kept, None, {}
        if kept is not None:
            await kept.release()


def same(one: Rows, other: Rows) -> bool:
    """Whether these are the same rows in the same order."""
    return one.keys() == other.keys() and all(rows.equals(other[name]) for name, rows in one.items())
