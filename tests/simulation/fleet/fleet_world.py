"""A fleet in trouble, healed and judged: what was returned to every caller is compared with what is there."""

import asyncio
import contextlib
import dataclasses
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

from simulation.fleet.fleet import COMPACTED, INLINE, UPLOADED, FleetPlot, FleetServer
from simulation.fleet.fleet_blocking import BlockingCast
from simulation.fleet.fleet_cast import GRID

from persist.client.client import Client
from persist.core.shard.transitions.dispatch import Context
from persist.errors import LocationError
from persist.machine.applier import Applier
from persist.testing.ledger import Violation
from persist.testing.simulation.grpc import wired
from persist.testing.simulation.memory import swapped
from persist.testing.simulation.simulator import Host as Machine
from persist.testing.simulation.simulator import VirtualLoop, simulation
from persist.testing.simulation.turns import blocking
from persist.testing.world.sample import SCHEMA, table
from persist.testing.world.world import WorldOutcome

PEACE_SECONDS = 120.0
"""After which nothing that was sent before can still be under way."""
TROUBLE_SECONDS_MAX = 900.0
FINITE = ("chain", "run ahead", "move", "move agelessly", "append", "append beside", "relay", "plan", "block")
"""Stories that end by themselves. The others end when all is healed."""
FORGETFUL = (2, 9)
"""Of sixteen fleets, those whose shards remember fewer sessions than call."""
ABSENT_MINDED = (6, 11)
"""Of sixteen fleets, those whose shards remember fewer tokens than are under way."""


class FleetWorld(BlockingCast):
    """Everything that happens, from one seed."""

    def __init__(self, loop: VirtualLoop, plot: FleetPlot) -> None:
        super().__init__(loop, plot)
        self.released: set[str] = set()
        self._nemesis = loop.stream("nemesis/strikes")

    async def live(self) -> None:
        """Nemesis, peace, judgement."""
        await self._begin()
        work = self.cast()
        trouble = self.loop.create_task(self._trouble([task for name, task in work.items() if name in FINITE]))
        await self._watched(asyncio.gather(*work.values(), trouble))
        await self._watched(self._judge())

    async def _begin(self) -> None:
        """Holds on both shards from the first time on, so that in the end every update still has its time."""
        machine, client = self.client("keeper")
        self.wires.enabled = self.faults.enabled = False
        await machine.start(self._keep(client))
        self.wires.enabled = self.faults.enabled = self.plot.trouble

    async def _keep(self, client: Client) -> None:
        for shard in self.accounts:
            writer = await self._writer(client, shard)
            await client.open_since("keeper", shard)
            await writer.compare_and_append([], 0, GRID)

    async def _watched(self, work: Any) -> None:
        """Run until it ends, or the witness speaks up."""
        task = asyncio.ensure_future(work)
        alarm = asyncio.Event()
        self.witness.alarm = alarm.set
        called = asyncio.ensure_future(alarm.wait())
        await asyncio.wait({task, called}, return_when=asyncio.FIRST_COMPLETED)
        called.cancel()
        self.witness.check()
        await task

    # ---- trouble -------------------------------------------------------------------------------------------------

    async def _trouble(self, writers: "list[asyncio.Task[None]]") -> None:
        entropy = self.loop.stream("nemesis")
        limit = self.loop.time() + TROUBLE_SECONDS_MAX
        while not all(task.done() for task in writers) and self.loop.time() < limit:
            await asyncio.sleep(entropy.expovariate(1 / self.plot.trouble_seconds))
            self.strike()
        self.heal()

    def strike(self, *, amid: bool = False) -> None:
        """Something goes wrong; ``amid`` calls, something that leaves them in doubt."""
        if self.done or not self.plot.trouble:
            return
        doubt: list[Callable[[random.Random], None]] = [
            self._cut,
            self._mute,
            self._stick,
            self._pause_server,
            self._crash,
        ]
        kind = self._nemesis.choice(doubt if amid else [*doubt, self._pause_client, self._leap, self._outage])
        self.fired[kind.__name__.strip("_")] += 1
        self.loop.log(kind.__name__)
        kind(self._nemesis)

    def heal(self) -> None:
        self.faults.enabled = False
        self.wires.heal()
        self.done = True
        for machine in [*self.clients, *(server.host for server in self.servers)]:
            machine.resume()
            machine.skew_ms = 0
        for server in self.servers:
            if not server.host.alive:
                server.boot()
        self.healed_at = self.loop.time()
        self.loop.log("healed")

    def _cut(self, entropy: random.Random) -> None:
        """Connections break."""
        for connection in self.wires.some():
            connection.reset()

    def _mute(self, entropy: random.Random) -> None:
        """Requests arrive, answers do not, until the connections break."""
        for connection in self.wires.some():
            connection.muted = True
            self.wires.later(entropy.choice([0.05, 0.5, 8.0]), connection.reset)

    def _stick(self, entropy: random.Random) -> None:
        """Requests are under way for long."""
        seconds = entropy.choice([1.0, 10.0, 60.0])
        for connection in self.wires.some():
            connection.hold(seconds)

    def _pause_server(self, entropy: random.Random) -> None:
        self._pause(entropy.choice(self.servers).host, entropy)

    def _pause_client(self, entropy: random.Random) -> None:
        self._pause(entropy.choice(self.clients), entropy)

    def _pause(self, machine: Machine, entropy: random.Random) -> None:
        if not machine.silent:
            machine.pause()
            self.wires.later(entropy.choice([0.5, 5.0, 30.0, 90.0]), machine.resume)

    def _crash(self, entropy: random.Random) -> None:
        server = entropy.choice(self.servers)
        if server.host.alive:
            server.host.crash()
            self.wires.gone(server.host, quietly=entropy.random() < 0.2)
            self.wires.later(entropy.uniform(0.1, 10.0), self._reboot, server)

    def _reboot(self, server: FleetServer) -> None:
        if not server.host.alive:
            skew = server.host.skew_ms
            server.boot()
            server.host.skew_ms = skew

    def _leap(self, entropy: random.Random) -> None:
        """A clock leaps: by a lease of writers and more, back by an hour, or home."""
        machine = entropy.choice([*self.clients, *(server.host for server in self.servers)])
        lease = self.plot.settings.writer_lease_ms
        machine.skew_ms = entropy.choice([0, -3_600_000, 60_000, lease + 60_000, 3 * lease])

    def _outage(self, entropy: random.Random) -> None:
        self.faults._default = (0.5, 0.5)
        self.wires.later(entropy.uniform(0.1, 5.0), self._outage_ends)

    def _outage_ends(self) -> None:
        self.faults._default = (self.plot.happens, self.plot.told)

    # ---- judgement -----------------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        await asyncio.sleep(PEACE_SECONDS)
        for server in self.servers:
            machine, client = self.client(f"last-{server.name}", server.address)
            try:
                async with asyncio.timeout(30.0):
                    await machine.start(self._append_once(client))
            except TimeoutError:
                raise Violation(f"I25: {server.name} takes no append in 30 s of peace") from None
        machine, client = self.client("judge")
        for shard, accounts in self.accounts.items():
            found, _ = await machine.start(self.updates(client, shard))
            accounts.judge(found)
        self._check_holds()
        self.witness.check()

    async def _append_once(self, client: Client) -> None:
        for shard, accounts in self.accounts.items():
            account = accounts.open(self.row())
            writer = await client.open_writer(shard, schema=SCHEMA)
            while True:
                try:
                    account.answered(await writer.append_at_upper(table([(account.row, "last", 0, 1)])))
                    break
                except LocationError:
                    account = accounts.open(self.row())

    def _check_holds(self) -> None:
        state = self.witness.states[self.chained]
        revived = sorted(self.released & set(state.critical_readers))
        if revived:
            raise Violation(f"I16: expired critical holds are back: {revived}")


