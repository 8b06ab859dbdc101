"""How much is simulated: little in every run of the suite, much in ``make sim``."""

import os

FULL = os.environ.get("PERSIST_SIM") == "full"
SEEDS = int(os.environ.get("PERSIST_SIM_SEEDS", "3000" if FULL else "8"))
SEED = os.environ.get("PERSIST_SIM_SEED", "")
"""Only this one: how a failure asks to be seen again."""
PROCESSES = 2
MODEL_EXAMPLES = 400 if FULL else 25
BUG_SEEDS = 60 if FULL else 16
BUG_EXAMPLES = 400 if FULL else 60
STORY_APPENDS = 33 if FULL else 9
"""Appends in the story that crashes at every point."""
