"""The times of a timeline behind gRPC: calls to TimestampOracle, repeated until they are answered or the time is up.

Every call may be repeated at any server: at worst times are lost, which does no harm.
Source: protos/persist/v1/oracle.proto; catalog-semantics.md section 5.3.
"""

import itertools
from collections.abc import Sequence
from typing import Final

from persist.client.remote.channel import Channel, offering
from persist.client.remote.endpoints import Endpoints
from persist.client.timeline.register import seconds
from persist.core.time.timeline import Timeline, oracle_shards
from persist.errors import Indeterminate, LeaseExpired, Overloaded
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.typed import AnyMessage
from persist.v1 import oracle_pb2 as pb
from persist.v1.oracle_pb2_grpc import TimestampOracleStub

TIMES_MAX: Final = 10_000
"""Write times in one answer."""


class RemoteTimes:
    """The Times port over one or several TimestampOracle endpoints, ``HOST:PORT`` separated by commas.

    A timeline has its preferred one, so that the calls of many clients share commits there, and moves on when that is
    down. Write times are not before the server's clock. Raises InvalidArgument (no endpoint, or not such a server).
    """

    follows_clock = False

    def __init__(self, endpoints: str, timeline: Timeline, *, settings: Settings, runtime: Runtime) -> None:
        self._endpoints = Endpoints(endpoints, TimestampOracleStub, settings=settings, runtime=runtime)
        self._shard = oracle_shards(timeline)[0]
        self._timeline = str(timeline)
        self._known = self._applied = 0
        self.over = False

    @property
    def known(self) -> int:
        return self._known

    async def take(self, count: int, not_before: int, not_after: int | None, deadline: Deadline) -> Sequence[int]:
        count = min(count, TIMES_MAX)

        async def attempt(channel: Channel, left: float) -> AnyMessage:
            request = pb.WriteTsRequest(shard_id=self._shard, timeline=self._timeline, count=count)
            with offering("TimestampOracle", "minter", channel.endpoint):
                try:
                    return await channel.unary("WriteTs", request, self._shard, left)
                except Overloaded:
                    if count == 1:
                        raise
                    # So many are refused where the timeline is ahead of the server's clock; one never is.
                    request.count = 1
                    return await channel.unary("WriteTs", request, self._shard, left)

        known = self._known
        answer = await self._endpoints.repeat("WriteTs", self._shard, attempt, seconds(deadline))
        times = list(answer.times)
        if not times or len(times) > count or any(second <= first for first, second in itertools.pairwise(times)):
            raise Indeterminate("the answer makes no sense: rising times were asked for", hint="upgrade the server")
        self._check(times[0], known)
        self._known = max(self._known, times[-1] + 1)
        return times

    async def written(self, deadline: Deadline) -> int:
        request = pb.PeekWriteTsRequest(shard_id=self._shard, timeline=self._timeline)
        known = self._known
        ts: int = (await self._ask("PeekWriteTs", request, deadline)).ts
        self._check(ts + 1, known)
        return self._see(ts)

    async def applied(self, deadline: Deadline) -> int:
        request = pb.ReadTsRequest(shard_id=self._shard, timeline=self._timeline)
        applied = self._applied
        ts: int = (await self._ask("ReadTs", request, deadline)).ts
        self._check(ts, applied)
        self._applied = max(self._applied, ts)
        return self._see(ts)

    async def apply(self, ts: int, deadline: Deadline) -> None:
        request = pb.ApplyWriteRequest(shard_id=self._shard, timeline=self._timeline, ts=ts)
        await self._ask("ApplyWrite", request, deadline)
        self._applied = max(self._applied, ts)
        self._see(ts)

    async def close(self) -> None:
        """Close the connections. A later call makes new ones."""
        await self._endpoints.close()

    def _check(self, time: int, least: int) -> None:
        """Refuse to go back: the servers go on with what a restore left, a client that saw later times does not."""
        if self.over or time < least:
            self.over = True
            raise LeaseExpired(
                "the timeline went back: its location was restored from a backup",
                hint="open the oracle anew, and read anew what was read before",
                time=time,
                least=least,
            )

    def _see(self, ts: int) -> int:
        self._known = max(self._known, ts + 1)
        return ts

    async def _ask(self, rpc: str, request: object, deadline: Deadline) -> AnyMessage:
        async def attempt(channel: Channel, left: float) -> AnyMessage:
            with offering("TimestampOracle", "minter", channel.endpoint):
                return await channel.unary(rpc, request, self._shard, left)

        return await self._endpoints.repeat(rpc, self._shard, attempt, seconds(deadline))