def plot_of(seed: int) -> FleetPlot:
    """Fleets of even seeds keep parts in Blob, those of odd ones mostly in the state.

    Some are compacted; in some, stores raise what no port allows; in some, shards forget sessions that still call.
    """
    settings = COMPACTED if seed % 8 == 6 else INLINE if seed % 2 else UPLOADED
    strange = 0.002 if seed % 4 == 3 else 0.0
    absent_minded = seed % 16 in ABSENT_MINDED
    return FleetPlot(
        settings=settings,
        strange=strange,
        sessions_max=2 + seed % 3 if seed % 16 in FORGETFUL else None,
        tokens_max=5 + seed % 16 if absent_minded else None,
        repeated=20 if absent_minded else 1,
    )


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Servers log what is strange, with all its frames."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _forgetting(plot: FleetPlot) -> Iterator[None]:
    """All shards remember no more than the plot says, with every commit. No setting of a location does that."""
    most = {name: most for name in ("sessions_max", "tokens_max") if (most := getattr(plot, name)) is not None}
    if not most:
        yield
        return
    right = Applier._context

    def context(self: Applier) -> Context:
        return dataclasses.replace(right(self), forget_every=1, **most)

    with swapped(Applier, _context=context):
        yield


def simulate_fleet(seed: int, plot: FleetPlot | None = None) -> WorldOutcome:
    """Live through one world. Raises whatever went wrong in it, with how to see it again."""
    with simulation(seed) as loop:
        return _lived(loop, seed, plot or plot_of(seed))


def _lived(loop: VirtualLoop, seed: int, plot: FleetPlot) -> WorldOutcome:
    """SUBTLE: a call of its own. What is left of a world is collected, which nothing may refer to any more by then."""
    try:
        world = FleetWorld(loop, plot)
        with wired(world.wires), blocking(world.blob, world.runtime), _unlogged(), _forgetting(plot):
            loop.run_until_complete(world.live())
    except BaseException as error:
        error.add_note(f"again: make sim PART=fleets SEED={seed}")
        error.add_note("\n".join(list(loop.recent)[-12:]))
        raise
    fired = world.fired + world.wires.counts + world.network.counts
    for accounts in world.accounts.values():
        fired += accounts.tally()
    fired["commits"] = world.witness.commits
    return WorldOutcome(
        seed=seed,
        digest=loop.digest,
        operations=world.operations,
        seconds=world.healed_at - 1_000.0,
        fired=fired,
    )
