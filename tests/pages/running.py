"""Runs the blocks of a page one after the other, in a directory of its own, as a reader would."""

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from forked import child_environment, run_fork
from pages.fences import Fence, fences, matches

SERVER = "127.0.0.1:7100"
"""The server that pages name. It listens on a free port, which takes the place of this one in what runs."""
UNTIL_STOPPED = ("persist dev", "persist shard listen")
"""Commands that go on until they are stopped: the next one runs when they have said something."""
SECONDS = 240


class Reader:
    """Follows pages: ``names`` are what Python blocks find defined, ``instead`` the texts that are replaced in code."""

    def __init__(self, directory: Path, names: Mapping[str, Any], instead: Mapping[str, str]) -> None:
        self.names = dict(names)
        self._directory = directory
        self._instead = dict(instead)
        self._running: list[subprocess.Popen[str]] = []

    def follow(self, page: Path, of_interest: Callable[[Fence], bool] = lambda fence: True) -> None:
        """Run the blocks that run with their page, and compare what they print."""
        for fence in fences(page):
            if fence.runs and of_interest(fence):
                said = self.run(fence)
                if fence.output is not None:
                    assert matches(said, fence.output), f"{fence} prints\n{said}\nand not\n{fence.output}"

    def run(self, fence: Fence) -> str:
        """Run one block; what it printed."""
        code = fence.code
        if fence.language == "python":
            return self._python(self._here(code), str(fence))
        if fence.language == "sql":
            for statement in filter(None, map(str.strip, code.split(";"))):
                self.names["spark"].sql(self._here(statement))
            return ""
        return "".join(self._shell(self._here(line)) for line in commands(code))

    def _here(self, code: str) -> str:
        """The code with what is named otherwise here."""
        for name, value in self._instead.items():
            code = code.replace(name, value)
        return code

    def _python(self, code: str, where: str) -> str:
        # Lines as they are in the page, so that a traceback leads there.
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, where, "exec"), self.names)  # a page of this checkout
        return said.getvalue()

    def _shell(self, command: str) -> str:
        if command.startswith(UNTIL_STOPPED):
            return self._begin(command)
        if words := plain(command):
            done = run_fork("persist_cli", *words[1:], directory=self._directory)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            return done.stdout
        script = f'persist() {{ "{sys.executable}" -m persist_cli "$@"; }}\n{command}\n'
        done = subprocess.run(
            ["bash", "-euc", script], cwd=self._directory, env=child_environment(), capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def serve(self) -> str:
        """Start a server over an empty place; where it listens."""
        self._begin("persist dev --data data")
        return self._instead[SERVER]

    def _begin(self, command: str) -> str:
        """Start what goes on until it is stopped, and wait for its first line."""
        _, *words = shlex.split(command, comments=True)
        if words[0] == "dev":
            words += ["--listen", "127.0.0.1:0"]
        process = subprocess.Popen(
            [sys.executable, "-m", "persist_cli", *words],
            cwd=self._directory, env=child_environment(), stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._running.append(process)
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, f"{command} ended with {process.wait(SECONDS)}"
        if words[0] == "dev":
            found = re.search(r"127\.0\.0\.1:\d+", said)
            assert found, said
            self._instead[SERVER] = found.group()
        return said

    def stop(self) -> None:
        """Stop what still runs, as Ctrl-C does, the last one first; all of it says that it ended well."""
        codes = {}
        while self._running:
            process = self._running.pop()
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            codes[str(process.args)] = process.returncode
        assert set(codes.values()) <= {0}, codes


def plain(command: str) -> list[str] | None:
    """The words of a call of ``persist`` that needs no shell.

    Nor an interpreter of its own: Spark, which the doctor may start, ends when one does, and not when a fork does.
    """
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    shells = any(set(word) <= set("();<>|&") or (set(word) & set("$*?~") and " " not in word) for word in words)
    forks = words[0] == "persist" and words[1] != "doctor"
    return words if forks and "$" not in command and not shells else None


def commands(code: str) -> Iterator[str]:
    """The command lines of a shell block, each with the lines that continue it."""
    for line in code.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line


@contextlib.contextmanager
def reading(directory: Path, names: Mapping[str, Any], instead: Mapping[str, str]) -> Iterator[Reader]:
    """A reader who sits in ``directory``. In the end servers are stopped, and clients closed."""
    reader = Reader(directory, names, instead)
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield reader
    finally:
        try:
            reader.stop()
        finally:
            os.chdir(before)
            for value in reader.names.values():
                if type(value).__name__ == "Client":
                    value.close()
