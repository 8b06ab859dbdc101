"""Clients of every kind beside two servers of which one falls silent: how long each call takes.

A server here is one process with all services (``services.everything``), so that one signal stops them all. Nothing is
decided here; the person who runs it looks at the figures.
"""

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from client.support import SCHEMA, table
from services.catalog.cataloging import new_token, put
from services.minter.minting import source
from services.process import ServiceProcess
from services.proxy import Proxy, proxy_to
from services.support import new_shard

from persist import aio
from persist.client.catalog.remote import RemoteCatalog
from persist.client.client import Client
from persist.client.remote.endpoints import _rank
from persist.client.remote.minter import RemoteMinter
from persist.client.remote.oracle import RemoteTimes
from persist.client.remote.shards import RemoteShards
from persist.client.shard.location import Location
from persist.core.catalog.errors import Fenced, NotWritable, OutOfSync
from persist.core.ids import ShardId
from persist.core.source.source_time import Point
from persist.core.time.timeline import oracle_shards, timeline_of
from persist.errors import LocationError
from persist.retry.deadline import Deadline
from persist.runtime import system
from persist.settings import Settings
from persist_compaction import AskedServer

QUICK = {"PERSIST_POLL_FIRST_MS": "5", "PERSIST_POLL_MAX_MS": "50"}
BETWEEN_SECONDS = 0.2
LOOK_SECONDS = 0.05
PATIENCE_SECONDS = 20.0

Call = Callable[[float], Awaitable[Any]]
"""One call of a client, with a timeout in seconds. A float that it returns is what it took, less what helpers took."""


class Door(Protocol):
    """A server as clients reach it, and how it falls silent."""

    @property
    def endpoint(self) -> str: ...

    async def hush(self) -> None: ...

    async def wake(self) -> None: ...


@dataclass
class Frozen:
    """Stopped with SIGSTOP: connections stay open and are even taken, and nothing is answered."""

    process: ServiceProcess

    @property
    def endpoint(self) -> str:
        return self.process.endpoint

    async def hush(self) -> None:
        self.process.signal(signal.SIGSTOP)

    async def wake(self) -> None:
        self.process.signal(signal.SIGCONT)


@dataclass
class BlackHole:
    """Behind a network that swallows everything."""

    proxy: Proxy

    @property
    def endpoint(self) -> str:
        return self.proxy.endpoint

    async def hush(self) -> None:
        self.proxy.silent = True

    async def wake(self) -> None:
        # What was swallowed is missing: these connections are of no more use.
        self.proxy.silent = False
        self.proxy.cut()


@dataclass
class Refusing:
    """Gone: connections break, and no more are taken."""

    proxy: Proxy

    @property
    def endpoint(self) -> str:
        return self.proxy.endpoint

    async def hush(self) -> None:
        self.proxy.shut()

    async def wake(self) -> None:
        await self.proxy.open()


TROUBLES: Mapping[str, Callable[..., Any]] = {"frozen": Frozen, "black hole": BlackHole, "refusing": Refusing}


@dataclass
class Stage:
    """Two servers. ``near``: both as helpers reach them, of which the ``awake`` one is asked, whatever clients see."""

    one: Door
    other: Door
    near: Sequence[str]
    stores: Mapping[str, Any]
    settings: Settings = field(default_factory=Settings)
    awake: int = 1

    @property
    def endpoints(self) -> str:
        return f"{self.one.endpoint},{self.other.endpoint}"

    def prefers_one(self, shard: ShardId) -> bool:
        return _rank(self.one.endpoint, shard) < _rank(self.other.endpoint, shard)

    def shard(self) -> ShardId:
        """A shard whose calls go to the first server while it is well."""
        while not self.prefers_one(shard := new_shard()):
            pass
        return shard

    def client(self, endpoints: str = "", **options: Any) -> Client:
        remote = RemoteShards(endpoints or self.endpoints, settings=self.settings, **options)
        return Client(Location(remote, blob=None, settings=self.settings, runtime=system()))

    def catalog(self, endpoints: str = "") -> RemoteCatalog:
        return RemoteCatalog(endpoints or self.endpoints, settings=self.settings)


@asynccontextmanager
async def servers(trouble: str, blob: str, consensus: str) -> AsyncIterator[Stage]:
    """Two real servers and what can befall them."""
    async with AsyncExitStack() as stack:
        processes = [
            ServiceProcess(lambda listen: ("services.everything", listen, blob, consensus), "127.0.0.1:0", QUICK)
            for _ in range(2)
        ]
        for process in processes:
            stack.push_async_callback(process.kill)
        await asyncio.gather(*(process.start() for process in processes))
        doors: list[Any] = list(processes)
        if trouble != "frozen":
            doors = [await stack.enter_async_context(proxy_to(process.endpoint)) for process in processes]
        # The first one is also where calls go that are about no shard.
        pairs = zip(map(TROUBLES[trouble], doors), processes, strict=True)
        both = sorted(pairs, key=lambda each: _rank(each[0].endpoint, None))
        stores = {"blob": blob, "consensus": consensus}
        yield Stage(both[0][0], both[1][0], [process.endpoint for _, process in both], stores)


