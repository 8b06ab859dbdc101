"""The same client for callers without an event loop: each call runs on one background loop and waits.

Only this thin layer blocks; everything it does is in the asyncio classes it wraps, whose docstrings say what the calls
cost and raise. After a fork the child's client opens its own connections; handles of the parent are refused there.
Source: architecture.md section 8; style.md rule 26.
"""

import functools
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from persist.client import client as aio
from persist.client import connect as ways
from persist.client.blocking.compaction import Compaction
from persist.client.blocking.minter import Minter
from persist.client.blocking.oracle import Oracle
from persist.client.blocking.read import ReadHandle
from persist.client.blocking.table import Table, TableTransaction, transact_of, transaction_of
from persist.client.blocking.write import SinceHandle, WriteHandle
from persist.client.shard.loop_thread import LoopThread
from persist.client.shard.write.prepared import BatchSpec
from persist.client.table.table import Mode
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain
from persist.core.ids import ReaderId, ShardId, WriterId
from persist.core.shard.commands import SchemaEntry, Transaction
from persist.core.time.timeline import EPOCH_MILLISECONDS, TimelineLike
from persist.runtime import Runtime
from persist.settings import Settings

if TYPE_CHECKING:
    from persist.client.blocking.catalog import Catalog

T = TypeVar("T")

Opener = Callable[[], Awaitable[aio.Client]]


def embedded(
    location: str | Path | None = None,
    *,
    blob: str | None = None,
    consensus: str | None = None,
    create: bool = True,
    settings: Settings | None = None,
    runtime: Runtime | None = None,
) -> "Client":
    """A client without any server: ``embedded("./data")``, or ``embedded(blob="s3://…", consensus="postgres://…")``.

    The directory is made if missing; with ``create=False`` that is ShardNotFound. Any number of processes may use the
    same stores at once. Raises InvalidArgument, InvalidUri, UnsafeConfiguration (``settings.allow_unsafe`` accepts
    findings by name), LocationError.
    """
    ways_in = functools.partial(ways.embedded, create=create, settings=settings, runtime=runtime)
    return Client(functools.partial(ways_in, location, blob=blob, consensus=consensus))


def connect(
    endpoints: str,
    *,
    blob: str | None = None,
    consensus: str | None = None,
    settings: Settings | None = None,
    runtime: Runtime | None = None,
) -> "Client":
    """A client of PersistShard servers: ``connect("localhost:7100")``; more endpoints separated by commas.

    Data goes straight to Blob: where the servers say, or ``blob``. With ``consensus`` (and ``blob``) the commit loop
    runs here while no server answers. Raises InvalidArgument, InvalidUri, UnsafeConfiguration, LocationError.
    """
    return Client(
        functools.partial(ways.connect, endpoints, blob=blob, consensus=consensus, settings=settings, runtime=runtime)
    )


