"""Blocking Minter. The asyncio port says what the calls promise, cost and raise."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

from persist.client.binding import port as aio
from persist.client.binding.port import Bound, RemapSource, ResumptionTold
from persist.client.shard.loop_thread import LoopThread
from persist.core.binding.remap import Binding, RemapTrace
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import SourceTime


class Minter:
    """Bindings of sources, minted in this process or by TimestampMinter servers."""

    def __init__(self, client: object, loop: LoopThread, minter: aio.Minter) -> None:
        self._client = client
        self._loop = loop
        self._minter = minter

    def get_binding(
        self,
        source: RemapSource,
        times: Sequence[SourceTime],
        *,
        high: SourceFrontier | None = None,
        timeout: float | None = None,
    ) -> list[Binding]:
        """For each source time the lowest binding beyond it. See aio.Minter.get_binding."""
        return self._loop.run(self._minter.get_binding(source, times, high=high, timeout=timeout))

    def mint(
        self,
        source: RemapSource,
        wanted: SourceFrontier | None = None,
        *,
        high: SourceFrontier | None = None,
        timeout: float | None = None,
    ) -> Bound:
        """Bind everything before ``wanted``, or complete the present tick. See aio.Minter.mint."""
        return self._loop.run(self._minter.mint(source, wanted, high=high, timeout=timeout))

    def bindings(self, source: RemapSource, *, timeout: float | None = None) -> RemapTrace:
        """All that is committed. See aio.Minter.bindings."""
        return self._loop.run(self._minter.bindings(source, timeout=timeout))

    def watch(self, source: RemapSource, *, timeout: float | None = None) -> Iterator[RemapTrace]:
        """The trace now, and whenever it has changed. See aio.Minter.watch."""
        traces = self._minter.watch(source, timeout=timeout)
        try:
            while (trace := self._loop.run(_next(traces))) is not None:
                yield trace
        finally:
            self._loop.run(_close(traces))

    def resumption(
        self, source: RemapSource, exports: Mapping[str, ShardId], *, timeout: float | None = None
    ) -> ResumptionTold:
        """Where the source goes on. See aio.Minter.resumption."""
        return self._loop.run(self._minter.resumption(source, exports, timeout=timeout))

    def compact(
        self, source: RemapSource, exports: Mapping[str, ShardId], *, timeout: float | None = None
    ) -> Antichain:
        """Let the remap shard forget what lies before resumption - 1. See aio.Minter.compact."""
        return self._loop.run(self._minter.compact(source, exports, timeout=timeout))

    def close(self) -> None:
        """Let go of what it holds. See aio.Minter.close."""
        self._loop.run(self._minter.close())


async def _next(traces: AsyncIterator[RemapTrace]) -> RemapTrace | None:
    return await anext(traces, None)


async def _close(traces: AsyncIterator[RemapTrace]) -> None:
    async with aclosing(cast(Any, traces)):
        pass
