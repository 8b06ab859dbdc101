"""A tiny shard machine in memory that keeps the commit contract: the other side of lanes and servicer in tests.

It knows appends by token, uppers and readers' sinces; it can be slow, stuck or broken on request.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from persist.core.frontier import CLOSED, MINIMUM, Antichain
from persist.core.ids import ReaderId, ShardId
from persist.core.shard import commands as c
from persist.core.shard.batch import HollowBatch
from persist.errors import LeaseExpired, NotReadable, ShardClosed, ShardNotFound
from persist.machine.shards import NotYet, ShardInfo, ShardMoved, SnapshotPlan


class _Shard:
    def __init__(self) -> None:
        self.seqno = 0
        self.upper = MINIMUM
        self.batches: list[HollowBatch] = []
        self.done: dict[object, c.Appended] = {}
        self.readers: dict[ReaderId, Antichain] = {}
        self.schemas: list[c.SchemaEntry] = []
        self.moved = asyncio.Event()


class MemoryShards:
    """Shards in memory. ``folds`` lists the sizes of all commits; ``gate`` holds commits back while it is unset."""

    blob_uri = "mem:test"

    def __init__(self) -> None:
        self.shards: dict[ShardId, _Shard] = {}
        self.folds: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fault: Exception | None = None
        self.closed = False

    async def commit(self, shard: ShardId, commands: Sequence[c.Command[Any]], *, timeout: float) -> list[Any]:
        self.folds.append(len(commands))
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        state = self._state(shard)
        outcomes = []
        for command in commands:
            try:
                outcomes.append(self._apply(state, command))
            except (ShardClosed, LeaseExpired) as error:
                outcomes.append(error)
        moved, state.moved = state.moved, asyncio.Event()
        moved.set()
        return outcomes

    async def apply(self, shard: ShardId, command: c.Command[Any], *, timeout: float) -> Any:
        (outcome,) = await self.commit(shard, [command], timeout=timeout)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def open(self, shard: ShardId, *, create: bool = True, timeout: float) -> ShardInfo:
        if create:
            self.shards.setdefault(shard, _Shard())
        return self._info(shard)

    async def snapshot(
        self, shard: ShardId, as_of: Antichain, *, reader_id: ReaderId | None = None, timeout: float
    ) -> SnapshotPlan | NotYet:
        state = self._state(shard)
        time = as_of.time
        if time is None:
            raise NotReadable("as_of must hold a time", since=MINIMUM)
        if state.upper.less_equal_time(time):
            return NotYet(info=self._info(shard))
        return SnapshotPlan(info=self._info(shard), as_of=as_of, batches=tuple(state.batches))

    async def fetch(self, shard: ShardId, frontier: Antichain, *, timeout: float) -> ShardMoved:
        state = self._state(shard)
        found = tuple(batch for batch in state.batches if frontier.less_than(batch.desc.upper))
        return ShardMoved(info=self._info(shard), batches=found)

    async def watch(self, shard: ShardId, frontier: Antichain, *, timeout: float) -> AsyncIterator[ShardMoved]:
        try:
            async with asyncio.timeout(timeout):
                state = self._state(shard)
                while True:
                    moved = state.moved
                    change = await self.fetch(shard, frontier, timeout=timeout)
                    if change.batches:
                        frontier = change.info.upper
                        yield change
                    if frontier.is_empty:
                        return
                    await moved.wait()
        except TimeoutError:
            return

    async def inspect(self, shard: ShardId, *, timeout: float) -> Mapping[str, Any]:
        state = self._state(shard)
        return {"seqno": state.seqno, "upper": list(state.upper.elements), "padding": "x" * 3_000_000}

    async def list(self, *, timeout: float) -> AsyncIterator[ShardId]:
        for shard in sorted(self.shards):
            yield shard

    async def work(self, *, timeout: float) -> AsyncIterator[ShardId]:
        for shard in sorted(self.shards):
            yield shard

    async def close(self) -> None:
        self.closed = True

    def _state(self, shard: ShardId) -> _Shard:
        if shard not in self.shards:
            raise ShardNotFound("no such shard", shard=shard)
        return self.shards[shard]

    def _info(self, shard: ShardId) -> ShardInfo:
        state = self._state(shard)
        return ShardInfo(shard=shard, seqno=state.seqno, since=MINIMUM, upper=state.upper, schemas=tuple(state.schemas))

    def _apply(self, state: _Shard, command: c.Command[Any]) -> Any:
        match command:
            case c.CompareAndAppend(batch=batch):
                name = (command.call.session, command.call.number) if command.call else command.token
                return self._append(state, name, batch)
            case c.CloseCall(call=call):
                return state.done.get((call.session, call.number)) or c.Closed(seqno=state.seqno)
            case c.RegisterLeasedReader(reader_id=reader):
                state.readers[reader] = MINIMUM
                return c.ReaderRegistered(since=MINIMUM, upper=state.upper, seqno=state.seqno)
            case c.DowngradeSince(reader_id=reader, since=since):
                if reader not in state.readers:
                    raise LeaseExpired("no such reader", reader=reader)
                state.readers[reader] = state.readers[reader].join(since)
                return c.SinceDowngraded(since=state.readers[reader])
            case c.ExpireReader(reader_id=reader):
                return c.Expired(existed=state.readers.pop(reader, None) is not None)
            case c.RegisterSchema(schema=schema, codec=codec):
                if not state.schemas:
                    state.schemas.append(c.SchemaEntry(schema_id=0, schema=schema, codec=codec))
                return c.SchemaRegistered(entry=state.schemas[-1])
            case _:
                raise ShardClosed("not modelled here", command=type(command).__name__)

    def _append(self, state: _Shard, token: object, batch: HollowBatch) -> c.Appended | c.UpperMismatch:
        known = state.done.get(token)
        if known is not None:
            return c.Appended(upper=known.upper, seqno=known.seqno, already_committed=True)
        if state.upper == CLOSED:
            raise ShardClosed("the shard is closed")
        if batch.desc.lower != state.upper:
            return c.UpperMismatch(upper=state.upper, seqno=state.seqno)
        state.seqno += 1
        state.upper = batch.desc.upper
        state.batches.append(batch)
        state.done[token] = outcome = c.Appended(upper=state.upper, seqno=state.seqno)
        return outcome
