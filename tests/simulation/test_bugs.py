"""The tests tested: every planted bug is caught, and what is not planted is not."""

import pytest
from simulation.budget import BUG_SEEDS
from simulation.bugs import BUGS, MISFITS, SOONEST, Plant

from persist.testing.world.world import simulate


def _caught_in_a_world(plant: Plant) -> bool:
    for seed in (SOONEST.get(plant.__name__, 0), *range(BUG_SEEDS)):
        try:
            with plant():
                simulate(seed)
        except MISFITS:
            raise
        except Exception as error:
            print(f"\n{plant.__name__}: world {seed}, {type(error).__name__}", end="", flush=True)
            return True
    return False


def test_there_are_twenty_bugs():
    assert len(BUGS) >= 20


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_caught(name: str, unseen: list[str]):
    assert _caught_in_a_world(BUGS[name]), "nothing notices it"
    unseen.clear()  # what a bug breaks in the background is part of it
