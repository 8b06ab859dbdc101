"""What goes wrong in a simulated world: crashes, pauses, clocks that jump, stores that are away."""

import asyncio
import random
from collections.abc import Sequence

from persist.testing.simulation.simulator import Host
from persist.testing.world.actors import Actors
from persist.testing.world.cluster import LEASE_SECONDS, ShardServer


class Nemesis(Actors):
    """Breaks things, until all is healed."""

    async def _trouble(self, work: Sequence["asyncio.Task[None]"]) -> None:
        entropy, writers = self.loop.stream("nemesis"), work[:4]
        kinds = (self._crash, self._pause_server, self._pause_client, self._jump, self._outage, self._calm)
        limit = self.loop.time() + 600
        while not all(task.done() for task in writers) and self.loop.time() < limit:
            await asyncio.sleep(entropy.expovariate(1 / self.plot.trouble_seconds))
            await entropy.choice(kinds)(entropy)
        self.heal()

    def heal(self) -> None:
        """No more faults from here on; every host is up."""
        self.faults.enabled = self.rpc_faults.enabled = False
        self.done = True
        for host in [*self.clients, *(server.host for server in self.servers)]:
            host.resume()
            host.skew_ms = 0
        for server in self.servers:
            if not server.host.alive:
                server.boot()
        self.healed_at = self.loop.time()
        self.loop.log("healed")

    async def _crash(self, entropy: random.Random) -> None:
        server = entropy.choice(self.servers)
        if not server.host.alive:
            return
        self.fired["crash"] += 1
        self.loop.log(f"crash {server.name}")
        server.crash()
        self.loop.call_later(entropy.uniform(0.01, 2.0), self._reboot, server, context=self.loop.elsewhere)

    def _reboot(self, server: ShardServer) -> None:
        if not server.host.alive:
            skew = server.host.skew_ms
            server.boot()
            server.host.skew_ms = skew
            self.loop.log(f"boot {server.host.name}")

    async def _pause_server(self, entropy: random.Random) -> None:
        self._pause(entropy.choice(self.servers).host, entropy, "pause server")

    async def _pause_client(self, entropy: random.Random) -> None:
        self._pause(entropy.choice(self.clients), entropy, "pause client")

    def _pause(self, host: Host, entropy: random.Random, kind: str) -> None:
        if host.paused or not host.alive:
            return
        self.fired[kind] += 1
        self.loop.log(f"pause {host.name}")
        host.pause()
        seconds = entropy.choice([0.2, 1.0, 3 * LEASE_SECONDS])
        self.loop.call_later(seconds, host.resume, context=self.loop.elsewhere)

    async def _jump(self, entropy: random.Random) -> None:
        host = entropy.choice(self.servers).host
        self.fired["clock jump"] += 1
        host.skew_ms += entropy.choice([-60_000, -3_000, 3_000, 10_000])
        self.loop.log(f"clock {host.name} {host.skew_ms}")

    async def _outage(self, entropy: random.Random) -> None:
        self.fired["outage"] += 1
        before = self.faults._default
        self.faults._default = (0.3, 0.5)
        await asyncio.sleep(entropy.uniform(0.1, 1.5))
        self.faults._default = before

    async def _calm(self, entropy: random.Random) -> None:
        await asyncio.sleep(entropy.uniform(0.1, 1.0))
