"""Compaction beyond one machine: pieces of disjoint key ranges, carried out anywhere, one commit at the end.

The planning and the merge are those of every compaction; only where they run differs. The process that began it keeps
the claim fresh until it is committed or abandoned. Source: architecture.md section 6; persist-semantics.md section 2.4.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from persist.client.shard.handles import Stays
from persist.client.shard.location import Location
from persist.client.shard.loop_thread import process_loop
from persist.client.shard.process_blobs import process_blob
from persist.core.frontier import Antichain, Description
from persist.core.ids import ShardId, WriterId
from persist.core.shard.batch import HollowBatch, Part, Run
from persist.core.shard.commands import CompactionClaimed
from persist.core.shard.compaction import Wanted
from persist.errors import InvalidArgument, LeaseExpired, LocationError, PersistError
from persist.machine.compaction.compactor import Compacted, Compactor, batch_of
from persist.machine.parts.budget import Budget
from persist.machine.parts.merging import Merging, segments
from persist.machine.parts.reading import Reading, compaction_of
from persist.retry.attempts import Attempts
from persist.runtime import Runtime, system
from persist.settings import Settings
from persist.storage.ports import Blob
from persist.wire.shard.batch import batch_from_bytes, batch_to_bytes

_REUSED_FROM = 2
"""A part of half the target size or more is kept as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPiece:
    """One key range of a compaction. Picklable; ``run`` it in any process that reaches the blob store, once or more.

    A piece that is run twice leaves parts behind that no state names; the sweeper finds them.
    """

    blob_uri: str
    settings: Settings
    shard: ShardId
    owner: WriterId
    reading: Reading

    @property
    def rows(self) -> int:
        """Updates in the parts to be read."""
        return self.reading.rows

    @property
    def encoded_bytes(self) -> int:
        """Bytes of the parts to be read."""
        return self.reading.encoded_bytes

    def run(self) -> bytes:
        """Merge this range and write its parts; what ``Compaction.commit`` needs of it. Blocking, bounded memory.

        Raises CorruptData, LocationError.
        """
        return process_loop().run(self._run())

    async def _run(self) -> bytes:
        settings = self.settings
        place = _Place(process_blob(self.blob_uri, settings), settings, system())
        merging = Merging(place, shard=self.shard, owner=self.owner, budget=Budget.of(settings))
        try:
            parts = await merging.merged(self.reading)
        except BaseException:
            await merging.discard()
            raise
        await merging.tidy()
        desc = Description(lower=Antichain.of(0), upper=Antichain())
        return batch_to_bytes(HollowBatch(desc=desc, runs=(Run(parts=parts),) if parts else ()))


