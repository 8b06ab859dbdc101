"""Repair: finding a shard's unreadable parts, reporting what is lost with them, and taking them out.

Reading one damaged part fails the whole read, and compaction meets it, too. Once its bytes are certainly lost, the
shard is worth more without it. It is one commit, which names what was looked at: what changed meanwhile stays.
Source: docs/runbook.md, repair; reliability.md I8, I9 and I24.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from persist.core.data.schema import Schema
from persist.core.frontier import Description
from persist.core.ids import ShardId
from persist.core.shard.batch import HollowBatch, Part, Run, fingerprint
from persist.core.shard.commands import LostParts, NotTakenOut, PartsTakenOut, TakeOutParts
from persist.core.shard.state import State
from persist.errors import Determinate, ShardNotFound
from persist.machine.intake import schemas_of
from persist.machine.parts.one_blob import NotReturned, OneByOne
from persist.machine.shards import Shards
from persist.machine.versions import Versions
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.wire.columnar.verify import PartFlaw, verify_blob, verify_inline_run

LOOKS_MAX = 8
"""How often a shard that changes under the repair is looked at anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """An unreadable part, and what is lost with it.

    ``desc``: what its batch covers. ``key``: its blob, None when it was inline. ``rows``, ``diffs_sum``, the times
    ``[min_ts, max_ts]`` and the canonical key bounds are what its description says, as nothing else can.
    """

    shard: ShardId
    desc: Description
    key: str | None
    rows: int
    encoded_bytes: int
    diffs_sum: int
    min_ts: int
    max_ts: int
    key_lower: bytes
    key_upper: bytes | None
    why: str
    batch: bytes
    place: tuple[int, int]


Report = Callable[[int], None]


class PartRepair:
    """Looks for unreadable parts in the newest state of shards, and takes them out. Memory: one part."""

    def __init__(self, shards: Shards, versions: Versions, *, settings: Settings, runtime: Runtime) -> None:
        self._shards = shards
        self._versions = versions
        self._settings = settings
        self._reads = OneByOne(versions.blob, settings=settings, runtime=runtime)
        self._runtime = runtime

    async def find(
        self, shard: ShardId, *, deep: bool = False, report: Report = lambda parts: None
    ) -> tuple[Loss, ...]:
        """The unreadable parts of a shard: inline ones that are damaged, blobs that are gone or cut.

        ``deep``: blobs are read and decoded, too. ``report`` is called for each part looked at. Raises ShardNotFound,
        LocationError, CorruptData (the state itself is damaged).
        """
        deadline = Deadline(self._runtime, self._settings.maintenance_timeout_ms / 1000)
        state = await self._newest(shard, deadline)
        sizes = {key: size async for key, size in self._sizes(shard)}
        schemas = schemas_of(state.schemas)
        losses: list[Loss] = []
        for batch in state.trace.batches:
            for number, run in enumerate(batch.runs):
                before: Part | None = None
                for at, part in enumerate(run.parts):
                    why = await self._why(part, before, schemas, sizes, deep=deep)
                    report(1)
                    if why:
                        losses.append(_loss(shard, batch, (number, at), part, why))
                    else:
                        before = part
        if not losses:
            return ()
        # What was compacted away meanwhile may have been collected: it is not lost.
        # Bytes may have been read for hours: this takes time of its own.
        deadline = Deadline(self._runtime, self._settings.maintenance_timeout_ms / 1000)
        now = {fingerprint(batch) for batch in (await self._newest(shard, deadline)).trace.batches}
        return tuple(loss for loss in losses if loss.batch in now)

    async def take_out(self, shard: ShardId, losses: Sequence[Loss]) -> bool:
        """Take these parts out with one commit. False: nothing happened, as the shard has changed; look again.

        Raises LocationError; after Indeterminate ``find`` shows whether it happened.
        """
        places: dict[bytes, list[tuple[int, int]]] = {}
        for loss in losses:
            places.setdefault(loss.batch, []).append(loss.place)
        command = TakeOutParts(lost=tuple(LostParts(batch=key, places=tuple(each)) for key, each in places.items()))
        timeout = self._settings.timeout_ms / 1000
        await self._shards.open(shard, create=False, timeout=timeout)
        outcome: PartsTakenOut | NotTakenOut = await self._shards.apply(shard, command, timeout=timeout)
        return isinstance(outcome, PartsTakenOut)

    async def repair(
        self, shard: ShardId, *, deep: bool = False, report: Report = lambda parts: None
    ) -> tuple[Loss, ...]:
        """Find and take out, until what was found is out; what was lost. Raises as both do."""
        for _ in range(LOOKS_MAX):
            losses = await self.find(shard, deep=deep, report=report)
            if not losses or await self.take_out(shard, losses):
                return losses
        raise Determinate("the shard changed too often under the repair", hint="run it again", shard=shard)

    async def _newest(self, shard: ShardId, deadline: Deadline) -> State:
        version = await self._versions.load(shard, deadline)
        if version is None:
            raise ShardNotFound("no such shard here", hint="check the id and the location", shard=shard)
        return version.state

    async def _sizes(self, shard: ShardId) -> AsyncIterator[tuple[str, int]]:
        timeout = self._settings.blob_timeout_ms / 1000
        async for key, size in self._versions.blob.list(f"{shard}/", timeout=timeout):
            yield key, size

    async def _why(
        self,
        part: Part,
        before: Part | None,
        schemas: Sequence[Schema],
        sizes: Mapping[str, int],
        *,
        deep: bool,
    ) -> str:
        """Why a part cannot be read; empty: it can be read, as far as was looked."""
        if part.key is None:
            follows = before is not None and before.inline is not None
            parts = (before, part) if before is not None and follows else (part,)
            return await self._runtime.offload(_inline_flaw, Run(parts=parts), schemas)
        size = sizes.get(part.key)
        if size is None:
            return "its blob is missing"
        if size != part.encoded_bytes:
            return f"its blob has {size:,} bytes, and must have {part.encoded_bytes:,}"
        if not deep:
            return ""
        data = await self._bytes(part.key)
        if data is None:
            return "its blob is missing"
        return await self._runtime.offload(_blob_flaw, part, data, schemas)

    async def _bytes(self, key: str) -> bytes | None:
        """SUBTLE: what the store does not return may be whole, and is not taken out."""
        try:
            return await self._reads.get(key)
        except NotReturned as error:
            raise Determinate(error.message, hint=error.hint, **error.details) from error


def _inline_flaw(run: Run, schemas: Sequence[Schema]) -> str:
    try:
        verify_inline_run(run, schemas)
    except PartFlaw as flaw:
        return str(flaw)
    return ""


def _blob_flaw(part: Part, data: bytes, schemas: Sequence[Schema]) -> str:
    try:
        verify_blob(part, data, schemas[part.schema_id])
    except PartFlaw as flaw:
        return str(flaw)
    return ""


def _loss(shard: ShardId, batch: HollowBatch, place: tuple[int, int], part: Part, why: str) -> Loss:
    return Loss(
        shard=shard,
        desc=batch.desc,
        key=part.key,
        rows=part.rows,
        encoded_bytes=part.encoded_bytes,
        diffs_sum=part.diffs_sum,
        min_ts=part.first_ts,
        max_ts=part.last_ts,
        key_lower=part.key_lower,
        key_upper=part.key_upper,
        why=why,
        batch=fingerprint(batch),
        place=place,
    )
