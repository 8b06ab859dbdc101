"""Worlds full of trouble: nothing that was promised breaks, every fault happens, and the same seed gives the same."""

import contextlib
import os
import subprocess
import sys

import pytest
from simulation.budget import FULL, SEED, SEEDS
from simulation.many import live

from persist.testing.simulation import simulator
from persist.testing.simulation.memory import swapped
from persist.testing.world.world import simulate

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
    "set: did not happen, answered",
    "set: happened, answer lost",
    "set: did not happen, answer lost",
    "delete: did not happen, answered",
    "delete: happened, answer lost",
    "delete: did not happen, answer lost",
    "compare_and_set: did not happen, answered",
    "compare_and_set: happened, answer lost",
    "compare_and_set: did not happen, answer lost",
    "truncate: did not happen, answered",
    "truncate: happened, answer lost",
    "truncate: did not happen, answer lost",
    "apply: did not happen, answered",
    "apply: happened, answer lost",
    "apply: did not happen, answer lost",
    "merge: did not happen, answered",
    "merge: happened, answer lost",
    "scan: did not happen, answered",
    "get: did not happen, answered",
)
EVENTS = (
    "compactions",
    "batches joined",
    "steps of large batches",
    "parts cut",
    "part deleted",
    "rollup deleted",
    "reader expired",
    "swept",
)
FAULTS_MIN = SEEDS / 3 if FULL else 1
"""Every kind of fault strikes 1,000 times in 3,000 worlds."""
EVENTS_MIN = SEEDS / 10 if FULL else 1
OPERATIONS_MIN = 200


LEAST = {**dict.fromkeys(FAULTS, FAULTS_MIN), **dict.fromkeys(EVENTS, EVENTS_MIN)}


@pytest.mark.timeout(14_400)
def test_worlds_keep_every_promise():
    tally = live(simulate, range(SEEDS), LEAST)
    assert not tally.missed(), f"void: {tally.missed()}"
    assert SEED or tally.operations >= OPERATIONS_MIN * SEEDS


@pytest.mark.timeout(600)
def test_same_seed_tells_the_same_history():
    seeds = range(50 if FULL else 1)
    program = "import sys; from persist.testing.world.world import simulate; print(simulate(int(sys.argv[1])).digest)"
    told = {}
    for seed in seeds:
        environment = {
            **os.environ,
            "PYTHONHASHSEED": str(seed + 1),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        other = subprocess.run(
            [sys.executable, "-c", program, str(seed)], env=environment, capture_output=True, text=True, check=True
        )
        told[seed] = simulate(seed).digest
        assert other.stdout.strip() == told[seed]
    assert told[0] != simulate(1).digest


def test_remembering_changes_nothing():
    seeds = range(2 if FULL else 1)
    remembered = [simulate(seed).digest for seed in seeds]
    with swapped(simulator, remembering=contextlib.nullcontext):
        assert [simulate(seed).digest for seed in seeds] == remembered
