"""Worlds full of trouble: nothing that was promised breaks, every fault happens, and the same seed tells the same."""

import concurrent.futures
import contextlib
import dataclasses
import gc
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter

import pytest
from simulation.budget import FULL, PROCESSES, PROGRESS_WORLDS, SEED, SEEDS

from persist.testing import simulator
from persist.testing.memory import swapped
from persist.testing.world import Outcome, simulate

FAULTS = (
    "crash",
    "pause server",
    "pause client",
    "clock jump",
    "outage",
    "slow",
    "timeout",
    "late effect",
    "delivered twice",
    "stream broke",
    "set: did not happen, told",
    "set: happened, answer lost",
    "set: did not happen, answer lost",
    "delete: did not happen, told",
    "delete: happened, answer lost",
    "delete: did not happen, answer lost",
    "compare_and_set: did not happen, told",
    "compare_and_set: happened, answer lost",
    "compare_and_set: did not happen, answer lost",
    "truncate: did not happen, told",
    "truncate: happened, answer lost",
    "truncate: did not happen, answer lost",
    "apply: did not happen, told",
    "apply: happened, answer lost",
    "apply: did not happen, answer lost",
    "merge: did not happen, told",
    "merge: happened, answer lost",
    "scan: did not happen, told",
    "get: did not happen, told",
)
EVENTS = ("compactions", "part deleted", "rollup deleted", "reader told that it expired", "swept")
FAULTS_MIN = SEEDS / 3 if FULL else 1
"""Every kind of fault strikes 1,000 times in 3,000 worlds."""
EVENTS_MIN = SEEDS / 10 if FULL else 1
OPERATIONS_MIN = 200


def _outcome(seed: int) -> tuple[Outcome, float]:
    """A world, and the CPU seconds it took."""
    begun = time.process_time()
    return simulate(seed), time.process_time() - begun


def _begin() -> None:
    gc.collect()
    gc.freeze()


@dataclasses.dataclass
class Tally:
    """What the worlds came to so far."""

    wanted: int
    worlds: int = 0
    operations: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    fired: Counter[str] = dataclasses.field(default_factory=Counter)
    begun: float = dataclasses.field(default_factory=time.monotonic)

    def add(self, outcome: Outcome, cpu_seconds: float) -> None:
        self.worlds += 1
        self.operations += outcome.operations
        self.seconds += outcome.seconds
        self.cpu_seconds += cpu_seconds
        self.fired.update(outcome.fired)

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
        kinds = [*FAULTS, *EVENTS, *sorted(set(self.fired).difference(FAULTS, EVENTS))]
        lines = [f"{kind:<44}{self.fired[kind]:>10}{_least(kind):>10.0f}" for kind in kinds]
        return "\n".join([f"{'':<44}{'fired':>10}{'at least':>10}", *lines])


def _least(kind: str) -> float:
    return FAULTS_MIN if kind in FAULTS else EVENTS_MIN if kind in EVENTS else 0


@pytest.mark.timeout(14_400)
def test_worlds_keep_every_promise():
    seeds = [int(SEED)] if SEED else range(SEEDS)
    tally = Tally(len(seeds))
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(PROCESSES, mp_context=context, initializer=_begin) as pool:
        work = {pool.submit(_outcome, seed): seed for seed in seeds}
        for done in concurrent.futures.as_completed(work):
            try:
                tally.add(*done.result())
            except BaseException:
                print(f"\n{tally}\nagain: make sim SEED={work[done]}", flush=True)
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            if tally.worlds % PROGRESS_WORLDS == 0:
                print(f"\n{tally}", end="", flush=True)
    print(f"\n{tally}\n{tally.table()}")
    if not SEED:
        # A run in which something never happened has not shown anything about it.
        missed = [kind for kind in (*FAULTS, *EVENTS) if tally.fired[kind] < _least(kind)]
        assert not missed, f"void: {missed}"
        assert tally.operations >= OPERATIONS_MIN * len(seeds)


@pytest.mark.timeout(600)
def test_same_seed_tells_the_same_history():
    seeds = range(50 if FULL else 2)
    program = "import sys; from persist.testing.world import simulate; print(simulate(int(sys.argv[1])).digest)"
    for seed in seeds:
        environment = {
            **os.environ,
            "PYTHONHASHSEED": str(seed + 1),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        other = subprocess.run(
            [sys.executable, "-c", program, str(seed)], env=environment, capture_output=True, text=True, check=True
        )
        assert other.stdout.strip() == simulate(seed).digest
    assert simulate(0).digest != simulate(1).digest


def test_remembering_changes_nothing():
    remembered = [simulate(seed).digest for seed in range(2)]
    with swapped(simulator, remembering=contextlib.nullcontext):
        assert [simulate(seed).digest for seed in range(2)] == remembered
