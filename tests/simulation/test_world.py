"""Worlds full of trouble: nothing that was promised breaks, every fault happens, and the same seed tells the same."""

import concurrent.futures
import gc
import multiprocessing
import os
import subprocess
import sys
from collections import Counter

import pytest
from simulation.budget import FULL, PROCESSES, SEED, SEEDS

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
    "scan: did not happen, told",
    "get: did not happen, told",
)
EVENTS = ("compactions", "part deleted", "rollup deleted", "reader told that it expired", "swept")
FIRED_MIN = SEEDS // 10 if FULL else 1


def _outcome(seed: int) -> Outcome:
    return simulate(seed)


def _begin() -> None:
    gc.collect()
    gc.freeze()


@pytest.mark.timeout(14_400)
def test_worlds_keep_every_promise():
    seeds = [int(SEED)] if SEED else range(SEEDS)
    fired: Counter[str] = Counter()
    operations = 0
    seconds = 0.0
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(PROCESSES, mp_context=context, initializer=_begin) as pool:
        for outcome in pool.map(_outcome, seeds, chunksize=4):
            fired.update(outcome.fired)
            operations += outcome.operations
            seconds += outcome.seconds
    print(f"\n{len(seeds)} worlds, {operations} operations, {seconds:.0f} virtual seconds: {dict(fired.most_common())}")
    if not SEED:
        # A run in which something never happened has not shown anything about it.
        missed = [kind for kind in (*FAULTS, *EVENTS) if fired[kind] < FIRED_MIN]
        assert not missed, f"void: {missed}"
        assert operations >= 200 * len(seeds)


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
