"""Blocking ReadHandle, Snapshot, Diffs and Listen. The asyncio classes say what the calls promise, cost and raise."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, Self

import pyarrow as pa

from persist.client.shard.loop_thread import LoopThread
from persist.client.shard.read import handle as aio
from persist.client.shard.read import listen as aio_listen
from persist.client.shard.read.handle import BatchSummary
from persist.client.shard.read.key_ranges import KeysLike
from persist.client.shard.read.lease import Pin
from persist.client.shard.read.listen import Event
from persist.client.shard.read.split import Split
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain, AntichainLike
from persist.core.ids import ReaderId, ShardId


class ReadHandle:
    """Reads one shard under a lease that is renewed in the background. See aio.ReadHandle."""

    def __init__(self, client: object, loop: LoopThread, handle: aio.ReadHandle) -> None:
        self._client = client
        self._loop = loop
        self._handle = handle

    @property
    def shard(self) -> ShardId:
        """The shard."""
        return self._handle.shard

    @property
    def reader_id(self) -> ReaderId:
        """The lease's name."""
        return self._handle.reader_id

    @property
    def schema(self) -> Schema:
        """The schema this handle was opened with."""
        return self._handle.schema

    @property
    def since(self) -> Antichain:
        """The smallest time this handle may read at. No RPC."""
        return self._handle.since

    @property
    def upper(self) -> Antichain:
        """The newest upper this handle was told. No RPC."""
        return self._handle.upper

    def downgrade_since(self, since: AntichainLike, *, timeout: float | None = None) -> Antichain:
        """Give up reading below ``since``. See aio.ReadHandle.downgrade_since."""
        return self._loop.run(self._handle.downgrade_since(since, timeout=timeout))

    def heartbeat(self, *, timeout: float | None = None) -> None:
        """Extend the lease; returning means that it is alive. See aio.ReadHandle.heartbeat."""
        self._loop.run(self._handle.heartbeat(timeout=timeout))

    def pin(self, *, timeout: float | None = None) -> Pin:
        """Keep the parts of every read planned from now on, until the pin is dropped. See aio.ReadHandle.pin."""
        return self._loop.run(self._handle.pin(timeout=timeout))

    def expire(self, *, timeout: float | None = None) -> None:
        """Let go of everything this reader holds. See aio.ReadHandle.expire."""
        self._loop.run(self._handle.expire(timeout=timeout))

    def snapshot(self, as_of: int | None = None, *, timeout: float | None = None) -> "Snapshot":
        """The contents at ``as_of`` (None: the latest), waiting until complete. See aio.ReadHandle.snapshot."""
        return Snapshot(self, self._loop, self._loop.run(self._handle.snapshot(as_of, timeout=timeout)))

    def listen(self, as_of: int, *, timeout: float | None = None, downgrade: bool = False) -> "Listen":
        """Every update after ``as_of`` as it commits; ends after ``timeout`` idle seconds. See aio.ReadHandle."""
        return Listen(
            self, self._loop, self._loop.run(self._handle.listen(as_of, timeout=timeout, downgrade=downgrade))
        )

    def subscribe(self, as_of: int, *, timeout: float | None = None, downgrade: bool = False) -> "Listen":
        """The snapshot at ``as_of``, then every update after it. See aio.ReadHandle.subscribe."""
        subscribing = self._handle.subscribe(as_of, timeout=timeout, downgrade=downgrade)
        return Listen(self, self._loop, self._loop.run(subscribing))

    def diffs(self, lower: AntichainLike, upper: AntichainLike, *, timeout: float | None = None) -> "Diffs":
        """Every update at a time in ``[lower, upper)``. See aio.ReadHandle.diffs."""
        return Diffs(self, self._loop, self._loop.run(self._handle.diffs(lower, upper, timeout=timeout)))

    def changes_since(self, lower: AntichainLike, *, timeout: float | None = None) -> tuple[BatchSummary, ...]:
        """The batches beyond ``lower``, oldest first, without waiting. See aio.ReadHandle.changes_since."""
        return self._loop.run(self._handle.changes_since(lower, timeout=timeout))

    def __repr__(self) -> str:
        return repr(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.expire()


class _Read:
    """What snapshots and change feeds have in common. See aio.Snapshot."""

    def __init__(self, owner: object, loop: LoopThread, read: Any) -> None:
        self._owner = owner
        self._loop = loop
        self._read = read

    @property
    def schema(self) -> Schema:
        """The shard's newest schema when the read was planned."""
        schema: Schema = self._read.schema
        return schema

    @property
    def upper(self) -> Antichain:
        """A snapshot: the shard's upper when it was planned. A change feed: where it ends."""
        upper: Antichain = self._read.upper
        return upper

    @property
    def rows(self) -> int:
        """Updates in the parts to be read: an upper estimate of the rows. No RPC."""
        return int(self._read.rows)

    @property
    def encoded_bytes(self) -> int:
        """Bytes of the parts to be read. No RPC."""
        return int(self._read.encoded_bytes)

    def to_arrow(
        self, columns: Sequence[str] | None = None, where: object = None, keys: KeysLike | None = None
    ) -> pa.Table:
        """All rows as one table. See aio.Snapshot.to_arrow."""
        return self._loop.run(self._read.to_arrow(columns, where, keys))

    def to_batches(
        self, columns: Sequence[str] | None = None, where: object = None, keys: KeysLike | None = None
    ) -> pa.RecordBatchReader:
        """The rows as they are decoded, at most 65,536 per batch. See aio.Snapshot.to_batches."""
        output = self._read.output(columns)
        return pa.RecordBatchReader.from_batches(output, self._batches(self._read.to_batches(columns, where, keys)))

    def to_pandas(
        self, columns: Sequence[str] | None = None, where: object = None, keys: KeysLike | None = None
    ) -> Any:
        """All rows as a pandas DataFrame; needs pandas."""
        return self.to_arrow(columns, where, keys).to_pandas()

    def to_pylist(
        self, columns: Sequence[str] | None = None, where: object = None, keys: KeysLike | None = None
    ) -> list[dict[str, Any]]:
        """All rows as dicts: for small reads."""
        found: list[dict[str, Any]] = self.to_arrow(columns, where, keys).to_pylist()
        return found

    def splits(self, n: int, where: object = None, keys: KeysLike | None = None) -> list[Split]:
        """At most ``n`` reads of disjoint key ranges that together are this one. See aio.Snapshot.splits."""
        found: list[Split] = self._read.splits(n, where, keys)
        return found

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """All rows, as they are decoded, for whoever takes Arrow streams: DuckDB, Polars, pyarrow, pandas.

        Each asking reads anew. Source: the Arrow PyCapsule interface.
        """
        return self.to_batches().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return repr(self._read)

    def _batches(self, found: AsyncGenerator[pa.RecordBatch, None]) -> Iterator[pa.RecordBatch]:
        try:
            while (batch := self._loop.run(_next(found))) is not None:
                yield batch
        finally:
            self._loop.spawn(_close(found))


class Snapshot(_Read):
    """The contents of a shard at ``as_of``: rows key…, val…, diff. See aio.Snapshot."""

    @property
    def as_of(self) -> int:
        """The time of the contents."""
        return int(self._read.as_of)

    @property
    def rows_estimate(self) -> int:
        """Updates in the parts to be read: at least as many as there are rows."""
        return self.rows


class Diffs(_Read):
    """Every update at a time in ``[lower, upper)``: rows key…, val…, ts, diff. See aio.Diffs."""

    @property
    def lower(self) -> Antichain:
        """Where the feed begins."""
        lower: Antichain = self._read.lower
        return lower


class Listen:
    """An iterator of Updates and Progress; closable, and a context manager. See aio.Listen."""

    def __init__(self, owner: object, loop: LoopThread, listen: aio_listen.Listen) -> None:
        self._owner = owner
        self._loop = loop
        self._listen = listen

    @property
    def frontier(self) -> Antichain:
        """How far the listen has come."""
        return self._listen.frontier

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        event: Event | None = self._loop.run(_next(self._listen))
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """End the listen and let go of what it holds. Closing again does nothing."""
        self._loop.run(self._listen.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _next(found: Any) -> Any:
    try:
        return await found.__anext__()
    except StopAsyncIteration:
        return None


async def _close(found: AsyncGenerator[Any, None]) -> None:
    await found.aclose()
