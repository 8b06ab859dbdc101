"""The next release of this program, made from this one as its developers will, and processes of either release."""

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# A number in the state that counts the commits made while it may be written: all that a field needs.
PROTO = (
    ("  uint32 known_format = 24;\n", "  // invented counts commits.\n  uint64 invented = 26;\n"),
    ("  StateNumberChange known_format = 36;\n", "  // invented of both.\n  StateNumberChange invented = 38;\n"),
)
NEWEST = ("persist/core/shard/state.py", "STATE_FORMAT: Final = 3\n", "STATE_FORMAT: Final = 4\n")
FIELD = (
    (
        "persist/core/shard/state.py",
        "    known_format: int = 0\n",
        "    known_format: int = 0\n    invented: int = 0\n",
    ),
    ("persist/core/shard/diff.py", '    "known_format",\n', '    "known_format",\n    "invented",\n'),
    ("persist/wire/shard/state.py", '    "known_format",\n', '    "known_format",\n    "invented",\n'),
    (
        "persist/wire/shard/state.py",
        "        known_format=state.known_format,\n",
        "        known_format=state.known_format,\n        invented=state.invented,\n",
    ),
    (
        "persist/wire/shard/state.py",
        "        known_format=message.known_format,\n",
        "        known_format=message.known_format,\n        invented=message.invented,\n",
    ),
)
REGISTERED = (
    "persist/wire/formats.py",
    '{3: ("StateSplice.changed",)}\n',
    '{3: ("StateSplice.changed",), 4: ("StateRollup.invented", "StateDiff.invented")}\n',
)
GUARDED = (
    "persist/core/shard/transitions/apply.py",
    "        known_format=STATE_FORMAT,\n",
    "        known_format=STATE_FORMAT,\n        invented=state.invented + (context.format >= 4),\n",
)
UNGUARDED = (*GUARDED[:2], GUARDED[2].replace(" + (context.format >= 4)", " + 1"))

NEXT = (NEWEST, *FIELD, REGISTERED, GUARDED)

LAST = (
    ("persist/core/shard/state.py", "STATE_FORMAT: Final = 3\n", "STATE_FORMAT: Final = 2\n"),
    ("persist/wire/formats.py", '{3: ("StateSplice.changed",)}\n', "{}\n"),
)
"""The release before this one, as far as what it writes and reads goes: it knows format 2, and no steps."""


def build(to: Path, changes: tuple[tuple[str, str, str], ...]) -> Path:
    """A release with ``changes`` below ``to``: all that is unchanged are links to what this one has."""
    stub = "persist/v1/state_pb2.py"
    changed = {name: (ROOT / "clients" / name).read_text() for name, _, _ in changes}
    for name, old, new in changes:
        assert changed[name].count(old) == 1, f"{name} has changed: {old!r}"
        changed[name] = changed[name].replace(old, new)
    changed[stub] = _stub()
    for folder in ("clients", "services"):
        _link(ROOT / folder, to / folder, {ROOT / "clients" / name for name in changed})
    for name, text in changed.items():
        (to / "clients" / name).write_text(text)
    return to


def _link(here: Path, to: Path, changed: set[Path]) -> None:
    """Make ``to`` what ``here`` is, without what has changed and what was compiled of it. Folders are links, too."""
    to.mkdir(parents=True)
    for each in here.iterdir():
        if each.name == "__pycache__":
            (to / each.name).mkdir()
            for compiled in each.iterdir():
                if here / f"{compiled.name.partition('.')[0]}.py" not in changed:
                    (to / each.name / compiled.name).symlink_to(compiled)
        elif any(each in path.parents for path in changed):
            _link(each, to / each.name, changed)
        elif each not in changed:
            (to / each.name).symlink_to(each)


@functools.cache
def _stub() -> str:
    """Generated from the protos of the next release."""
    with tempfile.TemporaryDirectory() as folder:
        protos = Path(folder)
        for path in (ROOT / "protos").rglob("*.proto"):
            copy = protos / path.relative_to(ROOT / "protos")
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text()
            for after, line in PROTO if path.name == "state.proto" else ():
                assert text.count(after) == 1, after
                text = text.replace(after, after + line)
            copy.write_text(text)
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}", f"--python_out={protos}"]
        subprocess.run([*command, "persist/v1/state.proto"], check=True, cwd=protos)
        return (protos / "persist/v1/state_pb2.py").read_text()


class Release:
    """A process that has imported a release, and forks for each program and command of it."""

    def __init__(self, release: Path) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._path = f"{release / 'clients'}:{release / 'services'}"
        run = [sys.executable, str(HERE / "release.py"), str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(run, env=self._environment, pass_fds=[theirs.fileno()])

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": self._path}

    def begin(self, path: Path | str, words: Sequence[object], standard: Sequence[int]) -> int:
        """Run a program, or a module, with the environment of now and these as its standard files; its pid."""
        given = json.dumps([str(path), list(map(str, words)), self._environment])
        socket.send_fds(self._socket, [given.encode()], standard)
        return int(self._socket.recv(100))

    def ended(self, pid: int) -> int:
        """Wait until one has; its exit code."""
        self._socket.send(str(pid).encode())
        return int(self._socket.recv(100))

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def release(path: Path) -> Release:
    """The process of the release there, which begins when it is first asked for. ``close_releases`` ends all."""
    begun = Release(path)
    _begun.append(begun)
    return begun


_begun: list[Release] = []


def close_releases() -> None:
    release.cache_clear()
    while _begun:
        _begun.pop().close()


def command(of: Path, *words: str | Path) -> "subprocess.CompletedProcess[str]":
    """What ``persist WORDS`` of a release answers."""
    with open(os.devnull) as nothing, tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        pid = release(of).begin("persist_cli", words, [file.fileno() for file in (nothing, output, errors)])
        code = release(of).ended(pid)
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess(words, code, output.read(), errors.read())


class Program:
    """A process of a release that lives until it is closed or killed, with one location open."""

    def __init__(self, of: Path, location: Path) -> None:
        theirs, self._input = os.pipe()
        output, answers = os.pipe()
        self._release = release(of)
        self._pid = self._release.begin(HERE / "neighbour.py", [location], (theirs, answers, 2))
        os.close(theirs)
        os.close(answers)
        self._answers = os.fdopen(output)
        self._is_over = False

    def ask(self, what: str, **given: Any) -> Any:
        """What it answers: a value, or ``{"error": …}``."""
        FileIO(self._input, "w", closefd=False).write(f"{json.dumps({'what': what, **given})}\n".encode())
        return json.loads(self._answers.readline())

    def close(self) -> None:
        """Let it end in order."""
        if not self._is_over:
            self._is_over = True
            os.close(self._input)
            with self._answers:
                self._answers.read()
            self._release.ended(self._pid)

    def kill(self) -> None:
        """kill -9, wherever it is."""
        if not self._is_over:
            os.kill(self._pid, signal.SIGKILL)
            self.close()
