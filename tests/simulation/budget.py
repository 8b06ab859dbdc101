"""How much is simulated: little in every run of the suite, much in ``make sim``."""

import os

FULL = os.environ.get("PERSIST_SIM") == "full"
SEEDS = int(os.environ.get("PERSIST_SIM_SEEDS", "3000" if FULL else "4"))
FLEETS = int(os.environ.get("PERSIST_SIM_FLEETS", "600" if FULL else "1"))
SEED = os.environ.get("PERSIST_SIM_SEED", "")
"""Only this one: how a failure asks to be seen again."""
PROCESSES = 2
PROGRESS_WORLDS = 50
"""Between two lines that say how far it is."""
MODEL_EXAMPLES = 600 if FULL else 25
MODEL_STEPS_MIN = 20_000 if FULL else 500
MODEL_LONG_EXAMPLES_MIN = 400 if FULL else 10
"""Examples that reached all of their 50 steps: Hypothesis ends some sooner."""
BUG_SEEDS = 60 if FULL else 16
FLEET_BUG_SEEDS = 40
POINTS_ALIKE = 10_000 if FULL else 2
"""Points of the story at which a process crashes, of each step, change and side of it."""
STORY_APPENDS = 33 if FULL else 7
"""Appends in the story that crashes at every point."""


def examples(full: int) -> int:
    """How many examples Hypothesis tries of a law that is tried so often at length; the first ones, always the same."""
    return full if FULL else max(20, full // 4)


def seeds(full: int) -> range:
    """Seeds of a random history of which there are so many at length; the first ones."""
    return range(full if FULL else max(1, full // 2))
