"""Where a simulated world takes place: stores, servers that run the real machine, and clients that reach any of them.

Calls between clients and servers are lost, answered too late, or delivered twice.
"""

import asyncio
import dataclasses
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from persist.client.client import Client
from persist.client.remote.failover import FailoverShards
from persist.client.shard.location import Location
from persist.core.frontier import Antichain
from persist.core.ids import ReaderId, ShardId
from persist.core.shard.commands import ApplyMerge, Command
from persist.errors import Determinate, Indeterminate, PersistError
from persist.machine.garbage.inventory import Inventory
from persist.machine.local_shards import LocalShards
from persist.machine.shards import NotYet, ShardInfo, ShardMoved, Shards, SnapshotPlan
from persist.machine.versions import Versions
from persist.settings import Settings
from persist.storage.blob.memory import MemoryValues
from persist.storage.consensus.memory import MemoryLog
from persist.testing.faults import Faults, Quadrant
from persist.testing.ledger import Ledger, Violation
from persist.testing.simulation.simulator import Host, SimulatedRuntime, VirtualLoop
from persist.testing.simulation.stores import Hub, Network, SimulatedBlob, SimulatedConsensus, Witness
from persist.typed import Fields, Work

T = TypeVar("T")
R = TypeVar("R")

LEASE_SECONDS = 4.0
SETTINGS = Settings(
    sort_rows=64,
    row_group_rows=4,
    part_bytes_max=600,
    inline_part_bytes_max=150,
    inline_total_bytes_max=4096,
    rollup_every=12,
    compaction_parts_max=3,
    compaction_step_parts_max=1,
    compaction_takeover_ms=4_000,
    gc_versions_max=64,
    maintenance_timeout_ms=20_000,
    recent_diffs_max=16,
    reader_lease_ms=int(LEASE_SECONDS * 1000),
    writer_lease_ms=3_600_000,
    retry_first_ms=4,
    retry_max_ms=500,
    poll_first_ms=50,
    poll_max_ms=400,
    timeout_ms=5_000,
    store_timeout_ms=1_000,
    blob_timeout_ms=2_000,
)
INLINE = dataclasses.replace(SETTINGS, inline_part_bytes_max=400)
"""Nearly all parts travel in the state: quick worlds. With SETTINGS, most go to Blob."""
RARE = {"truncate": (0.75, 0.75), "merge": (0.9, 0.7)}
"""Calls of which there are few go wrong more often: the same two chances as in a plot."""
CONVERGE_SECONDS = 30.0
SAFE_AGE_MS = 9_000
"""How old a writer must be that a sweep fences off: younger than the longest pause."""
LIMITS = (0.2, 1.0, 5.0)
"""Timeouts of calls, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What happens in a world. Rates are events per virtual second."""

    servers: int = 3
    operations: int = 40
    """Appends of each writer."""
    happens: float = 0.96
    told: float = 0.96
    slow: float = 0.02
    trouble_seconds: float = 0.8
    """About so long passes between one trouble and the next."""
    settings: Settings = SETTINGS


class ShardServer:
    """A process that serves shards; ``shards`` is new after every crash."""

    def __init__(self, world: "WorldCluster", name: str) -> None:
        self.name = name
        self._world = world
        self._lives = 0
        self.pending: list[asyncio.Future[Any]] = []
        self.boot()

    def boot(self) -> None:
        """Start with an empty memory."""
        world = self._world
        self._lives += 1
        self.host = world.loop.host(f"{self.name}.{self._lives}")
        runtime = SimulatedRuntime(world.loop, self.host)
        self.shards: LocalShards = self.host.context.run(
            world.new_shards, world.blob(), world.consensus(), world.plot.settings, runtime
        )

    def crash(self) -> None:
        """Gone, and everything it was doing."""
        self.host.crash()
        pending, self.pending = self.pending, []
        loop = self._world.loop
        for future in pending:
            if loop.random.random() < 0.8:
                loop.call_later(0.01, _break, future, context=loop.elsewhere)


