"""Blocking WriteHandle and SinceHandle. The asyncio classes say what the calls promise, cost and raise."""

from collections.abc import Sequence

from persist.client.shard.loop_thread import LoopThread
from persist.client.shard.read import since as aio_since
from persist.client.shard.write import handle as aio
from persist.client.shard.write.append import Resolved
from persist.client.shard.write.inputs import UpdatesLike
from persist.client.shard.write.prepared import BatchSpec, PreparedBatch
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain, AntichainLike
from persist.core.ids import ShardId, Token, WriterId
from persist.core.shard.commands import Appended, CriticalDowngraded, OpaqueMismatch, Transaction, UpperMismatch


class WriteHandle:
    """Writes one shard. See aio.WriteHandle."""

    def __init__(self, client: object, loop: LoopThread, handle: aio.WriteHandle) -> None:
        self._client = client
        self._loop = loop
        self._handle = handle

    @property
    def shard(self) -> ShardId:
        """The shard."""
        return self._handle.shard

    @property
    def writer_id(self) -> WriterId:
        """The writer's name."""
        return self._handle.writer_id

    @property
    def schema(self) -> Schema:
        """What rows look like."""
        return self._handle.schema

    @property
    def upper(self) -> Antichain:
        """Where the next append begins. No RPC."""
        return self._handle.upper

    def append(self, updates: UpdatesLike, new_upper: AntichainLike, *, timeout: float | None = None) -> Appended:
        """Make sure that the updates of ``[self.upper, new_upper)`` are in the shard. See aio.WriteHandle.append."""
        return self._loop.run(self._handle.append(updates, new_upper, timeout=timeout))

    def compare_and_append(
        self,
        updates: UpdatesLike,
        expected_upper: AntichainLike,
        new_upper: AntichainLike,
        *,
        token: Token | str | None = None,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> Appended | UpperMismatch:
        """Append iff the shard's upper is ``expected_upper``. See aio.WriteHandle.compare_and_append."""
        return self._loop.run(
            self._handle.compare_and_append(
                updates, expected_upper, new_upper, token=token, transaction=transaction, timeout=timeout
            )
        )

    def batch_spec(self) -> BatchSpec:
        """What another process needs to write parts for this shard. See aio.WriteHandle.batch_spec."""

        async def make() -> BatchSpec:
            return self._handle.batch_spec()

        return self._loop.run(make())

    def compare_and_append_batches(
        self,
        batches: Sequence[PreparedBatch],
        expected_upper: AntichainLike,
        new_upper: AntichainLike,
        *,
        token: Token | str | None = None,
        transaction: Transaction | None = None,
        at_time: int | None = None,
        timeout: float | None = None,
    ) -> Appended | UpperMismatch:
        """Append what other processes prepared in one commit. See aio.WriteHandle.compare_and_append_batches."""
        return self._loop.run(
            self._handle.compare_and_append_batches(
                batches,
                expected_upper,
                new_upper,
                token=token,
                transaction=transaction,
                at_time=at_time,
                timeout=timeout,
            )
        )

    def append_at_upper(
        self,
        updates: UpdatesLike,
        *,
        not_before: int = 0,
        token: Token | str | None = None,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> Appended:
        """Append all updates at one time, at or behind the upper. See aio.WriteHandle.append_at_upper."""
        return self._loop.run(
            self._handle.append_at_upper(
                updates, not_before=not_before, token=token, transaction=transaction, timeout=timeout
            )
        )

    def append_batches_at_upper(
        self,
        batches: Sequence[PreparedBatch],
        *,
        not_before: int = 0,
        token: Token | str | None = None,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> Appended:
        """Append what other processes prepared, all at one time. See aio.WriteHandle.append_batches_at_upper."""
        return self._loop.run(
            self._handle.append_batches_at_upper(
                batches, not_before=not_before, token=token, transaction=transaction, timeout=timeout
            )
        )

    def resolve(self, *, timeout: float | None = None) -> tuple[Resolved, ...]:
        """What came of the calls in doubt, of which nothing more comes then. See aio.WriteHandle.resolve."""
        return self._loop.run(self._handle.resolve(timeout=timeout))

    def expire(self, *, timeout: float | None = None) -> None:
        """Forget this writer and its tokens. See aio.WriteHandle.expire."""
        self._loop.run(self._handle.expire(timeout=timeout))


class SinceHandle:
    """Holds a shard's since without a lease. See aio.SinceHandle."""

    def __init__(self, client: object, loop: LoopThread, handle: aio_since.SinceHandle) -> None:
        self._client = client
        self._loop = loop
        self._handle = handle

    @property
    def name(self) -> str:
        """The hold's name."""
        return self._handle.name

    @property
    def shard(self) -> ShardId:
        """The shard."""
        return self._handle.shard

    @property
    def since(self) -> Antichain:
        """What is held, as last told. No RPC."""
        return self._handle.since

    @property
    def opaque(self) -> bytes:
        """The token, as last told. No RPC."""
        return self._handle.opaque

    def compare_and_downgrade(
        self, expected: bytes, since: AntichainLike, *, opaque: bytes | None = None, timeout: float | None = None
    ) -> CriticalDowngraded | OpaqueMismatch:
        """Move since and token iff the token is ``expected``. See aio.SinceHandle.compare_and_downgrade."""
        return self._loop.run(self._handle.compare_and_downgrade(expected, since, opaque=opaque, timeout=timeout))

    def expire(self, *, timeout: float | None = None) -> bool:
        """Remove the hold for everybody; whether it was there."""
        return self._loop.run(self._handle.expire(timeout=timeout))
