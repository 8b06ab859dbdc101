"""Processes that begin with all they need imported, which is most of what starting one costs.

A server process of ``multiprocessing`` has imported our programs, and forks. A fork does what ``python -m`` does with
the same words and environment, in a process with a pid of its own, which can be stopped and killed. Tests of how an
interpreter begins start a fresh one instead.
"""

import asyncio
import contextlib
import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.pool import Pool
from pathlib import Path

import pytest

# The adapters of typer bring pydantic: most of what each command imported beside these, in 50 ms.
PRELOADED = (
    "forked", "persist.aio", "persist.storage.open", "persist_catalog", "persist_cli.app", "persist_compaction",
    "persist_minter", "persist_shard.spec", "persist.client.blocking.client", "persist_cli.shard.commands",
    "persist_cli.serve.commands", "persist.storage.blob.s3", "persist.storage.consensus.redis", "persist_ingest",
    "persist_ingest.sources.files", "persist_ingest.sources.loadgen", "persist_ingest.sources.postgres",
    "persist_ingest.sources.mysql", "persist_cli.serve.dev", "persist.storage.blob.file",
    "persist.storage.consensus.sqlite", "persist.storage.consensus.postgres", "uvloop", "typer._adapters",
    "persist_catalog.embedded", "persist_cli.sql.commands", "persist.client.sql.session", "duckdb", "rich.table",
    "forked_frozen",
)  # fmt: skip


def forks() -> ForkServerContext:
    """The context whose processes are forks. The first call starts the process they are forks of."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    with pytest.MonkeyPatch.context() as environment:
        # What is imported before the first fork is found there, and not where a fork is asked to look.
        environment.setenv("PYTHONPATH", child_environment()["PYTHONPATH"])
        forkserver.ensure_running()
    return context


def pool(processes: int) -> Pool:
    """So many forks that run functions, in the environment of now."""
    return forks().Pool(processes, _settle, (dict(os.environ),))


def child_environment(**more: str) -> dict[str, str]:
    """The environment of a child process that imports what this one can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **more}


async def handles(pid: int, number: int) -> None:
    """Wait until the process has a handler of its own for that signal, which ends one that has just begun; or ended."""
    while caught := re.search(r"^SigCgt:\s*(\w+)", _status(pid), re.MULTILINE):
        if int(caught[1], 16) >> (number - 1) & 1:
            return
        await asyncio.sleep(0.02)


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class Fork:
    """``python -m module words``, with the surface of ``asyncio.subprocess.Process``.

    ``output`` and ``errors``: files of what it writes there, for those that are ``heard``; what is not goes where ours
    does, or what it says of errors at the end of ``log``. ``input``: the file by which lines are sent to it, if it is
    ``heard``, too. ``directory``: where it begins, if it matters.
    """

    def __init__(
        self,
        module: str,
        *words: object,
        environment: Mapping[str, str] | None = None,
        heard: Sequence[str] = (),
        log: Path | None = None,
        directory: Path | None = None,
    ) -> None:
        pipes = {name: multiprocessing.Pipe(duplex=False) for name in heard}
        theirs = [pipes[name][name != "input"] if name in pipes else None for name in ("input", "output", "errors")]
        environ = child_environment() if environment is None else dict(environment)
        given = (module, list(map(str, words)), environ, log, directory, *theirs)
        self._process = forks().Process(target=_be, args=given, daemon=True)
        self._process.start()
        self.output, self.errors = (_file(pipes.get(name)) for name in ("output", "errors"))
        self.input = _file(pipes["input"][::-1], "wb") if "input" in pipes else None

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it has not."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            # It may have ended in this very moment: its parent knows that before we do.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def join(self, seconds: float | None = None) -> int | None:
        """Wait here, for as long as that."""
        self._process.join(seconds)
        return self.returncode

    async def wait(self) -> int:
        """Wait until it has ended; how."""
        code = await asyncio.to_thread(self.join)
        assert code is not None
        return code

    def close(self) -> None:
        """kill -9, and forget what it said."""
        self.kill()
        self.join()
        for file in filter(None, (self.input, self.output, self.errors)):
            file.close()

    def tell(self, line: str) -> None:
        """Write a line to its input. What is written to a process that has ended is lost."""
        assert self.input is not None
        with contextlib.suppress(BrokenPipeError):
            self.input.write(f"{line}\n".encode())


async def stream(file: FileIO | None) -> asyncio.StreamReader:
    """What comes out of a pipe."""
    assert file is not None
    stream = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), file)
    return stream


def run_program(source: str, *words: object) -> "subprocess.CompletedProcess[str]":
    """What ``subprocess.run`` of ``python -c source words`` returns."""
    return run_fork("forked_program", source, *words)


def run_fork(
    module: str, *words: object, directory: Path | None = None, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """What ``subprocess.run`` of ``python -m module words`` returns."""
    fork = Fork(module, *words, heard=("output", "errors"), directory=directory, environment=environment)
    assert fork.output is not None
    assert fork.errors is not None
    with fork.output, fork.errors, ThreadPoolExecutor(1) as beside:
        errors = beside.submit(fork.errors.read)
        output = fork.output.read()
        code = fork.join()
        assert code is not None
        return subprocess.CompletedProcess([module, *map(str, words)], code, output.decode(), errors.result().decode())


def _file(pipe: tuple[Connection, Connection] | None, mode: str = "rb") -> FileIO | None:
    """Our end, which is the first, as a file; theirs is closed here."""
    if pipe is None:
        return None
    ours, theirs = pipe
    theirs.close()
    file = FileIO(os.dup(ours.fileno()), mode)
    ours.close()
    return file


def _settle(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _be(
    module: str,
    words: list[str],
    environment: dict[str, str],
    log: Path | None,
    directory: Path | None,
    *standard: Connection | None,
) -> None:
    if directory is not None:
        os.chdir(directory)
    for number, pipe in enumerate(standard):
        if pipe is not None:
            os.dup2(pipe.fileno(), number)
            pipe.close()
    if log is not None:
        with log.open("ab") as errors:
            os.dup2(errors.fileno(), 2)
    if standard[0] is not None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # in the place of what multiprocessing put there
    _settle(environment)
    sys.argv = [module, *words]
    sys.orig_argv = [sys.executable, "-m", module, *words]  # by which a program begins again
    runpy.run_module(module, run_name="__main__", alter_sys=True)
