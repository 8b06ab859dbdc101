"""Many worlds in two processes, and what they came to."""

import concurrent.futures
import dataclasses
import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from forked import forks
from simulation.budget import PROCESSES, PROGRESS_WORLDS, SEED

from persist.testing.simulation.simulator import Host
from persist.testing.world.world import WorldOutcome

World = Callable[[int], WorldOutcome]


@dataclasses.dataclass
class Tally:
    """What the worlds came to so far. ``least``: how often each kind of event has to have happened."""

    wanted: int
    least: dict[str, float]
    worlds: int = 0
    operations: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    fired: Counter[str] = dataclasses.field(default_factory=Counter)
    begun: float = dataclasses.field(default_factory=time.monotonic)

    def add(self, outcome: WorldOutcome, cpu_seconds: float) -> None:
        self.worlds += 1
        self.operations += outcome.operations
        self.seconds += outcome.seconds
        self.cpu_seconds += cpu_seconds
        self.fired.update(outcome.fired)

    def missed(self) -> list[str]:
        """A run in which something never happened has not shown anything about it."""
        return [kind for kind, least in self.least.items() if self.fired[kind] < least]

    def __str__(self) -> str:
        each = (time.monotonic() - self.begun) / max(self.worlds, 1)
        return (
            f"{self.worlds} of {self.wanted} worlds, {self.operations} operations, {self.seconds:.0f} virtual seconds"
            f" in {self.cpu_seconds:.0f} CPU seconds ({self.seconds / max(self.cpu_seconds, 0.001):.0f}x);"
            f" {60 / max(each, 0.001):.0f} worlds a minute,"
            f" about {(self.wanted - self.worlds) * each / 60:.1f} minutes left"
        )

    def table(self) -> str:
        """What struck how often, next to how often it has to."""
        kinds = [*self.least, *sorted(set(self.fired).difference(self.least))]
        lines = [f"{kind:<44}{self.fired[kind]:>10}{self.least.get(kind, 0):>10.0f}" for kind in kinds]
        return "\n".join([f"{'':<44}{'fired':>10}{'at least':>10}", *lines])


def live(world: World, seeds: Sequence[int], least: dict[str, float]) -> Tally:
    """Live through all of them; the first that fails ends it. ``world`` must be importable."""
    seeds = [int(SEED)] if SEED else seeds
    tally = Tally(len(seeds), {} if SEED else least)
    pool = concurrent.futures.ProcessPoolExecutor(PROCESSES, mp_context=forks(), initializer=_begin)
    try:
        work = {pool.submit(_timed, world, seed): seed for seed in seeds}
        for done in concurrent.futures.as_completed(work):
            try:
                tally.add(*done.result())
            except BaseException:
                print(f"\n{tally}\nit was world {work[done]}", flush=True)
                raise
            if tally.worlds % PROGRESS_WORLDS == 0:
                print(f"\n{tally}", end="", flush=True)
    finally:
        # SUBTLE: what a ``with`` does as well would let all worlds be lived through that have not begun.
        pool.shutdown(wait=False, cancel_futures=True)
    print(f"\n{tally}\n{tally.table()}")
    return tally


def _timed(world: World, seed: int) -> tuple[WorldOutcome, float]:
    """A world, and the CPU seconds it took."""
    begun = time.process_time()
    outcome = world(seed)
    # What is left of one world is left of every world: hundreds of them do not fit into memory.
    assert not any(type(each) is Host for each in gc.get_objects()), "something refers to a world that has ended"
    return outcome, time.process_time() - begun


def _begin() -> None:
    # What is done in the background logs each fault it meets: thousands of lines between those that say how far it is.
    logging.lastResort = None
    gc.collect()
    gc.freeze()