class Compaction(Stays):
    """A claimed compaction: hand out ``pieces``, then ``commit`` what they returned, or ``abandon``."""

    def __init__(self, location: Location, shard: ShardId, owner: WriterId, claim: CompactionClaimed) -> None:
        self._location = location
        self._shard = shard
        self._owner = owner
        self._claim = claim
        self._compactor = Compactor(location.shards, location, steps=False)
        self._keeping = location.tasks.start(self._compactor.keep(shard, owner, claim, wanted=Wanted(whole=True)))
        self._layout: list[Part | int] = []
        self._pieces: list[CompactionPiece] = []
        self._offered = False

    @classmethod
    async def begin(cls, location: Location, shard: ShardId) -> "Compaction | None":
        """Claim all of a shard that no other process compacts; None when it is as compact as it can be at once.

        Batches that are too large for one claim are merged by PersistCompaction, step by step.

        Raises LocationError.
        """
        compactor = Compactor(location.shards, location, steps=False)
        owner = compactor.new_owner()
        try:
            claim = await compactor.claim(shard, owner, wanted=Wanted(whole=True))
        except LeaseExpired:
            # Fenced off by a clock further ahead, of which the next name takes account.
            owner = compactor.new_owner()
            claim = await compactor.claim(shard, owner, wanted=Wanted(whole=True))
        return None if claim is None else cls(location, shard, owner, claim)

    @property
    def rows(self) -> int:
        """Updates to compact."""
        return sum(batch.rows for batch in self._claim.batches)

    @property
    def encoded_bytes(self) -> int:
        """Bytes to compact."""
        return sum(batch.encoded_bytes for batch in self._claim.batches)

    def pieces(self, n: int) -> list[CompactionPiece]:
        """About ``n`` pieces in key order, fewer when there is little to do. No RPC. Raises InvalidArgument."""
        if n < 1:
            raise InvalidArgument("a compaction has at least one piece", n=n)
        settings = self._location.settings
        self._layout, self._pieces = [], []
        if not self.rows:
            return []
        since = self._claim.since.time or 0
        reading = compaction_of(self._claim.batches, self._claim.schemas, settings, since)
        reuse = Budget.of(settings).part_bytes // _REUSED_FROM
        for segment in segments(reading, reuse_bytes_min=reuse):
            if isinstance(segment, Part):
                self._layout.append(segment)
                continue
            share = max(1, round(n * segment.rows / max(1, reading.rows)))
            for piece in segment.split(share):
                self._layout.append(len(self._pieces))
                self._pieces.append(self._piece(piece))
        return list(self._pieces)

    async def commit(self, results: Sequence[bytes]) -> Compacted:
        """Put what the pieces returned, in their order, in the place of what was claimed: one command.

        Raises InvalidArgument (not one result per piece), LeaseExpired (the claim was taken over), LocationError.
        """
        if len(results) != len(self._pieces):
            raise InvalidArgument("one result per piece", pieces=len(self._pieces), results=len(results))
        done = [batch_from_bytes(result).parts for result in results]
        parts: list[Part] = []
        for place in self._layout:
            parts.extend([place] if isinstance(place, Part) else done[place])
        output = batch_of(self._claim, tuple(parts))

        self._offered = True
        try:
            applied = await self._compactor.offer(self._shard, self._owner, self._claim, output)
        finally:
            await self._end()
        return Compacted(
            desc=output.desc,
            batches=len(self._claim.batches),
            runs=sum(len(batch.runs) for batch in self._claim.batches),
            rows_before=self.rows,
            rows_after=output.rows,
            bytes_before=self.encoded_bytes,
            bytes_after=output.encoded_bytes,
            parts_reused=sum(isinstance(place, Part) for place in self._layout),
            applied=applied,
        )

    async def abandon(self, results: Sequence[bytes] = ()) -> None:
        """Give the claim up and delete what these pieces wrote.

        Once ``commit`` was called nothing is deleted, however that ended: the shard may name the parts, or come to name
        them. What it does not name is left to ``persist admin sweep``. Raises LocationError: the claim runs out by
        itself, and the sweeper finds the parts.
        """
        await self._end()
        await self._compactor.release(self._shard, self._owner)
        if self._offered:
            return
        await self._delete([part for result in results for part in batch_from_bytes(result).parts])

    def __repr__(self) -> str:
        return f"<Compaction of {self._shard}: {self.rows:,} rows, {self.encoded_bytes:,} bytes>"

    async def _end(self) -> None:
        self._keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError, PersistError):
            await self._keeping
        await self._compactor.close()

    async def _delete(self, parts: Sequence[Part]) -> None:
        location = self._location
        for part in parts:
            with contextlib.suppress(LocationError):
                if part.key is not None:
                    await location.blob.delete(part.key, timeout=location.settings.store_timeout_ms / 1000)

    def _piece(self, reading: Reading) -> CompactionPiece:
        location = self._location
        return CompactionPiece(
            blob_uri=location.blob.uri,
            settings=location.settings,
            shard=self._shard,
            owner=self._owner,
            reading=reading,
        )


class _Place:
    """The blob store of this process."""

    def __init__(self, blob: Blob, settings: Settings, runtime: Runtime) -> None:
        self.blob = blob
        self.settings = settings
        self.runtime = runtime
        self.attempts = Attempts(settings=settings, runtime=runtime)
