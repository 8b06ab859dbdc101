"""The whole stack in simulated worlds: what is returned to callers is what is there."""

import dataclasses
import os
import subprocess
import sys

import pytest
from simulation.budget import FLEET_BUG_SEEDS, FLEETS, FULL, SEED
from simulation.bugs import MISFITS
from simulation.fleet.fleet_bugs import FLEET_BUGS, SOONEST
from simulation.fleet.fleet_world import plot_of, simulate_fleet
from simulation.many import live

TROUBLE = ("cut", "mute", "stick", "pause_server", "pause_client", "crash", "leap", "outage")
WIRES = ("connection cut", "request lost", "answer lost", "answer swallowed", "request delivered twice", "slow message")
STORES = ("timeout", "late effect", "slow", "strange exception")
ANSWERS = ("appended", "refused", "nothing")
LEAST = dict.fromkeys((*TROUBLE, *WIRES, *STORES, *ANSWERS), FLEETS / 3)
SECONDS_MIN = 60
"""Of trouble, in each."""


@pytest.mark.parametrize("seed", [0, 1, 6], ids=["uploaded", "inline", "compacted"])
def test_everybody_is_told_all_without_trouble(seed: int):
    calm = dataclasses.replace(plot_of(seed), trouble=False, rounds=2, overlapping=(1, 40), tokens_max=None, repeated=1)
    outcome = simulate_fleet(seed, calm)
    assert outcome.fired["nothing"] == 0
    assert outcome.fired["appended"] > 50
    assert outcome.fired["refused"] > 0
    assert simulate_fleet(seed, calm).digest == outcome.digest


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(8, 24) if FULL else [6])
def test_same_seed_tells_the_same_history(seed: int):
    """In another process, too, where objects lie elsewhere and texts have other hashes."""
    program = "import sys; from simulation.fleet import test_fleet; print(test_fleet.digest_of(int(sys.argv[1])))"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    other = subprocess.run(
        [sys.executable, "-c", program, str(seed)], env=environment, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == digest_of(seed)


def digest_of(seed: int) -> str:
    """The name of a fleet's history, of fewer rounds in every run of the suite."""
    plot = plot_of(seed)
    return simulate_fleet(seed, plot if FULL else dataclasses.replace(plot, rounds=3)).digest


@pytest.mark.timeout(14_400)
def test_fleets_keep_every_promise():
    # Where only one is lived through, it is one in which all comes about.
    seeds = range(FLEETS) if FULL else range(1, 1 + FLEETS)
    tally = live(simulate_fleet, seeds, LEAST if FULL else dict.fromkeys(ANSWERS, 1))
    assert not tally.missed(), f"void: {tally.missed()}"
    assert SEED or tally.seconds >= SECONDS_MIN * FLEETS


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FLEET_BUGS if FULL else [name for name in FLEET_BUGS if name in SOONEST][:1])
def test_planted_bug_is_caught(name: str):
    for seed in (SOONEST.get(name, 0), *range(FLEET_BUG_SEEDS)):
        try:
            with FLEET_BUGS[name]():
                simulate_fleet(seed)
        except MISFITS:
            raise
        except Exception as error:
            print(f"\n{name}: fleet {seed}, {type(error).__name__}", end="", flush=True)
            return
    pytest.fail("nothing notices it")
