"""What belongs to one process: values made anew in forked children, kept in one place."""

import os
import re
from pathlib import Path

import pytest

from persist.forks import PerProcess

ROOT = Path(__file__).parents[2]
OWNERS = {
    *("clients/persist/forks.py", "clients/persist/machine/parts/threads.py"),
    *("clients/persist/threads.py", "clients/persist/runtime.py"),
    # Of one session, which its client ends: a child of the process may not use either.
    "clients/persist/client/sql/run/engine.py",
    # Of one thread, and made anew in a child.
    str(Path("clients/persist_ingest/pipeline", "work.py")),
    # Those that wait are ended before a fork: a child has none of their threads.
    "clients/persist/client/sql/run/instances.py",
}
"""Who may keep threads for the whole process, or listen to forks."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_child_makes_a_value_of_its_own_and_the_parent_keeps_its():
    value = PerProcess(object)
    mine = value.get()
    child = os.fork()
    if child == 0:
        os._exit(0 if value.get() is not mine and value.get() is value.get() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert value.get() is mine


def test_threads_of_the_whole_process_are_kept_where_forks_are_known():
    places = [path for room in ("clients", "services", "spark") for path in (ROOT / room).rglob("*.py")]
    assert len(places) > 300
    found = {
        str(path.relative_to(ROOT))
        for path in places
        # Those of a with statement end where they begin.
        if re.search(r"^(?! *with )[^#\n]*(ThreadPoolExecutor\(|register_at_fork)", path.read_text(), re.MULTILINE)
    }
    assert found == OWNERS
