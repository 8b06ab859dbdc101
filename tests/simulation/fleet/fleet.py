"""The whole stack in a simulated world: real clients, sessions, servicers and lanes over simulated connections."""

import dataclasses
from collections import Counter
from dataclasses import dataclass

from persist.client.client import Client
from persist.client.remote.failover import FailoverShards
from persist.client.remote.shards import RemoteShards
from persist.client.shard.location import Location
from persist.core.ids import ShardId
from persist.machine.local_shards import LocalShards
from persist.machine.shards import Shards
from persist.settings import Settings
from persist.storage.blob.memory import MemoryValues
from persist.storage.consensus.memory import MemoryLog
from persist.testing.accounts import Accounts
from persist.testing.faults import Faults
from persist.testing.simulation.simulator import Host as Machine
from persist.testing.simulation.simulator import SimulatedRuntime, VirtualLoop, here
from persist.testing.simulation.stores import Hub, Network, SimulatedBlob, SimulatedConsensus, Witness
from persist.testing.simulation.wires import Wires
from persist_host import Host, Telemetry
from persist_shard.service import ShardService

UPLOADED = Settings(inline_part_bytes_max=0, compaction=False)
"""Every part goes to Blob."""
INLINE = Settings(compaction=False)
"""Small parts travel in the state: quick worlds."""
COMPACTED = dataclasses.replace(UPLOADED, compaction=True)


@dataclass(frozen=True, kw_only=True)
class FleetPlot:
    """What happens. ``overlapping``: how many calls of one handle are under way at once, one choice per round.

    ``cast``: the actors; all when empty. ``trouble`` False: nothing goes wrong. ``sessions_max``: so many sessions a
    shard remembers, looked for with each commit; None: as many as a real one, which forgets none of a fleet's.
    ``tokens_max``: so many tokens, likewise. ``repeated``: calls of a round made twice at once, where any are.
    """

    cast: tuple[str, ...] = ()
    trouble: bool = True
    servers: int = 3
    rounds: int = 6
    overlapping: tuple[int, ...] = (1, 5, 60, 100, 300)
    happens: float = 0.998
    told: float = 0.998
    strange: float = 0.0
    trouble_seconds: float = 6.0
    settings: Settings = UPLOADED
    sessions_max: int | None = None
    tokens_max: int | None = None
    repeated: int = 1


class FleetServer:
    """A process that serves shards at an address, again after every crash."""

    def __init__(self, fleet: "Fleet", name: str) -> None:
        self.name = name
        self.address = f"{name}:7100"
        self._fleet = fleet
        self._lives = 0
        self.boot()

    def boot(self) -> None:
        self._lives += 1
        self.host: Machine = self._fleet.loop.host(f"{self.name}.{self._lives}")
        self.host.start(self._serve())

    async def _serve(self) -> None:
        fleet, settings = self._fleet, self._fleet.plot.settings
        runtime = SimulatedRuntime(fleet.loop, self.host)
        telemetry = Telemetry(service="sim")
        blob, consensus = fleet.blob(), fleet.consensus()
        shards = LocalShards(blob, consensus, settings=settings, runtime=runtime)
        service = ShardService(shards, settings=settings, runtime=runtime, telemetry=telemetry)
        await Host.open(
            (service,),
            (blob, consensus),
            self.address,
            settings=settings,
            runtime=runtime,
            telemetry=telemetry,
            with_reflection=False,
        )


class Fleet:
    """Stores, connections and servers from one seed; clients as they are asked for."""

    def __init__(self, loop: VirtualLoop, plot: FleetPlot) -> None:
        self.loop = loop
        self.plot = plot
        self.wires = Wires(loop)
        self.faults = Faults(loop.seed, happens=plot.happens, told=plot.told)
        self.network = Network(loop, self.faults, slow=0.001, strange=plot.strange)
        self.values, self.log = MemoryValues(), MemoryLog()
        self.witness = Witness(self.values, self.log)
        self.fired: Counter[str] = Counter()
        self.operations = 0
        self.done = False
        self.healed_at = loop.time()
        ids = loop.stream("shards")
        shards = [ShardId.of(ids.randbytes(16)) for _ in range(4)]
        self.chained, self.moved, self.definite, self.named = shards
        self.accounts = {shard: Accounts() for shard in shards}
        self.clients: list[Machine] = []
        self._made = 0
        self._runtimes: dict[Machine, SimulatedRuntime] = {}
        self._hub = Hub(self.network)
        self._rows = 0
        self.servers = [FleetServer(self, f"server{number}") for number in range(plot.servers)]
        self.endpoints = ",".join(server.address for server in self.servers)

    def blob(self) -> SimulatedBlob:
        return SimulatedBlob(self.network, self.values, self.witness)

    def consensus(self) -> SimulatedConsensus:
        return SimulatedConsensus(self.network, self.log, self.witness, self._hub)

    def client(self, name: str, endpoints: str = "") -> tuple[Machine, Client]:
        """A client on a host of its own. One in three can reach the stores itself and fails over to them."""
        machine = self.machine(name)
        self._made += 1
        fails_over = not endpoints and self._made % 3 == 0
        return machine, machine.context.run(self._client, endpoints or self.endpoints, fails_over)

    def machine(self, name: str) -> Machine:
        """A host that plays a part, and to which things happen."""
        machine = self.loop.host(name)
        self.clients.append(machine)
        return machine

    def end(self, machine: Machine, *, quietly: bool = False) -> None:
        """Its process is no more. ``quietly``: nor is the machine, so that no process is notified."""
        machine.crash()
        self.wires.gone(machine, quietly=quietly)
        self.clients.remove(machine)
        self._runtimes.pop(machine, None)

    def runtime(self) -> SimulatedRuntime:
        """That of the host whose step this is."""
        machine = here()
        assert machine is not None
        if machine not in self._runtimes:
            self._runtimes[machine] = SimulatedRuntime(self.loop, machine)
        return self._runtimes[machine]

    def _client(self, endpoints: str, fails_over: bool) -> Client:
        runtime, settings = self.runtime(), self.plot.settings
        if fails_over:
            remote = RemoteShards(endpoints, settings=settings, runtime=runtime, watched=True)
            local = LocalShards(self.blob(), self.consensus(), settings=settings, runtime=runtime)
            shards: Shards = FailoverShards(remote, local, runtime=runtime, away=lambda: remote.away)
        else:
            shards = RemoteShards(endpoints, settings=settings, runtime=runtime)
        return Client(Location(shards, blob=self.blob(), settings=settings, runtime=runtime))

    def row(self) -> int:
        """A row that was never written."""
        self._rows += 1
        return self._rows
