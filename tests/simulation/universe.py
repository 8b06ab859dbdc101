"""A small world without bad luck, moved step by step from outside: processes that embed the machine, one shard."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from persist.client.client import Client
from persist.client.shard.location import Location
from persist.client.shard.read.listen import Updates
from persist.core.ids import ShardId
from persist.machine.compaction.compactor import Compactor
from persist.machine.local_shards import LocalShards
from persist.settings import Settings
from persist.storage.blob.memory import MemoryValues
from persist.storage.consensus.memory import MemoryLog
from persist.testing.faults import Faults
from persist.testing.ledger import Ledger
from persist.testing.simulation.simulator import SimulatedRuntime, VirtualLoop
from persist.testing.simulation.stores import Hub, Network, SimulatedBlob, SimulatedConsensus, Witness
from persist.testing.world.sample import SCHEMA, contents, rows_of

T = TypeVar("T")


class Process:
    """A process that embeds the machine."""

    def __init__(self, universe: "Universe", name: str) -> None:
        self.host = universe.loop.host(name)
        runtime = SimulatedRuntime(universe.loop, self.host)
        self.shards: LocalShards = self.host.context.run(
            lambda: LocalShards(universe.blob(), universe.consensus(), settings=universe.settings, runtime=runtime)
        )
        self.location = self.host.context.run(
            lambda: Location(self.shards, blob=universe.blob(), settings=universe.settings, runtime=runtime)
        )
        self.client = Client(self.location)
        self.compactor = self.host.context.run(lambda: Compactor(self.shards, self.location))


class Universe:
    """Stores, a witness, and as many processes as are asked for."""

    def __init__(self, loop: VirtualLoop, settings: Settings) -> None:
        self.loop = loop
        self.settings = settings
        self.values, self.log = MemoryValues(), MemoryLog()
        self.witness = Witness(self.values, self.log)
        self.network = Network(loop, Faults(0, happens=1.0, told=1.0), slow=0.0)
        self.shard = ShardId.of(loop.stream("shard").randbytes(16))
        self.ledger = Ledger()
        self._hub = Hub(self.network)
        self._count = 0

    def blob(self) -> SimulatedBlob:
        return SimulatedBlob(self.network, self.values, self.witness)

    def consensus(self) -> SimulatedConsensus:
        return SimulatedConsensus(self.network, self.log, self.witness, self._hub)

    def process(self) -> Process:
        self._count += 1
        return Process(self, f"process{self._count}")

    def run(self, process: Process, story: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Let a process do something, to its end."""
        return self.loop.run_until_complete(process.host.start(story()))

    async def snapshot(self, client: Client, as_of: int) -> None:
        """Read, and have it judged."""
        reader = await client.open_reader(self.shard, schema=SCHEMA)
        found = await (await reader.snapshot(as_of)).to_arrow()
        self.ledger.saw(as_of, contents(found), "universe")
        await reader.expire()

    async def changes(self, client: Client) -> None:
        """Listen from since to upper, and have it judged."""
        reader = await client.open_reader(self.shard, schema=SCHEMA)
        since, upper = reader.since.time or 0, reader.upper.time or 0
        if upper > since + 1:
            sums: dict[tuple[int, str, int], int] = {}
            listen = await reader.listen(since, timeout=5)
            async for event in listen:
                if isinstance(event, Updates):
                    for key, val, ts, diff in rows_of(event.table):
                        sums[key, val, ts] = sums.get((key, val, ts), 0) + diff
                elif event.upper.time is None or event.upper.time >= upper:
                    break
            await listen.aclose()
            told = {update: diff for update, diff in sums.items() if diff and update[2] < upper}
            self.ledger.heard(since + 1, upper, told, "universe")
        await reader.expire()
