"""What each test costs in CPU: its own process and all it started, which wall clocks beside other work do not show.

``PERSIST_TEST_COSTS=file make test`` appends a line for each test: CPU seconds, seconds, processes started, name. The
sums by file: ``awk -F'[\t:]' '{ n[$4] += $1 } END { for (f in n) print n[f], f }' file | sort -n``

Spark's daemons do not wait for their forks, whose CPU is lost when they end, or taken away from the test that they end
in: ``perf stat -e task-clock`` around the run counts all of it. A run without ``make`` unsets
``PYTHONDONTWRITEBYTECODE``, as that does, or each interpreter that begins compiles all that it imports.
"""

import sys
import time
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest


class Costs:
    """A plugin that appends to ``path``. The start of a shared server counts for the test that asked for it first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = psutil.Process()
        self._before = self._cpu_seconds()
        self._started = 0
        sys.addaudithook(self._count)

    def _count(self, event: str, arguments: object) -> None:
        self._started += event == "subprocess.Popen"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        begun = time.monotonic()
        try:
            return (yield)
        finally:
            now = self._cpu_seconds()
            line = f"{now - self._before:.3f}\t{time.monotonic() - begun:.3f}\t{self._started}\t{item.nodeid}\n"
            self._before, self._started = now, 0
            with self._path.open("a") as file:
                file.write(line)

    def _cpu_seconds(self) -> float:
        """Of this process, of what it started, and of what they waited for."""
        total = 0.0
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                total += sum(process.cpu_times()[:4])  # user, system, and those of children that ended
            except psutil.NoSuchProcess:
                continue
        return total