class Client:
    """Any number of shards at one location. Safe for many threads; close it, or use it as a context manager.

    ``timeout`` is in seconds everywhere, None means ``settings.timeout_ms``. All clients of a process share one thread.
    """

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._loop, self._client = _opened(self, opener)

    def open(
        self, shard: ShardId | str, *, schema: Schema | None = None, timeout: float | None = None
    ) -> tuple[WriteHandle, ReadHandle]:
        """A writer and a reader, initialising a new shard with ``schema``. See aio.Client.open."""
        loop, core = self._core()
        writer, reader = loop.run(core.open(shard, schema=schema, timeout=timeout))
        return WriteHandle(self, loop, writer), ReadHandle(self, loop, reader)

    def open_writer(
        self,
        shard: ShardId | str,
        *,
        schema: Schema | None = None,
        writer_id: WriterId | str | None = None,
        timeout: float | None = None,
    ) -> WriteHandle:
        """A writer, under a fresh writer id or the one given. See aio.Client.open_writer."""
        loop, core = self._core()
        writer = loop.run(core.open_writer(shard, schema=schema, writer_id=writer_id, timeout=timeout))
        return WriteHandle(self, loop, writer)

    def batch_spec(
        self, shard: ShardId | str, schema: Schema, *, writer_id: WriterId | str, timeout: float | None = None
    ) -> BatchSpec:
        """What others need to write parts for a shard that may not have ``schema`` yet. See aio.Client.batch_spec."""
        loop, core = self._core()
        return loop.run(core.batch_spec(shard, schema, writer_id=writer_id, timeout=timeout))

    def open_reader(
        self,
        shard: ShardId | str,
        *,
        schema: Schema | None = None,
        purpose: str = "",
        lease: float | None = None,
        reader_id: ReaderId | str | None = None,
        use_critical_since: bool = False,
        timeout: float | None = None,
    ) -> ReadHandle:
        """A reader that holds the shard's since under a lease of ``lease`` seconds. See aio.Client.open_reader."""
        loop, core = self._core()
        opening = core.open_reader(
            shard,
            schema=schema,
            purpose=purpose,
            lease=lease,
            reader_id=reader_id,
            use_critical_since=use_critical_since,
            timeout=timeout,
        )
        return ReadHandle(self, loop, loop.run(opening))

    def open_since(
        self, name: str, shard: ShardId | str, *, opaque: bytes = b"", purpose: str = "", timeout: float | None = None
    ) -> SinceHandle:
        """The critical since called ``name``, made with ``opaque`` when there is none. See aio.Client.open_since."""
        loop, core = self._core()
        opening = core.open_since(name, shard, opaque=opaque, purpose=purpose, timeout=timeout)
        return SinceHandle(self, loop, loop.run(opening))

    def begin_compaction(self, shard: ShardId | str) -> Compaction | None:
        """Claim a whole shard for compaction by other processes. See aio.Client.begin_compaction."""
        loop, core = self._core()
        begun = loop.run(core.begin_compaction(shard))
        return None if begun is None else Compaction(self, loop, begun)

    def oracle(
        self,
        timeline: TimelineLike = EPOCH_MILLISECONDS,
        *,
        initially: int = 0,
        reference: Callable[[], int] | None = None,
        endpoints: str = "",
        timeout: float | None = None,
    ) -> Oracle:
        """The write times and the read time of a timeline. See aio.Client.oracle."""
        loop, core = self._core()
        opening = core.oracle(timeline, initially=initially, reference=reference, endpoints=endpoints, timeout=timeout)
        return Oracle(self, loop, loop.run(opening))

    def minter(self, endpoints: str = "") -> Minter:
        """Bindings of sources, minted here or by TimestampMinter servers. See aio.Client.minter."""
        loop, core = self._core()

        async def make() -> Minter:
            return Minter(self, loop, core.minter(endpoints))

        return loop.run(make())

    def table(
        self,
        name: ShardId | str,
        *,
        schema: Schema | None = None,
        timeline: TimelineLike = EPOCH_MILLISECONDS,
        mode: Mode = "direct",
        timeout: float | None = None,
    ) -> Table:
        """The table of that name, made with ``schema`` if missing. See aio.Client.table."""
        loop, core = self._core()
        opening = core.table(name, schema=schema, timeline=timeline, mode=mode, timeout=timeout)
        return Table(self, loop, loop.run(opening))

    def transaction(
        self,
        timeline: TimelineLike = EPOCH_MILLISECONDS,
        *,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> AbstractContextManager[TableTransaction]:
        """Writes to tables of mode ``wal`` that happen at one time. See aio.Client.transaction."""
        loop, core = self._core()
        return transaction_of(loop, core, timeline, transaction=transaction, timeout=timeout)

    def transact(
        self,
        work: Callable[[TableTransaction], T],
        timeline: TimelineLike = EPOCH_MILLISECONDS,
        *,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> T:
        """Reads and writes of tables of mode ``wal`` with nothing in between. See aio.Client.transact."""
        loop, core = self._core()
        return transact_of(loop, core, work, timeline, transaction=transaction, timeout=timeout)

    def catalog(self, environment: str, *, endpoints: str = "") -> "Catalog":
        """The durable catalog of an environment, here or from CatalogService servers. See aio.Client.catalog."""
        from persist.client.blocking.catalog import Catalog

        loop, core = self._core()
        return Catalog(self, loop, loop.run(core.catalog(environment, endpoints=endpoints)))

    def settle(self, timeline: TimelineLike = EPOCH_MILLISECONDS, *, timeout: float | None = None) -> None:
        """Copy everything from the timeline's log to the tables, and let the log forget it. See aio.Client.settle."""
        loop, core = self._core()
        loop.run(core.settle(timeline, timeout=timeout))

    def recent_upper(self, shard: ShardId | str, *, timeout: float | None = None) -> Antichain:
        """The shard's upper, linearizable. See aio.Client.recent_upper."""
        loop, core = self._core()
        return loop.run(core.recent_upper(shard, timeout=timeout))

    def place(self, shard: ShardId | str, *, timeout: float | None = None) -> str:
        """What tells this shard from those of its id at other locations. See aio.Client.place."""
        loop, core = self._core()
        return loop.run(core.place(shard, timeout=timeout))

    def schema(self, shard: ShardId | str, *, timeout: float | None = None) -> Schema:
        """The shard's newest schema. See aio.Client.schema."""
        loop, core = self._core()
        return loop.run(core.schema(shard, timeout=timeout))

    def evolve_schema(self, shard: ShardId | str, schema: Schema, *, timeout: float | None = None) -> SchemaEntry:
        """Add nullable val columns. See aio.Client.evolve_schema."""
        loop, core = self._core()
        return loop.run(core.evolve_schema(shard, schema, timeout=timeout))

    def inspect(self, shard: ShardId | str, *, timeout: float | None = None) -> Mapping[str, Any]:
        """The shard's whole state as JSON-ready values. See aio.Client.inspect."""
        loop, core = self._core()
        return loop.run(core.inspect(shard, timeout=timeout))

    def list_shards(self, *, timeout: float | None = None) -> Sequence[ShardId]:
        """Every shard ever initialised here, in any order."""
        loop, core = self._core()

        async def collect() -> list[ShardId]:
            return [shard async for shard in core.list_shards(timeout=timeout)]

        return loop.run(collect())

    def finalize(self, shard: ShardId | str, *, force: bool = False, timeout: float | None = None) -> None:
        """Take away all that a closed shard still holds, for ever. See aio.Client.finalize."""
        loop, core = self._core()
        loop.run(core.finalize(shard, force=force, timeout=timeout))

    def close(self) -> None:
        """Expire this client's readers, release connections, end its thread. Closing again does nothing."""
        self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _core(self) -> tuple[LoopThread, aio.Client]:
        if self._loop.is_foreign:
            self._loop, self._client = _opened(self, self._opener)
        return self._loop, self._client


def _opened(owner: Client, opener: Opener) -> tuple[LoopThread, aio.Client]:
    loop = LoopThread()

    async def begin() -> aio.Client:
        return await opener()

    try:
        core = loop.run(begin())
    except BaseException:
        loop.stop()
        raise
    loop.at_stop(core.close)
    # Handles keep their client, so nobody uses the loop any more when the client is gone.
    weakref.finalize(owner, loop.stop).atexit = False
    return loop, core
