"""What a server does about memory once it has begun."""

import subprocess
import sys

PROGRAM = """
import gc
from persist_host.process import GARBAGE_AFTER, settle_memory

settle_memory()
began = gc.get_freeze_count()
kept = [[number] for number in range(4 * GARBAGE_AFTER)]
frozen = gc.get_freeze_count() - began
walked = sum(len(gc.get_objects(generation)) for generation in range(3))
kept.clear()
print(frozen, walked, gc.get_freeze_count() - began, GARBAGE_AFTER)
"""


def test_what_lived_through_a_search_for_cycles_is_left_out_of_later_ones_and_freed_all_the_same() -> None:
    """In a process of its own: it holds for all of a process, for good."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    frozen, walked, left, after = map(int, done.stdout.split())
    assert frozen >= 3 * after, "three searches came to their end"
    assert walked <= 2 * after, "the next one walks through what is new"
    assert left < after, "by reference counts, without a search"