# ---- what clients do ------------------------------------------------------------------------------------------------


class Hearing:
    """A watch. A call is a change made elsewhere; it takes as long as the watch takes to return it from then on."""

    def __init__(self, change: Callable[[], Awaitable[Any]], events: AsyncIterator[Any]) -> None:
        self._change = change
        self._events = events
        self._told: asyncio.Queue[Any] = asyncio.Queue()
        self._task = asyncio.ensure_future(self._hear())

    async def __call__(self, timeout: float) -> float:
        while not self._told.empty():
            self._told.get_nowait()
        await self._change()
        began = system().monotonic()
        async with asyncio.timeout(timeout):
            told = asyncio.ensure_future(self._told.get())
            await asyncio.wait({told, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                told.cancel()
                await self._task
        return system().monotonic() - began

    async def ends(self, timeout: float) -> None:
        """Raises what the watch ends with, which has a time of its own."""
        await self._task

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _hear(self) -> None:
        async for event in self._events:
            self._told.put_nowait(event)


Prepare = Callable[[Stage, AsyncExitStack], Awaitable[Call]]


async def _writer(stage: Stage, stack: AsyncExitStack, *, sessions: bool) -> Call:
    client = await stack.enter_async_context(stage.client(sessions=sessions))
    writer = await client.open_writer(stage.shard(), schema=SCHEMA)
    return lambda timeout: writer.append_at_upper([], timeout=timeout)


async def appends(stage: Stage, stack: AsyncExitStack) -> Call:
    return await _writer(stage, stack, sessions=True)


async def unary_appends(stage: Stage, stack: AsyncExitStack) -> Call:
    return await _writer(stage, stack, sessions=False)


async def snapshots(stage: Stage, stack: AsyncExitStack) -> Call:
    client = await stack.enter_async_context(stage.client())
    writer, reader = await client.open(stage.shard(), schema=SCHEMA)
    await writer.append_at_upper(table([(1, "a", 0, 1)]))
    return lambda timeout: reader.snapshot(0, timeout=timeout)


async def shard_reads(stage: Stage, stack: AsyncExitStack) -> Call:
    client = await stack.enter_async_context(stage.client())
    shard = stage.shard()
    await client.open_writer(shard, schema=SCHEMA)
    calls = itertools.cycle([client.recent_upper, client.inspect, client.schema])
    return lambda timeout: next(calls)(shard, timeout=timeout)


async def lists(stage: Stage, stack: AsyncExitStack) -> Call:
    client = await stack.enter_async_context(stage.client())

    async def call(timeout: float) -> None:
        async for _ in client.list_shards(timeout=timeout):
            pass

    return call


async def changes_since(stage: Stage, stack: AsyncExitStack) -> Call:
    client = await stack.enter_async_context(stage.client())
    writer, reader = await client.open(stage.shard(), schema=SCHEMA)
    await writer.append_at_upper(table([(1, "a", 0, 1)]))
    return lambda timeout: reader.changes_since(0, timeout=timeout)


async def listens(stage: Stage, stack: AsyncExitStack) -> Call:
    client = await stack.enter_async_context(stage.client())
    _, reader = await client.open(stage.shard(), schema=SCHEMA)
    append = await _appending(stage, stack, reader.shard)
    await append()
    hearing = Hearing(append, await reader.listen(as_of=0))
    stack.push_async_callback(hearing.close)
    return hearing


async def waiting_fetches(stage: Stage, stack: AsyncExitStack) -> Call:
    """Fetches of what is appended elsewhere meanwhile."""
    client = await stack.enter_async_context(stage.client())
    _, reader = await client.open(stage.shard(), schema=SCHEMA)
    append = await _appending(stage, stack, reader.shard)
    await append()

    async def call(timeout: float) -> float:
        frontier = await client.recent_upper(reader.shard, timeout=timeout)
        reading = asyncio.ensure_future(reader._fetch(frontier, Deadline(system(), timeout)))
        await append()
        began = system().monotonic()
        assert (await reading).batches
        return system().monotonic() - began

    return call


async def _appending(stage: Stage, stack: AsyncExitStack, shard: ShardId) -> Callable[[], Awaitable[Any]]:
    """Appends to a shard at the server that is awake."""
    clients = [await stack.enter_async_context(stage.client(each)) for each in stage.near]
    writers = [await client.open_writer(shard) for client in clients]
    return lambda: writers[stage.awake].append_at_upper(table([(1, "b", 0, 1)]), timeout=30)


async def stores_beside(stage: Stage, stack: AsyncExitStack) -> Call:
    """One server is known, and the stores."""
    client = await stack.enter_async_context(
        await aio.connect(stage.one.endpoint, settings=stage.settings, **stage.stores)
    )
    writer = await client.open_writer(new_shard(), schema=SCHEMA)
    return lambda timeout: writer.append_at_upper([], timeout=timeout)


async def _catalog(stage: Stage, stack: AsyncExitStack) -> RemoteCatalog:
    catalog = stage.catalog()
    stack.push_async_callback(catalog.close)
    return catalog


async def catalog_reads(stage: Stage, stack: AsyncExitStack) -> Call:
    catalog = await _catalog(stage, stack)
    opened = await catalog.open_read_only()
    calls: Iterator[Any] = itertools.cycle([opened.sync, catalog.is_initialized, catalog.dump, catalog.open_read_only])
    return lambda timeout: next(calls)()


async def catalog_feeds(stage: Stage, stack: AsyncExitStack) -> Call:
    catalog = await _catalog(stage, stack)
    near = [stage.catalog(each) for each in stage.near]
    for each in near:
        stack.push_async_callback(each.close)
    commits = [committing(each) for each in near]
    hearing = Hearing(lambda: commits[stage.awake](30), catalog.changes((await catalog.open_read_only()).upper))
    stack.push_async_callback(hearing.close)
    return hearing


async def catalog_commits(stage: Stage, stack: AsyncExitStack) -> Call:
    return committing(await _catalog(stage, stack))


def committing(catalog: RemoteCatalog) -> Call:
    """Commits of a caller that joins the leader, and again when that one does not lead any more."""
    session: Any = None
    name, numbers = new_shard(), itertools.count()

    async def call(timeout: float) -> None:
        nonlocal session
        token = new_token()
        while True:
            try:
                session = session or await catalog.join()
                await put(session, name, str(next(numbers)), token)
                return
            except (Fenced, NotWritable):
                session = None
                await asyncio.sleep(0.02)
            except OutOfSync:
                pass

    return call


async def _minter(stage: Stage, stack: AsyncExitStack) -> tuple[RemoteMinter, Any]:
    minter = RemoteMinter(stage.endpoints, settings=stage.settings)
    stack.push_async_callback(minter.close)
    mine = source()
    mine = type(mine)(remap=stage.shard(), kind=mine.kind, incarnation=mine.incarnation, rules=mine.rules)
    await minter.mint(mine, timeout=30)
    await minter.get_binding(mine, [Point(0, 0)], high=None, timeout=30)
    return minter, mine


async def bindings(stage: Stage, stack: AsyncExitStack) -> Call:
    minter, mine = await _minter(stage, stack)
    offsets = itertools.count(1)
    return lambda timeout: minter.get_binding(mine, [Point(0, next(offsets))], timeout=timeout)


async def minter_reads(stage: Stage, stack: AsyncExitStack) -> Call:
    minter, mine = await _minter(stage, stack)
    calls = itertools.cycle(
        [
            lambda timeout: minter.bindings(mine, timeout=timeout),
            lambda timeout: minter.mint(mine, timeout=timeout),
            lambda timeout: minter.resumption(mine, {}, timeout=timeout),
        ]
    )
    return lambda timeout: next(calls)(timeout)


async def binding_feeds(stage: Stage, stack: AsyncExitStack) -> Call:
    minter, mine = await _minter(stage, stack)
    near = [RemoteMinter(each, settings=stage.settings) for each in stage.near]
    for each in near:
        stack.push_async_callback(each.close)
    offsets = itertools.count(1)

    async def change() -> None:
        await near[stage.awake].get_binding(mine, [Point(0, next(offsets))], timeout=30)

    hearing = Hearing(change, minter.watch(mine))
    stack.push_async_callback(hearing.close)
    return hearing


async def _times(stage: Stage, stack: AsyncExitStack) -> RemoteTimes:
    names = (f"U.{number}" for number in itertools.count())
    timeline = next(each for each in map(timeline_of, names) if stage.prefers_one(oracle_shards(each)[0]))
    times = RemoteTimes(stage.endpoints, timeline, settings=stage.settings, runtime=system())
    stack.push_async_callback(times.close)
    return times


async def write_times(stage: Stage, stack: AsyncExitStack) -> Call:
    times = await _times(stage, stack)
    return lambda timeout: times.take(1, 0, None, Deadline(system(), timeout))


async def read_times(stage: Stage, stack: AsyncExitStack) -> Call:
    times = await _times(stage, stack)
    calls = itertools.cycle([times.applied, times.written])
    return lambda timeout: next(calls)(Deadline(system(), timeout))


async def compactions(stage: Stage, stack: AsyncExitStack) -> Call:
    client = await stack.enter_async_context(stage.client())
    writer = await client.open_writer(stage.shard(), schema=SCHEMA)
    await writer.append_at_upper(table([(1, "a", 0, 1)]))
    asked = await stack.enter_async_context(AskedServer(stage.endpoints, settings=stage.settings, runtime=system()))
    calls = itertools.cycle([lambda: asked.compact(writer.shard, whole=True), asked.busy])
    return lambda timeout: next(calls)()


KINDS: Mapping[str, Prepare] = {
    "append, session": appends,
    "append, unary": unary_appends,
    "append, stores beside": stores_beside,
    "snapshot": snapshots,
    "upper, inspect, schema": shard_reads,
    "list_shards": lists,
    "changes_since": changes_since,
    "fetch that waits": waiting_fetches,
    "listen": listens,
    "catalog reads": catalog_reads,
    "catalog feed": catalog_feeds,
    "catalog commit": catalog_commits,
    "get_binding": bindings,
    "bindings, mint, resumption": minter_reads,
    "watch of bindings": binding_feeds,
    "write_ts": write_times,
    "read_ts, peek": read_times,
    "compact, busy": compactions,
}
WATCHES = frozenset({"listen", "catalog feed", "watch of bindings"})


# ---- measuring ------------------------------------------------------------------------------------------------------


@dataclass
class Figures:
    """What the clients of one kind saw: seconds that each call took, by client."""

    kind: str
    took: list[list[float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def worst(self) -> float:
        return max(itertools.chain.from_iterable(self.took))

    def slow(self, seconds: float) -> list[int]:
        """Calls that took longer, by client."""
        return [sum(each > seconds for each in client) for client in self.took]

    def __str__(self) -> str:
        slow = self.slow(1.0)
        return (
            f"{self.kind:28} clients {len(self.took)}  calls {sum(map(len, self.took)):4}  worst {self.worst:5.2f} s"
            f"  above 1 s {sum(slow):2}  at most {max(slow)} of one client  failed {sorted(set(self.failures))}"
        )


class Crowd:
    """Clients of several kinds, each of which calls again and again."""

    def __init__(self, stage: Stage, stack: AsyncExitStack) -> None:
        self._stage = stage
        self._stack = stack
        self._calls: dict[str, list[Call]] = {}
        self.lag = 0.0
        """Seconds by which the machine kept this process waiting at worst, while clients worked last."""

    async def enter(self, kinds: Iterable[str], clients: int) -> None:
        """Make clients, and have each call once."""
        for kind in kinds:
            self._calls[kind] = [await KINDS[kind](self._stage, self._stack) for _ in range(clients)]
            for call in self._calls[kind]:
                await call(30)

    async def work(self, meanwhile: Awaitable[Any]) -> Sequence[Figures]:
        """Call until ``meanwhile`` is over."""
        over = asyncio.ensure_future(meanwhile)
        measuring = asyncio.ensure_future(self._measure(over))
        figures = [Figures(kind) for kind in self._calls]
        await asyncio.gather(*(self._work(call, each, over) for each in figures for call in self._calls[each.kind]))
        await measuring
        await over
        return figures

    async def fail(self, timeout: float) -> Sequence[Figures]:
        """Each client calls once, and a watch goes on, until that fails. Raises what is no failure of a location."""
        figures = [Figures(kind) for kind in self._calls]
        failing = asyncio.gather(
            *(
                self._call(
                    getattr(call, "ends", call),
                    each,
                    partial(lambda each, seconds: each.took.append([seconds]), each),
                    timeout,
                )
                for each in figures
                for call in self._calls[each.kind]
            )
        )
        await asyncio.gather(failing, self._measure(failing))
        return figures

    async def _measure(self, over: "asyncio.Future[Any]") -> None:
        self.lag = 0.0
        while not over.done():
            began = system().monotonic()
            await asyncio.sleep(LOOK_SECONDS)
            self.lag = max(self.lag, system().monotonic() - began - LOOK_SECONDS)

    async def _work(self, call: Call, figures: Figures, over: "asyncio.Future[Any]") -> None:
        took = list[float]()
        figures.took.append(took)
        while not over.done():
            await self._call(call, figures, took.append, PATIENCE_SECONDS)
            await asyncio.sleep(BETWEEN_SECONDS)

    async def _call(self, call: Call, figures: Figures, took: Callable[[float], None], timeout: float) -> None:
        began = system().monotonic()
        seconds: object = None
        try:
            seconds = await call(timeout)
        except LocationError as error:
            figures.failures.append(type(error).__name__)
        took(seconds if isinstance(seconds, float) else system().monotonic() - began)
