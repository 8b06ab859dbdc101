"""FilesSink: updates in files of a folder, of which a manifest says which count.

Source: docs/reference/sinks.md; reliability.md, durable files.
"""

import fcntl
import json
import os
import weakref
from collections.abc import Callable, Set
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from persist.client.collections.plain import rows_of
from persist.client.collections.sinks.port import PositionMoved, moved, of_another_history, of_earlier_release
from persist.errors import Determinate, Indeterminate, InvalidArgument
from persist.sinks.sql import shape
from persist.typed import Record

MANIFEST: Final = "manifest.json"
LOCK: Final = "lock"
VERSION: Final = 1

Format = Literal["parquet", "jsonl"]


class FilesSink:
    """Adds files of updates to ``folder``, as Parquet or JSON lines; ``manifest.json`` names those that count.

    A file is whole and durable before the manifest, which is replaced at once, names it and says the position. One
    process at a time: who writes holds ``lock``. Other files of the folder are left alone, unless they are named alike.
    """

    def __init__(self, folder: str | os.PathLike[str], format: Format = "parquet") -> None:
        """Raises InvalidArgument: no such format."""
        if format not in ("parquet", "jsonl"):
            raise InvalidArgument("no such format of files", hint="parquet or jsonl", got=repr(format)[:80])
        self._folder = Path(folder)
        self._format = format
        self._lock: int | None = None

    def begin(self, key: str, history: int, schema: pa.Schema) -> int | None:
        with_error(self._own)
        mine = {"version": VERSION, "cursor": key, "history": history, "columns": shape(schema)}
        manifest = self._manifest()
        if manifest.get("version", VERSION) == VERSION and manifest.get("position") is None:
            # Nothing was written, for whomever it was begun.
            manifest = {**mine, "position": None, "files": []}
            with_error(lambda: self._replace(manifest))
        for name in ("version", "cursor", "columns"):
            if manifest[name] != mine[name]:
                raise InvalidArgument(
                    f"this folder has updates of another {name}", hint="name another folder", folder=self._folder
                )
        if manifest["history"] != history:
            raise of_another_history(key)
        with_error(lambda: self._tidy({each["name"] for each in manifest["files"]}))
        position: int | None = manifest["position"]
        return position

    def write(self, key: str, history: int, updates: pa.Table, before: int | None, position: int) -> None:
        if self._lock is None:
            raise InvalidArgument("this sink was not begun, or is closed", hint="begin it", folder=self._folder)
        manifest = self._manifest()
        begun = (manifest.get("cursor"), manifest.get("history")) == (key, history)
        if not begun or manifest["position"] != before:
            raise moved(key, manifest["position"] if begun else None, before)
        if updates.num_rows:
            name = f"updates-{position:020d}.{self._format}"
            with_error(lambda: self._put(updates, name))
            told = {"name": name, "before": before, "position": position, "rows": updates.num_rows}
            manifest["files"].append(told)
        manifest["position"] = position
        with_error(lambda: self._replace(manifest))

    def files(self) -> list[Path]:
        """The files that count, in the order of their times."""
        return [self._folder / each["name"] for each in self._manifest().get("files", [])]

    def close(self) -> None:
        if self._lock is not None:
            self._lock = None
            self._release()

    def _own(self) -> None:
        """Be the only one who writes here, until this is closed or its process ends."""
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

    def _tidy(self, counts: Set[str]) -> None:
        """Take away what processes left that died before the manifest named it."""
        for path in self._folder.iterdir():
            name = path.name
            if (name.startswith("updates-") and name not in counts) or (name.startswith(".") and name.endswith(".new")):
                path.unlink(missing_ok=True)

    def _manifest(self) -> Record:
        try:
            found: Record = json.loads((self._folder / MANIFEST).read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise self._foreign() from error
        if not _is_manifest(found):
            raise self._foreign()
        if "history" not in found:
            found["cursor"], found["history"] = of_earlier_release(found["cursor"]) or (found["cursor"], 0)
        return found

    def _foreign(self) -> InvalidArgument:
        return InvalidArgument(
            f"no sink wrote the {MANIFEST} of this folder: nothing was written",
            hint="put back what it held, or make a new cursor and deliver that into another folder",
            folder=self._folder,
        )

    def _put(self, updates: pa.Table, name: str) -> None:
        """A whole file. One of the same name is what a process left that died before the manifest named it."""
        if self._format == "parquet":
            self._durable(name, lambda path: pq.write_table(updates, path))
        else:
            lines = "".join(json.dumps(row, default=_text) + "\n" for row in rows_of(updates))
            self._durable(name, lambda path: path.write_text(lines))

    def _replace(self, manifest: Record) -> None:
        self._durable(MANIFEST, lambda path: path.write_text(json.dumps(manifest, indent=1)))

    def _durable(self, name: str, write: Callable[[Path], object]) -> None:
        fresh = self._folder / f".{name}.new"
        write(fresh)
        for path in (fresh, self._folder):
            if path is self._folder:
                os.replace(fresh, self._folder / name)
            opened = os.open(path, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)


def _is_manifest(found: object) -> bool:
    """Whether a sink may have written it, of this release or of another."""
    if not isinstance(found, dict) or not isinstance(found.get("version", VERSION), int):
        return False
    if found.get("version") != VERSION:
        return "version" in found
    position = found.get("position")
    return (
        isinstance(found.get("cursor"), str)
        and isinstance(found.get("columns"), str)
        and isinstance(found.get("history", 0), int)
        and (position is None or isinstance(position, int))
        and isinstance(found.get("files"), list)
    )


def with_error(work: Callable[[], None]) -> None:
    """Do it; what the operating system refuses is a LocationError."""
    try:
        work()
    except PermissionError as error:
        raise Determinate(str(error), hint="check who may write there") from error
    except OSError as error:
        raise Indeterminate(str(error), hint="deliver again: the position shows what was written") from error


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)
