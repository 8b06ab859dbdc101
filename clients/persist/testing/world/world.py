"""A persist location under simulation: servers, writers, readers and a nemesis that breaks things.

Several servers run the real machine over simulated stores; clients reach any of them over a network that loses calls
and answers, and delivers some twice. Afterwards everything heals, and the location must serve again and hold exactly
what was acknowledged. Source: reliability.md section 2 and bars B2, B3.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from persist.testing.faults import Quadrant
from persist.testing.simulation.simulator import VirtualLoop, simulation
from persist.testing.world.cluster import INLINE, SETTINGS, Scenario, ShardServer
from persist.testing.world.final_checks import FinalChecks


@dataclass
class WorldOutcome:
    """What a world came to."""

    seed: int
    digest: str
    operations: int
    seconds: float
    fired: Counter[str] = field(default_factory=Counter)


class World(FinalChecks):
    """Everything there is and happens, from one seed."""

    async def live(self) -> None:
        """Nemesis, peace, judgement."""
        self.servers += [ShardServer(self, f"server{number}") for number in range(self.plot.servers)]
        work = [self._actor(name, story) for name, story in self._cast().items()]
        nemesis = self.loop.create_task(self._trouble(work))
        await self._watched(asyncio.gather(*work, nemesis))
        self.done = True
        await self._watched(self._judge())

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


def simulate(seed: int, plot: Scenario | None = None) -> WorldOutcome:
    """Live through one world. Raises whatever went wrong in it, with how to see it again.

    Without a plot, worlds of even seeds keep most parts in Blob, those of odd ones in the state.
    """
    with simulation(seed) as loop:
        return _lived(loop, seed, plot or Scenario(settings=INLINE if seed % 2 else SETTINGS))


def _lived(loop: VirtualLoop, seed: int, plot: Scenario) -> WorldOutcome:
    """SUBTLE: a call of its own. What is left of a world is collected, which nothing may refer to any more by then."""
    world = World(loop, plot)
    begun = loop.time()
    try:
        loop.run_until_complete(world.live())
    except BaseException as error:
        error.add_note(f"again: make sim PART=worlds SEED={seed}")
        error.add_note("\n".join(list(loop.recent)[-12:]))
        raise
    fired = Counter(world.fired)
    for (method, quadrant), count in (*world.faults.fired.items(), *world.rpc_faults.fired.items()):
        if quadrant is not Quadrant.HAPPENED_TOLD:
            fired[f"{method}: {quadrant.value}"] += count
    fired.update(world.network.counts)
    fired["commits"] = world.witness.commits
    fired["compactions"] = world.witness.merges
    fired["batches joined"] = world.witness.joins
    fired["steps of large batches"] = world.witness.steps
    fired["parts cut"] = world.witness.cuts
    for kind, count in world.witness.deleted.items():
        fired[f"{kind} deleted"] = count
    return WorldOutcome(
        seed=seed,
        digest=loop.digest,
        operations=world.operations,
        seconds=world.healed_at - begun,
        fired=fired,
    )
