"""TimestampOracle beside TimestampMinter: the handlers, and what a host hosts. No state but connections.

Source: protos/persist/v1/oracle.proto; style.md rule 12.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc.aio

from persist.client.client import Client
from persist.client.timeline.oracle import Oracle
from persist.core.time.timeline import oracle_shards, timeline_of
from persist.errors import InvalidArgument, LeaseExpired
from persist.typed import AnyMessage
from persist.v1 import oracle_pb2 as pb
from persist.v1.oracle_pb2_grpc import TimestampOracleServicer, add_TimestampOracleServicer_to_server
from persist_host.calls import Context, seconds_left

T = TypeVar("T")

TIMES_MAX: Final = 10_000
"""Write times in one answer."""


class OracleServicer(TimestampOracleServicer):
    """TimestampOracle over a client, which shares commits among all calls."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def WriteTs(self, request: pb.WriteTsRequest, context: Context) -> pb.WriteTsResponse:
        """Times for the caller."""
        if not 1 <= request.count <= TIMES_MAX:
            raise InvalidArgument("a call asks for some times", hint=f"1 to {TIMES_MAX}", count=request.count)
        left = seconds_left(context)
        times = await self._ask(request, context, lambda oracle: oracle.write_times(request.count, timeout=left))
        return pb.WriteTsResponse(times=times)

    async def PeekWriteTs(self, request: pb.PeekWriteTsRequest, context: Context) -> pb.PeekWriteTsResponse:
        """The greatest time given."""
        left = seconds_left(context)
        ts = await self._ask(request, context, lambda oracle: oracle.peek_write_ts(timeout=left))
        return pb.PeekWriteTsResponse(ts=ts)

    async def ReadTs(self, request: pb.ReadTsRequest, context: Context) -> pb.ReadTsResponse:
        """The greatest time applied."""
        left = seconds_left(context)
        return pb.ReadTsResponse(ts=await self._ask(request, context, lambda oracle: oracle.read_ts(timeout=left)))

    async def ApplyWrite(self, request: pb.ApplyWriteRequest, context: Context) -> pb.ApplyWriteResponse:
        """Apply a time."""
        left = seconds_left(context)
        await self._ask(request, context, lambda oracle: oracle.apply_write(request.ts, timeout=left))
        return pb.ApplyWriteResponse()

    async def _ask(self, request: AnyMessage, context: Context, call: Callable[[Oracle], Awaitable[T]]) -> T:
        """What the timeline's oracle answers. After a restore another one: what a caller knew, the caller compares."""
        try:
            return await call(await self._oracle(request, context))
        except LeaseExpired:
            return await call(await self._oracle(request, context))

    async def _oracle(self, request: AnyMessage, context: Context) -> Oracle:
        timeline = timeline_of(request.timeline)
        shard = oracle_shards(timeline)[0]
        if request.shard_id != shard:
            raise InvalidArgument("this shard is not the timeline's", hint=f"its write time is in {shard}")
        return await self._client.oracle(timeline, timeout=seconds_left(context))


class OracleService:
    """Uses the client and leaves closing it to its owner, who comes later among the host's services."""

    name: Final = "persist.v1.TimestampOracle"
    undated: frozenset[str] = frozenset()

    def __init__(self, client: Client) -> None:
        self._servicer = OracleServicer(client)

    def register(self, server: grpc.aio.Server) -> None:
        """Add the servicer to a server."""
        add_TimestampOracleServicer_to_server(self._servicer, server)

    async def drain(self) -> None:
        """No call waits for news."""

    async def close(self) -> None:
        """Nothing is held."""
