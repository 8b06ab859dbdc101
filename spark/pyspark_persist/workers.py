"""What is done once in a process that Spark runs tasks in.

After each task Spark's worker looks for garbage in cycles among all that it has ever imported, Spark and Arrow and
persist: 40 to 90 ms of CPU, more than reading a small split. What is there when the second task begins has outlived
such a look, and is there for good.
"""

import gc
from threading import Lock
from typing import Final

from pyspark import TaskContext

_GUARD: Final = Lock()


class _Worker:
    """This process, if it runs tasks: which was the first."""

    first_task: int | None = None


def settle() -> None:
    """At the start of a task: from the second of a process on, what outlived the first is looked through no more.

    Nothing is done outside of tasks, nor where something in this process has been set aside so by another. What is made
    later is collected as ever, and so is what was there when its last reference goes; ``gc.unfreeze()`` undoes it.
    """
    context = TaskContext.get()
    if context is None:
        return
    task = context.taskAttemptId()
    with _GUARD:
        if _Worker.first_task is None:
            _Worker.first_task = task
        elif task != _Worker.first_task and not gc.get_freeze_count():
            gc.freeze()
