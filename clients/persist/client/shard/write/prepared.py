"""Batches prepared in one process and committed by another: executors write parts, the driver appends them.

Source: persist-semantics.md feature rows 19, 20, 23; spark.md facts 5 and 6.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from persist.client.shard.loop_thread import process_loop
from persist.client.shard.process_blobs import process_blob
from persist.client.shard.write.batch import BatchBuilder, Bounds, PartsTarget
from persist.client.shard.write.inputs import UpdatesLike, tables, with_defaults
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain, Description
from persist.core.ids import ShardId, WriterId
from persist.core.shard.batch import HollowBatch, Part, Run
from persist.errors import InvalidArgument, InvalidBounds
from persist.runtime import system
from persist.settings import Settings
from persist.wire.shard.batch import batch_from_bytes, batch_to_bytes

UNREGISTERED: Final = (1 << 32) - 1
"""The id of a schema that is not registered yet: no shard takes a part that names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBatch:
    """Parts in Blob (or inline) that nothing names yet. Picklable; ``to_bytes`` is the durable form.

    ``rows`` and ``encoded_bytes`` are sums over ``parts``; ``min_ts`` and ``max_ts`` are None when there are no rows.
    """

    shard: ShardId
    schema_id: int
    runs: tuple[Run, ...]

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return sum(len(run.parts) for run in self.runs)

    @property
    def rows(self) -> int:
        """Updates in all parts."""
        return sum(part.rows for part in _parts(self.runs))

    @property
    def diffs_sum(self) -> int:
        """The sum of all updates' diffs."""
        return sum(part.diffs_sum for part in _parts(self.runs))

    @property
    def encoded_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.encoded_bytes for part in _parts(self.runs))

    @property
    def min_ts(self) -> int | None:
        """The smallest time of any row."""
        return min((part.first_ts for part in _parts(self.runs)), default=None)

    @property
    def max_ts(self) -> int | None:
        """The largest time of any row."""
        return max((part.last_ts for part in _parts(self.runs)), default=None)

    def registered(self, schema_id: int) -> "PreparedBatch":
        """The same parts under the id of the schema they were written with, once the shard has it."""
        runs = tuple(
            Run(parts=tuple(dataclasses.replace(part, schema_id=schema_id) for part in run.parts)) for run in self.runs
        )
        return dataclasses.replace(self, schema_id=schema_id, runs=runs)

    def to_bytes(self) -> bytes:
        """The batch as bytes that any release reading this format understands. Raises nothing."""
        batch = HollowBatch(desc=Description(lower=Antichain.of(0), upper=Antichain()), runs=self.runs)
        return self.shard.encode() + self.schema_id.to_bytes(4, "little") + batch_to_bytes(batch)

    @classmethod
    def from_bytes(cls, data: bytes) -> "PreparedBatch":
        """The batch that ``to_bytes`` wrote. Raises InvalidId, CorruptData."""
        id_end = 37
        shard = ShardId.parse(bytes(data[:id_end]).decode("ascii", "replace"))
        schema_id = int.from_bytes(data[id_end : id_end + 4], "little")
        return cls(shard=shard, schema_id=schema_id, runs=batch_from_bytes(data[id_end + 4 :]).runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """What a process needs to write parts for a shard. Picklable."""

    blob_uri: str
    shard: ShardId
    writer_id: WriterId
    schema: bytes
    schema_id: int
    settings: Settings

    def open(self) -> "PreparedBuilder":
        """A builder in this process, over this process's own connection to Blob. Raises InvalidUri, LocationError."""
        return PreparedBuilder(self)


class PreparedBuilder:
    """Takes Arrow batches and makes a PreparedBatch; blocking. Memory as BatchBuilder."""

    def __init__(self, spec: BatchSpec) -> None:
        self._spec = spec
        self._loop = process_loop()
        self._builder = self._loop.run(self._open())

    async def _open(self) -> BatchBuilder:
        spec = self._spec
        target = PartsTarget(
            blob=process_blob(spec.blob_uri, spec.settings),
            shard=spec.shard,
            writer_id=spec.writer_id,
            schema=Schema.from_bytes(spec.schema),
            schema_id=spec.schema_id,
        )
        return BatchBuilder(target, settings=spec.settings, runtime=system())

    def add(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Take rows in: columns key…, val…, and optionally ts (0 when missing) and diff (+1 when missing).

        Raises SchemaMismatch, InvalidArgument, LocationError.
        """
        self._loop.run(self._builder.add(with_defaults(batch)))

    def finish(self) -> PreparedBatch:
        """The batch of everything added, durable in Blob. Raises as ``add``."""
        runs = self._loop.run(self._builder.finish())
        return PreparedBatch(shard=self._spec.shard, schema_id=self._spec.schema_id, runs=runs)

    def discard(self) -> None:
        """Delete what was uploaded. Only when the batch was never handed to another process."""
        self._loop.run(self._builder.discard())


def completed(updates: UpdatesLike, schema: Schema) -> UpdatesLike:
    """The updates as tables that have a ts and a diff; lazily, unless it is one table."""
    if isinstance(updates, pa.Table | pa.RecordBatch):
        return with_defaults(updates)
    return map(with_defaults, tables(updates, schema))


def moved(run: Run, time: int) -> Run:
    """The run with every time at or before ``time`` read as ``time``."""
    return Run(parts=tuple(part if time <= part.first_ts else _at(part, time) for part in run.parts))


def placed(batches: Sequence[PreparedBatch], shard: ShardId, bounds: Bounds, at_time: int | None) -> tuple[Run, ...]:
    """The runs of prepared batches, moved to ``at_time``. Raises InvalidArgument, InvalidBounds."""
    runs: list[Run] = []
    for batch in batches:
        given: object = batch
        if not isinstance(given, PreparedBatch) or given.shard != shard:
            raise InvalidArgument(
                "not a batch prepared for this shard", hint="use this writer's batch_spec()", shard=shard
            )
        runs.extend(Run(parts=tuple(_at(part, at_time) for part in run.parts)) for run in batch.runs)
    for part in _parts(runs):
        _check_times(part, bounds)
    return tuple(runs)


def _at(part: Part, at_time: int | None) -> Part:
    return part if at_time is None else dataclasses.replace(part, ts_rewrite=at_time)


def _check_times(part: Part, bounds: Bounds) -> None:
    lower, upper = bounds
    if not lower.less_equal_time(part.first_ts) or not upper.beyond(part.last_ts):
        raise InvalidBounds(
            "prepared rows lie outside [expected_upper, new_upper)",
            hint="give at_time, or bounds that cover the rows",
            lower=lower,
            upper=upper,
            first_ts=part.first_ts,
            last_ts=part.last_ts,
        )


def _parts(runs: Iterable[Run]) -> Iterable[Part]:
    return (part for run in runs for part in run.parts)
