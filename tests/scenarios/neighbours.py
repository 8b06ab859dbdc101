"""The next release of this program, made from this one as its developers will, and processes of either release."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

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
    """A release with ``changes`` below ``to``: unchanged files are links to those of this one."""
    for folder in ("clients", "services"):
        for path in (ROOT / folder).rglob("*.py"):
            link = to / path.relative_to(ROOT)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    protos = to / "protos"
    for path in (ROOT / "protos").rglob("*.proto"):
        copy = protos / path.relative_to(ROOT / "protos")
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text()
        for after, line in PROTO if path.name == "state.proto" else ():
            assert text.count(after) == 1, after
            text = text.replace(after, after + line)
        copy.write_text(text)
    (to / "clients/persist/v1/state_pb2.py").unlink()
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}", f"--python_out={to / 'clients'}"]
    subprocess.run([*command, "persist/v1/state.proto"], check=True, cwd=protos)
    for name, old, new in changes:
        path = to / "clients" / name
        text = path.read_text()
        assert text.count(old) == 1, f"{name} has changed: {old!r}"
        path.unlink()
        path.write_text(text.replace(old, new))
    return to


def environment(release: Path) -> dict[str, str]:
    """The environment in which ``release`` is what is imported."""
    return {**os.environ, "PYTHONPATH": f"{release / 'clients'}:{release / 'services'}"}


def command(release: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """What ``persist WORDS`` of a release answers."""
    run = [sys.executable, "-m", "persist_cli", *map(str, words)]
    return subprocess.run(run, capture_output=True, text=True, check=False, env=environment(release))


class Program:
    """A process of a release that lives until it is closed or killed, with one location open."""

    def __init__(self, release: Path, location: Path) -> None:
        run = [sys.executable, str(Path(__file__).parent / "neighbour.py"), str(location)]
        self._process = subprocess.Popen(
            run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(release)
        )

    def ask(self, what: str, **given: Any) -> Any:
        """What it answers: a value, or ``{"error": …}``."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"what": what, **given}) + "\n")
        stdin.flush()
        return json.loads(stdout.readline())

    def close(self) -> None:
        """Let it end in order."""
        self._process.communicate(timeout=200)

    def kill(self) -> None:
        """kill -9, wherever it is."""
        self._process.kill()
        self._process.communicate(timeout=200)
