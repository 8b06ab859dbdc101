"""Child processes: servers that say where they listen, and jobs that answer with one line of JSON."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_SOURCES = ("clients", "services", "spark", "tests")
JOB_SECONDS = 600.0
SAID = "say: "
"""What a line of a job begins with that is for the person in front of the screen."""


class ChildFailed(RuntimeError):
    """A child ended early or said something unexpected; the message holds the end of what it printed to stderr."""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of every child: this one's, with the source roots importable."""
    paths = [str(ROOT / source) for source in _SOURCES]
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in paths]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *inherited]), **(extra or {})}


class Child:
    """One Python process of ours: ``python -m module arguments``. Killed when closed."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        python: str = sys.executable,
    ) -> None:
        self.name = f"{module} {' '.join(arguments)[:80]}"
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by close()
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(env),
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def cpu_seconds(self) -> float:
        """User and system time so far. Linux only; 0.0 elsewhere."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def tree_cpu_seconds(self) -> float:
        """The same of all its processes, with those that ended. Linux only; 0.0 elsewhere."""
        spent: dict[int, tuple[int, int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                spent[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
        total, found = 0, {self.pid}
        while found:
            total += sum(spent[pid][1] for pid in found if pid in spent)
            found = {pid for pid, (parent, _) in spent.items() if parent in found}
        return total / os.sysconf("SC_CLK_TCK")

    def line(self, seconds: float = 60.0) -> str:
        """The next line it prints. Raises ChildFailed when it ends, or says nothing for that long."""
        assert self._process.stdout is not None
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise ChildFailed(f"{self.name} ended or hung: {self.errors()}")
        return line.strip()

    def answer(self, seconds: float = JOB_SECONDS, say: Callable[[str], None] | None = None) -> Any:
        """The next line that is JSON; of others those that begin with ``SAID`` are said, all else is passed over."""
        while True:
            line = self.line(seconds)
            if line.startswith(SAID) and say is not None:
                say(line.removeprefix(SAID))
            with contextlib.suppress(ValueError):
                return json.loads(line)

    def tell(self, text: str) -> None:
        """A line on its standard input. Raises ChildFailed when it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ChildFailed(f"{self.name} has ended: {self.errors()}") from error

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:].strip()

    def close(self) -> None:
        """SIGTERM, then SIGKILL after two seconds."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


@contextlib.contextmanager
def child(
    module: str,
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    python: str = sys.executable,
) -> Iterator[Child]:
    """A child that ends with the block."""
    process = Child(module, arguments, env, python=python)
    try:
        yield process
    finally:
        process.close()


def job(module: str, request: Mapping[str, Any], *, seconds: float = JOB_SECONDS) -> Any:
    """Run a fresh process to its end and return the JSON it printed. Raises ChildFailed."""
    with child(module, [json.dumps(request)]) as process:
        return process.answer(seconds)


async def answering(answer: Callable[[str], Awaitable[Any]]) -> None:
    """In a child: print what each line of standard input is answered with, as JSON, to the end of the input."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        print(json.dumps(await answer(line.decode().strip())), flush=True)
