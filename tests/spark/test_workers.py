"""What is set aside in a process that runs tasks, and when. In fresh processes: it is done once in each."""

import json
import subprocess
import sys

import pytest
from forked import child_environment

PROGRAM = """
import gc, json, sys, weakref
from pyspark import TaskContext
from pyspark_persist.workers import settle

class Node:
    pass

def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)

found = []
for task in json.loads(sys.argv[1]):
    if task is None:
        gc.freeze()
        continue
    if task >= 0:
        TaskContext._getOrCreate()._taskAttemptId = task
    before = gc.get_freeze_count()
    settle()
    later = cycle()
    gc.collect()
    found.append([gc.get_freeze_count() - before, later() is None])
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        pytest.param([7], [False], id="first"),
        pytest.param([7, 7], [False, False], id="twice-in-the-first"),
        pytest.param([7, 8, 9], [False, True, False], id="second"),
        pytest.param([-1, -1], [False, False], id="no-task"),
        pytest.param([None, 7, 8], [False, False], id="another-has-set-aside"),
    ],
)
def test_what_outlived_the_first_task_is_set_aside_once(tasks: list[int | None], expected: list[bool]) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(tasks)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=child_environment(),
    )
    found = json.loads(answer.stdout)
    # Many thousand objects, or none; what is made later goes with the next look, in each of them.
    assert [count > 1_000 for count, _ in found] == expected
    assert all(gone for _, gone in found)
