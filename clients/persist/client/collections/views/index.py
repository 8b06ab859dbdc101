"""One index at work: the rows of a collection in a shard of its own, sorted by other columns.

Rows come as changes at their own times, so at every time that it has it holds what the collection does: no query is
run, and nothing but changes is read. Source: collections: the hold, once (a new index); queries (index).
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pyarrow as pa

from persist.client.collections.views.difference import at_times
from persist.client.collections.views.feeding import Feeding, FeedingClient, horizon
from persist.client.collections.views.kept import KeptRows
from persist.client.collections.views.materialized import Passed
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.errors import NotReadable


class Index:
    """Of one process. Any number of processes may do the same."""

    def __init__(self, client: FeedingClient, shard: ShardId, schema: Schema, on: ShardId) -> None:
        """``schema``: the columns of the collection, those that it is looked up by as its key."""
        self._kept = KeptRows(client, shard, schema)
        self._input = Feeding(client, on)

    async def work(self) -> Passed:
        """Take over what is complete. May be cancelled at any point, and repeated. Raises as MaterializedView."""
        upper = await self._kept.upper()
        if upper.time is None:
            return Passed(upper)
        complete = await horizon([self._input])
        appended = 0
        if not upper.time:
            begun = await self._begin(complete)
            if not begun.appended:
                return begun
            upper, appended = begun.upper, 1
        lower = upper.time or 0
        if complete.time is None or lower < complete.time:
            changes = self._updates((await self._input.diffs(lower, complete)).to_batches())
            if not await self._kept.append(changes, lower, complete.time):
                return Passed(await self._kept.upper(), appended=appended)
            upper, appended = complete, appended + 1
        if upper.time is not None:
            await self._input.release(upper.time - 1)
        return Passed(upper, appended=appended)

    async def close(self) -> None:
        """Release the input."""
        await self._input.close()
        self._kept.forget()

    async def _begin(self, complete: Antichain) -> Passed:
        """What there is at the time from which on the index is to be readable."""
        time = await self._kept.since()
        if complete.time is not None and complete.time <= time:
            return Passed(Antichain.of(0))
        if (since := await self._input.since()) > time:
            raise NotReadable(
                "the collection cannot be read any more at the time at which the index is to begin",
                hint="drop the index and create it again",
                since=since,
                begins=time,
            )
        rows = self._updates((await self._input.snapshot(time)).to_batches(), time)
        if not await self._kept.append(rows, 0, time + 1):
            return Passed(await self._kept.upper())
        return Passed(Antichain.of(time + 1), appended=1)

    async def _updates(
        self, batches: AsyncGenerator[pa.RecordBatch, None], time: int | None = None
    ) -> AsyncGenerator[pa.Table, None]:
        """Batch by batch: neither a collection nor what changed of it need fit into memory."""
        async with aclosing(batches):
            async for batch in batches:
                yield at_times(pa.Table.from_batches([batch]), self._kept.schema, time)
