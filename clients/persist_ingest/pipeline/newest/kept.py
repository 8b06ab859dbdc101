"""The newest rows of an export's keys at one frontier, as runs in files of this machine.

A cache, which is never wrong and may go at any time: ``kept.json`` names the history of the shard that the rows are
of, the frontier they are at, and the files, each of which was whole before it was named. It is believed only as long as
the machine runs, so nothing has to be flushed to disk. It knows the frontier before, too: steps may be done again.
What is not there, or not at the shard's frontier, comes from the shard: its changes, or all of it, in bounded memory.
Source: sources.md section 4, upsert; reliability.md I18.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Final

import numpy as np
import pyarrow as pa

from persist import Determinate, InvalidArgument, NotReadable
from persist.arrow import ArrowArray, Numbers, array_of
from persist.runtime import system
from persist_ingest.pipeline.newest.gathering import Gathered
from persist_ingest.pipeline.newest.runs import PRESENT, Run, RunFile, RunWriter, in_order, keys_of, merged
from persist_ingest.pipeline.state import Contents, TooMany

_log = logging.getLogger(__name__)

FAN: Final = 8
"""Runs of about one size that are merged into one."""
RUNS_MAX: Final = 40
LOAD_BYTES: Final = 64 << 20
CATCH_UP_SHARE: Final = 4
CATCH_UP_ROWS: Final = 1 << 20
"""Changes are read, and not all rows, when they are fewer than that, or than rows by so much."""
UNUSED_SECONDS: Final = 30 * 86_400
"""What no process has used for so long goes: its location may be gone, too."""
_NOWHERE: Final = -1
_VERSION: Final = 1
_KEPT: Final = "kept.json"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class Kept:
    """That of one export, held by one process. ``upper``: what was there just before it is in here.

    Raises LocationError where files cannot be read or written; the next one begins with what the shard has then.
    """

    def __init__(self, contents: Contents, fields: pa.Schema, key_names: Sequence[str]) -> None:
        """With whatever is there of an earlier process."""
        self.upper = 0
        self._contents = contents
        self.schema = _with_present(fields)
        self.key_names = list(key_names)
        self._runs: list[Run] = []
        self._before: tuple[int, list[RunFile]] = (0, [])
        self._numbered = 0
        self._life = _life(contents.incarnation(), self.schema)
        with _told():
            self.directory, self._lock = _taken(contents)
            try:
                self._open()
            except BaseException:
                self._lock.close()
                raise

    @property
    def rows(self) -> int:
        """How many rows its files have: each key's, and some that are older."""
        return sum(run.file.rows for run in self._runs)

    def at(self, lower: int) -> None:
        """Have it be at this frontier, by whatever is quickest. Raises NotReadable, LocationError."""
        if self.upper != lower and self._before[0] == lower:
            # What was made of the step before is made anew, or another ingester made it.
            with self._changing():
                self._roll_back()
        if self.upper != lower:
            begun = self._before[0] if self.upper > lower else self.upper
            with contextlib.suppress(NotReadable, TooMany), self._changing():
                if 0 < begun < lower:
                    if begun != self.upper:
                        self._roll_back()
                    self._catch_up(lower)
        if self.upper != lower:
            with self._changing():
                self._load(lower)

    def found(self, hashes: Numbers, keys: ArrowArray) -> tuple[Numbers, pa.Table]:
        """For each of these distinct keys, in order of their hashes, the index of its row in the table, or -1."""
        index, offset = np.full(len(keys), -1, np.int64), 0
        unsettled, tables = np.arange(len(keys)), [self.schema.empty_table()]
        with _told():
            for run in self._runs:
                if not len(unsettled):
                    break
                at, rows = run.found(hashes[unsettled], keys.take(array_of(unsettled)), self.key_names)
                present = rows.column(PRESENT).to_numpy().astype(bool)
                # One that was taken back is settled, too, and has no row.
                index[unsettled[at]] = np.where(present, offset + np.arange(len(at)), -1)
                tables.append(rows)
                offset += len(at)
                unsettled = np.delete(unsettled, at)
        return index, pa.concat_tables(tables)

    def is_of(self, contents: Contents, fields: pa.Schema) -> bool:
        """Whether it is of these contents, in the history that they have now, with these columns."""
        return contents == self._contents and self._life == _life(contents.incarnation(), _with_present(fields))

    def writer(self) -> RunWriter:
        """For the newest rows of a step. It is to be given to ``put``, or discarded."""
        with _told():
            return RunWriter(self.directory, self._name(), self.schema)

    def put(self, newest: RunWriter, upper: int) -> None:
        """These hold from now on, up to ``upper``."""
        with self._changing():
            before = self.upper, [run.file for run in self._runs]
            run = newest.finish()
            if run.file.rows:
                self._runs.insert(0, run)
                self._compact()
            self._save(upper, before)

    def close(self) -> None:
        """Leave it to the next process."""
        self._runs = []
        self._lock.close()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """What breaks off amid a change is at no frontier: then all is read anew."""
        try:
            with _told():
                yield
        except BaseException:
            self.upper, self._before = _NOWHERE, (0, [])
            raise

    def _open(self) -> None:
        """What an earlier process left, if it is whole and of this life of the shard."""
        kept = self.directory / _KEPT
        try:
            given = json.loads(kept.read_text(encoding="utf-8"))
            if [given["version"], given["life"], given["boot"]] == [_VERSION, self._life, _boot()] and given["boot"]:
                self._runs = [Run(self.directory, RunFile.of(each)) for each in given["runs"]]
                self._before = given["before"], [RunFile.of(each) for each in given["runs_before"]]
                self.upper, self._numbered = given["upper"], given["numbered"]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as damage:
            _log.warning("what was kept of shard %s is read anew: %s", self._contents.shard, damage)
            self._runs = []
        if not self._runs:
            self.upper, self._before, self._numbered = 0, (0, []), 0
            kept.unlink(missing_ok=True)
            self._tidy()

    def _roll_back(self) -> None:
        upper, files = self._before
        self._runs = [Run(self.directory, each) for each in files]
        self._save(upper, (0, []))

    def _catch_up(self, lower: int) -> None:
        """Others appended meanwhile: what changed since."""
        most = max(self.rows // CATCH_UP_SHARE, CATCH_UP_ROWS)
        gathered, writer = Gathered(self.key_names), self.writer()
        try:
            for batch in self._contents.changes(self.upper, lower, most):
                gathered.add(pa.Table.from_batches([batch]))
            for table, hashes in gathered.ranges():
                writer.write(*self._last(table, hashes))
        except BaseException:
            writer.discard()
            raise
        finally:
            gathered.close()
        self.put(writer, lower)

    def _last(self, table: pa.Table, hashes: Numbers) -> tuple[Numbers, pa.Table]:
        """Of each key the row that it has after all of these changes, or its last one, as taken back."""
        ts, diffs = (table.column(name).to_numpy() for name in ("ts", "diff"))
        codes = keys_of(table, self.key_names).dictionary_encode().indices.to_numpy(zero_copy_only=False)
        order = np.lexsort((diffs, ts, codes, hashes))
        last = np.r_[codes[order][1:] != codes[order][:-1], True]
        order = order[last]
        rows = table.take(array_of(order)).append_column(PRESENT, pa.array(diffs[order] > 0))
        return hashes[order], rows

    def _load(self, lower: int) -> None:
        """All that the shard holds."""
        self._runs, self._before = [], (0, [])
        (self.directory / _KEPT).unlink(missing_ok=True)
        self._tidy()
        for table in _heaped(self._contents.batches(lower)):
            writer = self.writer()
            # A row that is there less than no times is none.
            kept = table.filter(pa.array(table.column("diff").to_numpy() > 0))
            there = kept.append_column(PRESENT, pa.array(np.ones(kept.num_rows, bool)))
            writer.write(*in_order(there.select(self.schema.names), self.key_names))
            self._runs.append(writer.finish())
        while len(self._runs) > 1:
            self._merge(0, min(len(self._runs), RUNS_MAX))
        self._save(lower, (0, []))

    def _compact(self) -> None:
        """Few runs, each row in few merges: runs of about one size become one."""
        begin = 0
        while begin < len(self._runs):
            size = _tier(self._runs[begin])
            end = begin
            while end < len(self._runs) and _tier(self._runs[end]) <= size:
                end += 1
            if end - begin >= FAN:
                self._merge(begin, end)
                begin = 0
            else:
                begin = max(end, begin + 1)
        if len(self._runs) > RUNS_MAX:
            self._merge(0, RUNS_MAX)

    def _merge(self, begin: int, end: int) -> None:
        runs = self._runs[begin:end]
        writer = self.writer()
        try:
            for hashes, rows in merged(runs, self.key_names, whole=end == len(self._runs)):
                writer.write(hashes, rows)
        except BaseException:
            writer.discard()
            raise
        self._runs[begin:end] = [writer.finish()]

    def _save(self, upper: int, before: tuple[int, list[RunFile]]) -> None:
        self.upper, self._before = upper, before
        record = {
            "version": _VERSION,
            "life": self._life,
            "boot": _boot(),
            "upper": upper,
            "runs": [run.file.to_json() for run in self._runs],
            "before": before[0],
            "runs_before": [each.to_json() for each in before[1]],
            "numbered": self._numbered,
        }
        fresh = self.directory / f"{_KEPT}.new"
        fresh.write_text(json.dumps(record), encoding="utf-8")
        fresh.replace(self.directory / _KEPT)
        self._tidy()

    def _tidy(self) -> None:
        """Files that nothing names go."""
        named = {run.file.name for run in self._runs} | {each.name for each in self._before[1]}
        for path in self.directory.iterdir():
            if path.suffix in (".hash", ".rows") and path.stem not in named:
                path.unlink(missing_ok=True)

    def _name(self) -> str:
        self._numbered += 1
        return f"{self._numbered:012}"


def _with_present(fields: pa.Schema) -> pa.Schema:
    """Columns of runs: of a key that is gone all others are null."""
    return pa.schema([*(pa.field(each.name, each.type) for each in fields), pa.field(PRESENT, pa.bool_())])


def _life(incarnation: int, schema: pa.Schema) -> str:
    return f"{incarnation}-{hashlib.sha256(schema.serialize().to_pybytes()).hexdigest()[:16]}"


def forget(contents: Contents) -> None:
    """Remove what is kept here of a shard that is no more; what another process holds stays to it."""
    with contextlib.suppress(OSError, InvalidArgument):
        for place in _root(contents).glob(f"{contents.key}.*"):
            lock = _locked(place)
            if lock is not None:
                shutil.rmtree(place, ignore_errors=True)
                lock.close()


def _taken(contents: Contents) -> tuple[Path, IO[bytes]]:
    """A folder of this shard that no other has. Each ingester of a machine gets its own, and finds it again."""
    root = _root(contents)
    for number in range(1000):
        place = root / f"{contents.key}.{number}"
        place.mkdir(mode=0o700, exist_ok=True)
        lock = _locked(place)
        if lock is not None:
            _remove_unused(root, place)
            return place, lock
    raise InvalidArgument("too many ingesters of one export on this machine", hint="end some", shard=contents.shard)


def _remove_unused(root: Path, mine: Path) -> None:
    oldest = system().now_ms() / 1000 - UNUSED_SECONDS
    for place in root.iterdir():
        with contextlib.suppress(OSError):
            if place != mine and (place / "lock").stat().st_mtime < oldest:
                lock = _locked(place)
                if lock is not None:
                    shutil.rmtree(place, ignore_errors=True)
                    lock.close()
    os.utime(mine / "lock")


def _locked(place: Path) -> IO[bytes] | None:
    lock = (place / "lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def folder_of_user() -> Path:
    """Where files are kept unless another place is named."""
    return Path(tempfile.gettempdir()) / f"persist-state-{os.getuid()}"


def _root(contents: Contents) -> Path:
    """Where all of them are. Raises InvalidArgument where others could write into it."""
    root = Path(contents.state_dir) if contents.state_dir else folder_of_user()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = root.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidArgument(
            "others can write where the state of upserts is kept",
            hint="name a folder of your own with --state-dir",
            path=root,
        )
    return root


def _boot() -> str:
    """Which run of the machine this is; empty where that is not known, and nothing is believed then."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _tier(run: Run) -> int:
    return int(np.log(max(run.file.rows, 1)) / np.log(FAN))


def _heaped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    heap: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        heap.append(batch)
        size += batch.nbytes
        if size > LOAD_BYTES:
            yield pa.Table.from_batches(heap)
            heap, size = [], 0
    if heap:
        yield pa.Table.from_batches(heap)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """A full disk, or a folder that is gone, is waited for."""
    try:
        yield
    except OSError as error:
        raise Determinate(
            "the state of upserts cannot be kept on this machine",
            hint="free space, or name another folder with --state-dir",
            cause=error,
        ) from error
