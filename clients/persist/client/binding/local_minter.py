"""LocalMinter: bindings minted by compare_and_append from this process. Any number of them may run at once.

Source: design 003; catalog-semantics.md sections 4.2 and 5; reliability.md I18-I20.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

import pyarrow as pa

from persist.client.binding.looking import incarnation_there, not_found
from persist.client.binding.port import Bound, RemapSource, ResumptionOf, Resumptions
from persist.client.binding.remap_shard import Ask, MinterCounts, RemapShard
from persist.client.shard.client import ShardClient
from persist.client.shard.handles import Closes
from persist.client.shard.read.listen import Updates
from persist.core.binding.lives import precedes
from persist.core.binding.remap import Binding, RemapTrace
from persist.core.binding.remap_rows import REMAP_SCHEMA, from_table, replaced
from persist.core.binding.resumption import ExportUpper, offset_resumption, offsets_of, remap_since, resumption_of
from persist.core.binding.resumption import resumption as source_resumption
from persist.core.frontier import MINIMUM, Antichain
from persist.core.ids import ShardId
from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import SourceKind, SourceTime
from persist.core.time.errors import UpstreamReplaced
from persist.errors import ShardNotFound
from persist.retry.deadline import Deadline

SOURCES_MAX: Final = 256
"""Sources whose bindings are kept in memory; the one that was asked for least recently makes room."""
INCARNATIONS_MAX: Final = 10_000
"""Remap shards whose incarnation is kept in memory."""
BINDINGS_BETWEEN: Final = 1_000
"""Bindings that a watch yields before it looks which of them were forgotten."""

_Key = tuple[ShardId, SourceKind, str]


class LocalMinter(Closes):
    """The Minter port over a client. Borrows the client; everything it keeps can be lost at any time."""

    _noun = "minter"
    _again = "ask the client for another one"

    def __init__(self, client: ShardClient) -> None:
        self._client = client
        self._shards: dict[_Key, RemapShard] = {}
        self._counts = MinterCounts()
        self._incarnations: OrderedDict[ShardId, str] = OrderedDict()

    @property
    def counters(self) -> Mapping[str, int]:
        """``minted``: appends that bound something; ``mismatches``: appends that another minter was faster than."""
        return {"minted": self._counts.minted, "mismatches": self._counts.mismatches}

    async def get_binding(
        self,
        source: RemapSource,
        times: Sequence[SourceTime],
        *,
        high: SourceFrontier | None = None,
        timeout: float | None = None,
    ) -> list[Binding]:
        """See Minter.get_binding. What is known to be committed costs one RPC a second; else one append for all that
        wait.
        """
        deadline = self._deadline(timeout)
        wanted = SourceFrontier.through(source.kind, times)
        shard = await self._shard(source, deadline)
        await shard.confirm(deadline)
        if not shard.log.trace.is_initialized or not wanted.releases_within(shard.log.trace.frontier):
            await shard.bind(Ask(wanted, high, source.rules), deadline)
        return [shard.log.lookup(time) for time in times]

    async def mint(
        self,
        source: RemapSource,
        wanted: SourceFrontier | None = None,
        *,
        high: SourceFrontier | None = None,
        timeout: float | None = None,
    ) -> Bound:
        """See Minter.mint. One append for all that wait; one RPC a second when everything is bound."""
        deadline = self._deadline(timeout)
        shard = await self._shard(source, deadline, begins=True)
        await shard.confirm(deadline)
        await shard.bind(Ask(wanted, high, source.rules), deadline)
        trace = shard.log.trace
        return Bound(frontier=trace.frontier, upper=trace.upper, since=trace.since)

    async def bindings(self, source: RemapSource, *, timeout: float | None = None) -> RemapTrace:
        """See Minter.bindings. One RPC, and one read when there is news."""
        deadline = self._deadline(timeout)
        shard = await self._shard(source, deadline)
        return (await shard.sync(deadline)).trace

    async def watch(self, source: RemapSource, *, timeout: float | None = None) -> AsyncGenerator[RemapTrace, None]:
        """See Minter.watch. One watch stream."""
        trace = await self.bindings(source, timeout=timeout)
        yield trace
        upper = trace.upper.time
        if upper is None:
            return
        reader = await self._client.open_reader(
            source.remap, schema=REMAP_SCHEMA, purpose="watch of bindings", use_critical_since=True
        )
        listen = await reader.listen(max(upper - 1, 0), timeout=timeout, downgrade=True)
        found: list[pa.Table] = []
        kept = len(trace.bindings)
        async with aclosing(listen), reader:
            async for event in listen:
                if isinstance(event, Updates):
                    found.append(event.table)
                elif trace.upper.less_than(event.upper):
                    rows = pa.concat_tables(found) if found else REMAP_SCHEMA.updates.empty_table()
                    trace = trace.extended(from_table(source.kind, source.incarnation, rows), event.upper)
                    found = []
                    if len(trace.bindings) > kept + BINDINGS_BETWEEN:
                        trace = trace.compacted(await self._since(source, self._deadline(None)))
                        kept = len(trace.bindings)
                    yield trace

    async def resumption(
        self, source: RemapSource, exports: Mapping[str, ShardId], *, timeout: float | None = None
    ) -> Resumptions:
        """See Minter.resumption. One RPC per export, and one for the bindings."""
        trace, states = await self._states(source, exports, self._deadline(timeout))
        return Resumptions(
            source=ResumptionOf(time=source_resumption(trace, states), offsets=offset_resumption(trace, states)),
            exports={
                state.name: ResumptionOf(time=resumption_of(trace, state), offsets=offsets_of(trace, state))
                for state in states
            },
        )

    async def compact(
        self,
        source: RemapSource,
        exports: Mapping[str, ShardId],
        *,
        hold: Antichain | None = None,
        timeout: float | None = None,
    ) -> Antichain:
        """See Minter.compact. As ``resumption``, and one command."""
        deadline = self._deadline(timeout)
        trace, states = await self._states(source, exports, deadline)
        since = remap_since(trace, states, [] if hold is None else [hold])
        return await (await self._shard(source, deadline)).compact(since, deadline)

    async def close(self) -> None:
        """Release the readers' leases. The client stays open."""
        shards, self._shards = list(self._shards.values()), {}
        for shard in shards:
            await shard.close()

    def __repr__(self) -> str:
        return f"<Minter in {self._client}: {len(self._shards)} sources>"

    def _deadline(self, timeout: float | None) -> Deadline:
        location = self._client.location
        location.check_open()
        return location.attempts.deadline(timeout)

    async def _shard(self, source: RemapSource, deadline: Deadline, *, begins: bool = False) -> RemapShard:
        self._check_incarnation(source)
        key = (source.remap, source.kind, source.incarnation)
        if key not in self._shards:
            await self._look(source, deadline, begins=begins)
        shard = self._shards.pop(key, None) or RemapShard(self._client, source, self._counts)
        if len(self._shards) >= SOURCES_MAX:
            idle = [other for other, each in self._shards.items() if not each.is_busy]
            for other in idle[: len(self._shards) + 1 - SOURCES_MAX]:
                await self._shards.pop(other).close()
        self._shards[key] = shard
        try:
            await shard.open(deadline)
        except UpstreamReplaced as error:
            self._shards.pop(key, None)
            if not precedes(found := error.details["incarnation"], source.incarnation):
                self._remember(source.remap, found)
            await shard.close()
            raise
        if shard.log.trace.is_initialized:
            self._remember(source.remap, source.incarnation)
        for other in [each for each in self._shards if each[:2] == key[:2] and precedes(each[2], key[2])]:
            # It binds nothing more, and its reader would keep all of the history from then on.
            await self._shards.pop(other).close()
        return shard

    def _check_incarnation(self, source: RemapSource) -> None:
        """Raise UpstreamReplaced for another incarnation than the remap shard's, or one that follows it. No RPC."""
        found = self._incarnations.get(source.remap, source.incarnation)
        if found != source.incarnation and not precedes(found, source.incarnation):
            raise replaced(found, source.incarnation)

    def _remember(self, remap: ShardId, incarnation: str) -> None:
        self._incarnations[remap] = incarnation
        self._incarnations.move_to_end(remap)
        if len(self._incarnations) > INCARNATIONS_MAX:
            self._incarnations.popitem(last=False)

    async def _look(self, source: RemapSource, deadline: Deadline, *, begins: bool) -> None:
        """Asking for a source that is not there creates nothing. Raises ShardNotFound, UpstreamReplaced."""
        found = await incarnation_there(self._client, source, deadline)
        if found is None and not begins:
            raise await not_found(self._client, source, deadline)
        if found is not None and found != source.incarnation and not precedes(found, source.incarnation):
            self._remember(source.remap, found)
            raise replaced(found, source.incarnation)

    async def _states(
        self, source: RemapSource, exports: Mapping[str, ShardId], deadline: Deadline
    ) -> tuple[RemapTrace, list[ExportUpper]]:
        """The uppers of the exports, and bindings that were committed after those were."""
        uppers = await asyncio.gather(*(self._upper(shard, deadline) for shard in exports.values()))
        shard = await self._shard(source, deadline)
        log = await shard.sync(deadline)
        return log.trace, [ExportUpper(name, upper) for name, upper in zip(exports, uppers, strict=True)]

    async def _since(self, source: RemapSource, deadline: Deadline) -> Antichain:
        location = self._client.location
        info = await location.attempts.repeat(
            deadline, lambda seconds: location.shards.open(source.remap, create=False, timeout=seconds)
        )
        return info.since

    async def _upper(self, shard: ShardId, deadline: Deadline) -> Antichain:
        try:
            return await self._client.recent_upper(shard, timeout=deadline.slice())
        except ShardNotFound:
            return MINIMUM
