"""FilesSink: updates in files of a folder, of which a manifest says which count.

Source: docs/reference/sinks.md; reliability.md, durable files.
"""

import fcntl
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from persist.client.collections.plain import rows_of
from persist.client.collections.sinks.port import PositionMoved, moved, of_another_history
from persist.errors import Determinate, Indeterminate, InvalidArgument
from persist.forks import apart, own
from persist.json_out import json_of
from persist.sinks.manifest import VERSION, WHOLE, FolderState, Manifest, durable
from persist.sinks.sql import shape

T = TypeVar("T")

LOCK: Final = "lock"

Format = Literal["parquet", "jsonl"]


class FilesSink:
    """Adds files of updates to ``folder``, as Parquet or JSON lines; its manifest names those that count: ``files``.

    A file is whole and durable before a line of the manifest names it and says the position. One process at a time: who
    writes holds ``lock``. Other files of the folder are left alone, unless they are named alike.
    """

    def __init__(self, folder: str | os.PathLike[str], format: Format = "parquet") -> None:
        """Raises InvalidArgument: no such format."""
        if format not in ("parquet", "jsonl"):
            raise InvalidArgument("no such format of files", hint="parquet or jsonl", got=repr(format)[:80])
        self._folder = Path(folder)
        self._format = format
        self._lock: int | None = None
        self._manifest = Manifest(self._folder)
        self._kept: FolderState | None = None

    def begin(self, key: str, history: int, schema: pa.Schema) -> int | None:
        with_error(self._own)
        self._kept, columns = None, shape(schema)
        kept = with_error(self._manifest.read)
        if kept is None or (kept.version in (WHOLE, VERSION) and kept.position is None):
            # Nothing was written, for whomever it was begun.
            number = 0 if kept is None else kept.number
            kept = FolderState(VERSION, key, history, columns, number=number)
        for name, found, mine in (
            ("version", kept.version in (WHOLE, VERSION), True),
            ("cursor", kept.cursor, key),
            ("columns", kept.columns, columns),
        ):
            if found != mine:
                raise InvalidArgument(
                    f"this folder has updates of another {name}", hint="name another folder", folder=self._folder
                )
        if kept.history != history:
            raise of_another_history(key)
        begun = kept
        with_error(lambda: self._manifest.begin(begun))
        with_error(lambda: self._tidy(begun))
        self._kept = begun
        return begun.position

    def write(self, key: str, history: int, updates: pa.Table, before: int | None, position: int) -> None:
        if self._lock is None:
            raise InvalidArgument("this sink was not begun, or is closed", hint="begin it", folder=self._folder)
        # After an error only the folder knows what is there.
        kept, self._kept = self._kept or with_error(self._again), None
        begun = kept is not None and (kept.cursor, kept.history) == (key, history)
        if kept is None or not begun or kept.position != before:
            self._kept = kept
            raise moved(key, kept.position if kept is not None and begun else None, before)
        name = f"updates-{position:020d}.{self._format}" if updates.num_rows else ""
        if name:
            with_error(lambda: self._put(updates, name))
        with_error(lambda: self._manifest.append(kept, position, name, before, updates.num_rows))
        self._kept = kept

    def files(self) -> list[Path]:
        """The files that count, in the order of their times."""
        kept = with_error(self._manifest.read)
        return [] if kept is None else [self._folder / each["name"] for each in self._manifest.files(kept)]

    def close(self) -> None:
        if self._lock is not None:
            self._lock = None
            self._release()

    def _own(self) -> None:
        """Be the only one who writes here, until this is closed or its process ends."""
        # A child forked before this knows of its lock would keep it.
        with apart():
            self._take()

    def _take(self) -> None:
        if self._lock is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise PositionMoved(
                "another sink writes to this folder", hint="close() it first, or end its process", folder=self._folder
            ) from None
        self._lock = lock
        # One that was never closed keeps no other out.
        self._release = weakref.finalize(self, os.close, lock)
        own(self)

    def inherited(self) -> None:
        """In a forked child: the folder is the parent's, and this is a sink that was not begun."""
        self.close()

    def _again(self) -> FolderState | None:
        kept = self._manifest.read()
        if kept is not None and kept.version in (WHOLE, VERSION):
            self._manifest.begin(kept)
        return kept

    def _tidy(self, kept: FolderState) -> None:
        """Take away what processes left that died before the manifest named it."""
        counts = {each["name"] for each in self._manifest.files(kept)}
        for path in self._folder.iterdir():
            name = path.name
            if (name.startswith("updates-") and name not in counts) or (name.startswith(".") and name.endswith(".new")):
                path.unlink(missing_ok=True)
        for path in list(self._manifest.unnamed(kept)):
            path.unlink(missing_ok=True)

    def _put(self, updates: pa.Table, name: str) -> None:
        """A whole file. One of the same name is what a process left that died before the manifest named it."""
        if self._format == "parquet":
            durable(self._folder, name, lambda path: pq.write_table(updates, path))
        else:
            lines = "".join(json_of(row, _text, is_ascii=True) + "\n" for row in rows_of(updates))
            durable(self._folder, name, lambda path: path.write_text(lines))


def with_error(work: Callable[[], T]) -> T:
    """What it returns; what the operating system refuses is a LocationError."""
    try:
        return work()
    except PermissionError as error:
        raise Determinate(str(error), hint="check who may write there") from error
    except OSError as error:
        raise Indeterminate(str(error), hint="deliver again: the position shows what was written") from error


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)