def _break(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_exception(Indeterminate("simulated: the connection broke"))


class SimulatedShards:
    """Implements ``Shards`` over servers that may be anywhere, dead or slow."""

    def __init__(self, world: "WorldCluster", only: ShardServer | None = None) -> None:
        self._world = world
        self._only = only

    @property
    def blob_uri(self) -> str:
        """``mem:sim``."""
        return "mem:sim"

    async def open(self, shard: ShardId, *, create: bool = True, timeout: float) -> ShardInfo:
        """Linearizable, which is checked."""
        floor = self._world.floors.get(shard)
        info = await self._call(
            "open",
            lambda server, left: server.shards.open(shard, create=create, timeout=left),
            timeout,
            mutation=create,
        )
        self._world.saw(info, floor)
        return info

    async def apply(self, shard: ShardId, command: Command[R], *, timeout: float) -> R:
        """As the servers do it, once or twice."""
        return await self._call(
            "merge" if isinstance(command, ApplyMerge) else "apply",
            lambda server, left: server.shards.apply(shard, command, timeout=left),
            timeout,
            mutation=True,
        )

    async def snapshot(
        self, shard: ShardId, as_of: Antichain, *, reader_id: ReaderId | None = None, timeout: float
    ) -> SnapshotPlan | NotYet:
        """Linearizable, which is checked."""
        floor = self._world.floors.get(shard)
        plan = await self._call(
            "snapshot",
            lambda server, left: server.shards.snapshot(shard, as_of, reader_id=reader_id, timeout=left),
            timeout,
            mutation=False,
        )
        self._world.saw(plan.info, floor)
        return plan

    async def fetch(self, shard: ShardId, frontier: Antichain, *, timeout: float) -> ShardMoved:
        """Linearizable, which is checked."""
        floor = self._world.floors.get(shard)
        change = await self._call(
            "fetch", lambda server, left: server.shards.fetch(shard, frontier, timeout=left), timeout, mutation=False
        )
        self._world.saw(change.info, floor)
        return change

    async def watch(self, shard: ShardId, frontier: Antichain, *, timeout: float) -> AsyncIterator[ShardMoved]:
        """A stream that breaks with its server, and sometimes alone."""
        world, loop, server = self._world, self._world.loop, self._pick()
        host, found, stirred = server.host, deque[ShardMoved | PersistError | None](), asyncio.Event()
        last = [loop.time()]

        def send(item: ShardMoved | PersistError | None) -> None:
            last[0] = max(last[0], loop.time() + world.network.delay())
            loop.call_at(last[0], arrived, item, context=loop.elsewhere)

        def arrived(item: ShardMoved | PersistError | None) -> None:
            found.append(item)
            stirred.set()

        async def serve() -> None:
            try:
                async for change in server.shards.watch(shard, frontier, timeout=timeout):
                    send(change)
                send(None)
            except PersistError as error:
                send(error)

        if not host.alive:
            raise Determinate("simulated: connection refused")
        task = host.start(serve())
        try:
            while True:
                try:
                    async with asyncio.timeout(1.0):
                        await stirred.wait()
                except TimeoutError:
                    if host.silent:
                        raise Determinate("simulated: the stream broke") from None
                    continue
                stirred.clear()
                while found:
                    item = found.popleft()
                    if item is None:
                        return
                    if isinstance(item, PersistError):
                        raise item
                    yield item
                    if world.faults.enabled and world.rolls.random() < 0.02:
                        world.fired["stream broke"] += 1
                        raise Determinate("simulated: the stream broke")
        finally:
            task.cancel()

    async def inspect(self, shard: ShardId, *, timeout: float) -> Fields:
        """As the servers do it."""
        return await self._call(
            "inspect", lambda server, left: server.shards.inspect(shard, timeout=left), timeout, mutation=False
        )

    async def list(self, *, timeout: float) -> AsyncIterator[ShardId]:
        """As the servers do it."""
        async for shard in self._pick().shards.list(timeout=timeout):
            yield shard

    async def work(self, *, timeout: float) -> AsyncIterator[ShardId]:
        """As the servers do it."""
        async for shard in self._pick().shards.work(timeout=timeout):
            yield shard

    async def close(self) -> None:
        """Nothing is held."""

    def _pick(self) -> ShardServer:
        return self._only or self._world.rolls.choice(self._world.servers)

    async def _call(
        self, method: str, work: Callable[[ShardServer, float], Work[T]], timeout: float, *, mutation: bool
    ) -> T:
        world, loop, server = self._world, self._world.loop, self._pick()
        quadrant = world.rpc_faults.draw(method)
        told = quadrant in (Quadrant.HAPPENED_TOLD, Quadrant.MISSED_TOLD)
        answer: asyncio.Future[T] = loop.create_future()
        there, back = world.network.delay(), world.network.delay()

        def arrive() -> None:
            if not server.host.alive:
                refused = Determinate("simulated: connection refused")
                loop.call_later(back, _settle, answer, refused, context=loop.elsewhere)
                return
            server.pending.append(answer)
            server.host.start(serve(server))

        async def serve(server: ShardServer) -> None:
            try:
                result: Any = await work(server, timeout)
            except PersistError as error:
                result = error
            if answer in server.pending:
                server.pending.remove(answer)
            if told:
                loop.call_later(back, _settle, answer, result, context=loop.elsewhere)

        if quadrant in (Quadrant.HAPPENED_TOLD, Quadrant.HAPPENED_LOST):
            loop.call_later(there, arrive, context=loop.elsewhere)
            if mutation and world.faults.enabled and world.rolls.random() < 0.02:
                world.fired["delivered twice"] += 1
                later = there + world.rolls.choice([0.0, 0.5, 4.0]) * world.rolls.random()
                loop.call_later(later, arrive, context=loop.elsewhere)
        elif told:
            lost: PersistError = Determinate("simulated: unavailable")
            loop.call_later(there + back, _settle, answer, lost, context=loop.elsewhere)
        if not told and world.rolls.random() < 0.7:
            broke = Indeterminate("simulated: the connection broke")
            loop.call_later(world.network.delay(), _settle, answer, broke, context=loop.elsewhere)
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            if mutation:
                raise Indeterminate("simulated: no answer in time") from None
            raise Determinate("simulated: no answer in time") from None
        except Indeterminate as error:
            if mutation:
                raise
            raise Determinate(error.message) from None


def _settle(future: "asyncio.Future[Any]", result: object) -> None:
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


class WorldCluster:
    """Everything that is there, from one seed."""

    new_shards: Callable[..., LocalShards]

    def __init__(self, loop: VirtualLoop, plot: Scenario) -> None:
        self.loop = loop
        self.plot = plot
        self.rolls = loop.stream("rolls")
        self.faults = Faults(loop.seed, happens=plot.happens, told=plot.told, per_method=RARE)
        self.rpc_faults = Faults(loop.seed + 1, happens=plot.happens, told=plot.told, per_method=RARE)
        self.network = Network(loop, self.faults, slow=plot.slow)
        self.values, self.logs = MemoryValues(), MemoryLog()
        self.witness = Witness(self.values, self.logs)
        self.fired: Counter[str] = Counter()
        self.floors: dict[ShardId, ShardInfo] = {}
        self.operations = 0
        self._clients = 0
        self.done = False
        self.healed_at = loop.time()
        self._hub = Hub(self.network)
        self.new_shards = lambda blob, consensus, settings, runtime: LocalShards(
            blob, consensus, settings=settings, runtime=runtime
        )
        self.servers: list[ShardServer] = []
        self.clients: list[Host] = []
        ids = loop.stream("shards")
        self.definite, self.mixed = (ShardId.of(ids.randbytes(16)) for _ in range(2))
        self.ledgers = {self.definite: Ledger(), self.mixed: Ledger()}
        self._troubled: set[str] = set()

    def blob(self) -> SimulatedBlob:
        """A handle on the one blob store."""
        return SimulatedBlob(self.network, self.values, self.witness)

    def consensus(self) -> SimulatedConsensus:
        """A handle on the one consensus store."""
        return SimulatedConsensus(self.network, self.logs, self.witness, self._hub)

    def client(self, name: str, only: ShardServer | None = None) -> tuple[Host, Client]:
        """A client on a host of its own. Every other one fails over, as one does that can reach the stores itself."""
        host = self.loop.host(name)
        runtime, settings = SimulatedRuntime(self.loop, host), self.plot.settings
        near: Shards = SimulatedShards(self, only)
        self._clients += 1
        if only is None and self._clients % 2:
            near = FailoverShards(near, SimulatedShards(self), runtime=runtime, cool_down=0.5)
        location = host.context.run(lambda: Location(near, blob=self.blob(), settings=settings, runtime=runtime))
        return host, Client(location)

    def survey(self, client: Client) -> Inventory:
        """What a sweep or a check of the stores begins with."""
        runtime, settings = client._location.runtime, self.plot.settings
        versions = Versions(self.blob(), self.consensus(), settings=settings, runtime=runtime)
        return Inventory(versions, settings=settings, runtime=runtime)

    def saw(self, info: ShardInfo, floor: ShardInfo | None) -> None:
        """Check an answer against those given before its call began, and remember it."""
        if floor is not None:
            sound = info.seqno >= floor.seqno and floor.since.less_equal(info.since)
            if not sound or not floor.upper.less_equal(info.upper):
                raise Violation(
                    f"I2: {info.seqno} {info.since} {info.upper} was returned after {floor.seqno} {floor.upper}"
                )
        known = self.floors.get(info.shard)
        if known is None or known.seqno < info.seqno:
            self.floors[info.shard] = info
