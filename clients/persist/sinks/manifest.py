"""Manifest: which files of a folder count, and up to where: each write appends a line, however many files there are.

``manifest.json`` says whose the folder is and the position at which the log that it names begins. A line of the log
counts once it is whole. A log that has become long is sealed: its files into a segment, which never changes.
Source: docs/formats.md; reliability.md, durable files.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from persist.client.collections.sinks.port import of_earlier_release
from persist.errors import InvalidArgument
from persist.typed import Record

MANIFEST: Final = "manifest.json"
VERSION: Final = 2
WHOLE: Final = 1
"""The version that had all files in ``manifest.json``."""
LINES_MAX: Final = 1_000
"""Of a log. With fewer files than half of that they go on to the next one."""
OURS: Final = re.compile(r"manifest-[0-9]{8,}\.(log|jsonl)")


@dataclass(slots=True)
class FolderState:
    """What a folder keeps. ``segments``: names, in the order of times. ``files``: those in the log, or of a manifest
    that had them all. ``size``: bytes of the log that count, None: there is none."""

    version: int
    cursor: str
    history: int
    columns: object
    position: int | None = None
    segments: list[str] = field(default_factory=list)
    files: list[Record] = field(default_factory=list)
    number: int = 0
    lines: int = 0
    size: int | None = None


class Manifest:
    """Of a folder. One process at a time writes; any reads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> FolderState | None:
        """What counts now; None: there is nothing. Raises OSError, InvalidArgument (it is damaged)."""
        before: str | None = None
        while True:
            try:
                text = (self._folder / MANIFEST).read_text()
            except FileNotFoundError:
                return None
            try:
                return self._parsed(text)
            except FileNotFoundError:
                if text == before:
                    raise self._damaged("a file that it names is gone") from None
                before = text  # its log was sealed meanwhile

    def files(self, kept: FolderState) -> Iterator[Record]:
        """What it says of the files that count, in the order of times. Raises as ``read``."""
        for name in kept.segments:
            yield from map(json.loads, (self._folder / name).read_text().splitlines())
        yield from kept.files

    def begin(self, kept: FolderState) -> None:
        """From here on ``append`` may follow. What a log may have behind its last whole line is not taken along."""
        if kept.version == WHOLE:
            kept.version = VERSION
            self._seal(kept, 0)
        else:
            self._seal(kept)

    def append(
        self, kept: FolderState, position: int, name: str = "", before: int | None = None, rows: int = 0
    ) -> None:
        """A line, durable, with a file if that has a name: its position is that of the folder.

        Raises OSError, after which ``read`` shows whether it is there.
        """
        assert kept.size is not None
        line: Record = {"position": position}
        if name:
            line = {"name": name, "before": before, "position": position, "rows": rows}
        data = json.dumps(line).encode() + b"\n"
        log = os.open(self._folder / _log(kept.number), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(log, kept.size)
            written = 0
            while written < len(data):
                written += os.pwrite(log, data[written:], kept.size + written)
            os.fsync(log)
        finally:
            os.close(log)
        kept.size += len(data)
        kept.lines += 1
        _take(kept, line)
        if kept.lines >= LINES_MAX:
            self._seal(kept)

    def unnamed(self, kept: FolderState) -> Iterator[Path]:
        """Logs and segments that were left by who died, or whose files are elsewhere by now."""
        named = {*kept.segments, _log(kept.number)}
        return (path for path in self._folder.iterdir() if OURS.fullmatch(path.name) and path.name not in named)

    def _parsed(self, text: str) -> FolderState:
        try:
            found: Record = json.loads(text)
        except ValueError as error:
            raise self._foreign() from error
        if not _is_head(found):
            raise self._foreign()
        version = found.get("version", WHOLE)
        if "history" not in found:
            found["cursor"], found["history"] = of_earlier_release(found["cursor"]) or (found["cursor"], 0)
        kept = FolderState(version, found["cursor"], found["history"], found["columns"], found["position"])
        if version == WHOLE:
            kept.files = list(found["files"])
        elif version == VERSION:
            kept.segments, kept.number = list(found["segments"]), int(found["log"].split("-")[1].split(".")[0])
            self._follow(kept, (self._folder / found["log"]).read_bytes())
        return kept

    def _follow(self, kept: FolderState, data: bytes) -> None:
        """SUBTLE: only the last line can be one whose writer died: each is durable before the next one is written."""
        kept.size = 0
        *lines, _ = data.split(b"\n")
        for number, each in enumerate(lines, 1):
            try:
                line = json.loads(each)
                _take(kept, line)
            except (ValueError, KeyError, TypeError):
                if number < len(lines):
                    raise self._damaged(f"line {number} of its log is none") from None
                return
            kept.size += len(each) + 1
            kept.lines += 1

    def _seal(self, kept: FolderState, least: int = LINES_MAX // 2) -> None:
        """Go on in a new log. The old one and its segment say the same, of which ``manifest.json`` chooses."""
        old = self._folder / _log(kept.number)
        segment = f"manifest-{kept.number:08d}.jsonl"
        if kept.files and len(kept.files) >= least:
            durable(self._folder, segment, lambda path: path.write_text(_lines(kept)))
            kept.segments, kept.files = [*kept.segments, segment], []
        kept.number += 1
        text = _lines(kept)
        durable(self._folder, _log(kept.number), lambda path: path.write_text(text))
        kept.size, kept.lines = len(text.encode()), len(kept.files)
        head = {
            "version": VERSION,
            "cursor": kept.cursor,
            "history": kept.history,
            "columns": kept.columns,
            "position": kept.position,
            "segments": kept.segments,
            "log": _log(kept.number),
        }
        durable(self._folder, MANIFEST, lambda path: path.write_text(json.dumps(head, indent=1)))
        old.unlink(missing_ok=True)

    def _foreign(self) -> InvalidArgument:
        return InvalidArgument(
            f"no sink wrote the {MANIFEST} of this folder: nothing was written",
            hint="put back what it held, or make a new cursor and deliver that into another folder",
            folder=self._folder,
        )

    def _damaged(self, why: str) -> InvalidArgument:
        hint = "restore the folder, or deliver a new cursor or sink into another one"
        return InvalidArgument(f"the manifest of this folder is damaged: {why}", hint=hint, folder=self._folder)


def _is_head(found: object) -> bool:
    """Whether a sink may have written it, of this release or of another. Of a later one nothing else is known."""
    if not isinstance(found, dict) or not isinstance(found.get("version", WHOLE), int):
        return False
    version, position = found.get("version", WHOLE), found.get("position")
    common = (
        isinstance(found.get("cursor"), str)
        and isinstance(found.get("history", 0), int)
        and "columns" in found
        and (position is None or isinstance(position, int))
    )
    if version == WHOLE:
        return common and isinstance(found.get("files"), list)
    if version == VERSION:
        named = isinstance(found.get("segments"), list) and OURS.fullmatch(str(found.get("log"))) is not None
        return common and named
    return common


def durable(folder: Path, name: str, write: Callable[[Path], object]) -> None:
    """A whole file, in the place of any of this name, there for good once this returns. Raises OSError."""
    fresh = folder / f".{name}.new"
    write(fresh)
    for path in (fresh, folder):
        if path is folder:
            os.replace(fresh, folder / name)
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _take(kept: FolderState, line: Record) -> None:
    position: int = line["position"]
    if "name" in line:
        kept.files.append(line)
    # Files that were taken along from another log are from before where this one began.
    kept.position = position if kept.position is None else max(kept.position, position)


def _log(number: int) -> str:
    return f"manifest-{number:08d}.log"


def _lines(kept: FolderState) -> str:
    return "".join(json.dumps(each) + "\n" for each in kept.files)
