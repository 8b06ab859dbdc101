"""The map of commands: one module has them all, and each has its transition."""

import subprocess
import sys

from persist.core.shard import commands
from persist.core.shard.commands import Command

ALONE = """
from persist.core.shard import commands
from persist.core.shard.transitions import apply, dispatch
known = dispatch.transition.dispatch
named = {each.__name__ for each in commands.Command.__subclasses__()}
print(sorted(name for name in named if known(getattr(commands, name)) is known(object)))
"""


def test_every_command_lies_with_the_others() -> None:
    found = Command.__subclasses__()
    # Also the one that loses rows.
    assert commands.TakeOutParts in found
    assert {each.__module__ for each in found} == {commands.__name__}


def test_applying_is_enough_to_know_every_transition() -> None:
    """In a process that imported nothing else."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
