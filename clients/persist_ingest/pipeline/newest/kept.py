"""The newest rows of an export's keys at one frontier, as runs in files of this machine.

A cache, which is never wrong and may go at any time: ``kept.json`` names the history of the shard that the rows are
of, the frontier they are at, and the files, each of which was whole before it was named. It is believed only as long as
the machine runs, so nothing has to be flushed to disk. It is never ahead of the shard: what a step made is recorded
after the shard acknowledged it, since with a compacted log another reading of the same offsets comes to other rows.
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

from persist import InvalidArgument, NotReadable
from persist.arrow import ArrowArray, Numbers, array_of
from persist.runtime import system
from persist_ingest.pipeline.newest.gathering import Gathered
from persist_ingest.pipeline.newest.ordering import by_key
from persist_ingest.pipeline.newest.runs import PRESENT, Run, RunFile, RunWriter, found_in, in_order, merged
from persist_ingest.pipeline.newest.trouble import told
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
_VERSION: Final = 2
_KEPT: Final = "kept.json"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class Kept:
    """That of one export, held by one process. ``upper``: what the shard held just before it is in here.

    What a step comes to is only prepared: it counts once the shard has it, by this process's own append of exactly
    those updates. Where another's append won, or it is not known whose, the shard's changes say what it holds.
    Raises LocationError where files cannot be read or written; what was there before counts then.
    """

    def __init__(self, contents: Contents, fields: pa.Schema, key_names: Sequence[str]) -> None:
        """With whatever is there of an earlier process."""
        self.upper = 0
        self._contents = contents
        self.schema = _with_present(fields)
        self.key_names = list(key_names)
        self._runs: list[Run] = []
        self._prepared: tuple[str, int, list[Run], bool] | None = None
        self._numbered = 0
        self._life = _life(contents.incarnation(), self.schema)
        with told():
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
        """Have it be at this frontier, by whatever is quickest; what was prepared goes.

        Raises NotReadable (also where the shard is known to be further on), LocationError.
        """
        self._prepared = None
        with told():
            self._tidy(self._runs)
        if self.upper > lower:
            raise NotReadable(
                "the shard is further on than this step begins",
                hint="ask for its upper",
                shard=self._contents.shard,
                lower=lower,
                upper=self.upper,
            )
        if 0 < self.upper < lower:
            with contextlib.suppress(NotReadable, TooMany):
                self._catch_up(lower)
        if self.upper != lower:
            self._load(lower)

    def found(self, hashes: Numbers, keys: ArrowArray) -> tuple[Numbers, pa.Table]:
        """For each of these distinct keys, in order of their hashes, the index of its row in the table, or -1."""
        return self.found_in(self._runs, hashes, keys)

    def found_in(self, runs: Sequence[Run], hashes: Numbers, keys: ArrowArray) -> tuple[Numbers, pa.Table]:
        """The same in these runs, newest first."""
        return found_in(runs, hashes, keys, self.key_names, self.schema)

    def is_of(self, contents: Contents, fields: pa.Schema) -> bool:
        """Whether it is of these contents, in the history that they have now, with these columns."""
        return contents == self._contents and self._life == _life(contents.incarnation(), _with_present(fields))

    def writer(self) -> RunWriter:
        """For the newest rows of a step."""
        self._numbered += 1
        return RunWriter(self.directory, f"{self._numbered:012}", self.schema)

    @property
    def runs(self) -> Sequence[Run]:
        """What it is at its frontier, newest first."""
        return tuple(self._runs)

    def prepare(self, newest: Sequence[Run], upper: int, mark: str, *, is_all: bool = False) -> None:
        """These have the newest rows up to ``upper``, newest first, if what ``mark`` stands for is appended.

        ``is_all``: nothing from before counts any more.
        """
        self._prepared = mark, upper, list(newest), is_all

    def confirm(self, mark: str) -> None:
        """The updates that ``mark`` stands for were appended: what was prepared with them counts, if it is there."""
        if self._prepared is not None and self._prepared[0] == mark:
            (_, upper, runs, is_all), self._prepared = self._prepared, None
            self._add(runs, upper, is_all=is_all)

    def close(self) -> None:
        """Leave it to the next process."""
        self._runs, self._prepared = [], None
        self._lock.close()

    def _open(self) -> None:
        """What an earlier process left, if it is whole and of this life of the shard."""
        kept = self.directory / _KEPT
        try:
            given = json.loads(kept.read_text(encoding="utf-8"))
            if [given["version"], given["life"], given["boot"]] == [_VERSION, self._life, _boot()] and given["boot"]:
                self._runs = [Run(self.directory, RunFile.of(each)) for each in given["runs"]]
                self.upper, self._numbered = given["upper"], given["numbered"]
        except FileNotFoundError:
            self._runs = []
        except (OSError, ValueError, KeyError, TypeError) as damage:
            _log.warning("what was kept of shard %s is read anew: %s", self._contents.shard, damage)
            self._runs = []
        if not self._runs:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._runs, self.upper = [], 0
        (self.directory / _KEPT).unlink(missing_ok=True)
        self._tidy([])

    def _catch_up(self, lower: int) -> None:
        """Others appended meanwhile, or this process without learning of it: what changed since."""
        most = max(self.rows // CATCH_UP_SHARE, CATCH_UP_ROWS)
        with contextlib.closing(Gathered(self.key_names, ("ts", "diff"), 0)) as gathered:
            for batch in self._contents.changes(self.upper, lower, most):
                gathered.add(pa.Table.from_batches([batch]))
            with self.writer() as writer:
                for table, hashes in gathered.ranges():
                    writer.write(*self._last(table, hashes))
        self._add([writer.finish()], lower)

    def _last(self, table: pa.Table, hashes: Numbers) -> tuple[Numbers, pa.Table]:
        """Of each key the row that it has after all of these changes, or its last one, as taken back."""
        ts, diffs = (table.column(name).to_numpy() for name in ("ts", "diff"))
        order, is_first = by_key(hashes, table, self.key_names, (ts, diffs))
        order = order[np.r_[is_first[1:], True]]
        rows = table.take(array_of(order)).append_column(PRESENT, pa.array(diffs[order] > 0))
        return hashes[order], rows

    def _load(self, lower: int) -> None:
        """All that the shard holds."""
        with told():
            self._begin_anew()
        runs: list[Run] = []
        for table in _heaped(self._contents.batches(lower)):
            with self.writer() as writer:
                # A row that is there less than no times is none.
                kept = table.filter(pa.array(table.column("diff").to_numpy() > 0))
                there = kept.append_column(PRESENT, pa.array(np.ones(kept.num_rows, bool)))
                writer.write(*in_order(there.select(self.schema.names), self.key_names))
            runs = [writer.finish(), *runs]
            with told():
                fewer = self.compacted(runs)
                if len(fewer) < len(runs):
                    self._tidy(fewer)
            runs = fewer
        self._save(lower, runs)

    def _add(self, newest: Sequence[Run], upper: int, *, is_all: bool = False) -> None:
        """These hold from now on, and it is recorded."""
        runs = [*(run for run in newest if run.file.rows), *(() if is_all else self._runs)]
        self._save(upper, self.compacted(runs))

    def compacted(self, runs: Sequence[Run], *, whole: bool = True) -> list[Run]:
        """Few runs, each row in few merges: runs of about one size become one. ``whole``: nothing older is below."""
        runs, begin = list(runs), 0
        while begin < len(runs):
            size = _tier(runs[begin])
            end = begin
            while end < len(runs) and _tier(runs[end]) <= size:
                end += 1
            if end - begin >= FAN:
                runs, begin = self._merged(runs, begin, end, whole), 0
            else:
                begin = max(end, begin + 1)
        return self._merged(runs, 0, RUNS_MAX, whole) if len(runs) > RUNS_MAX else runs

    def _merged(self, runs: list[Run], begin: int, end: int, whole: bool) -> list[Run]:
        with self.writer() as writer, told():
            for hashes, rows in merged(runs[begin:end], self.key_names, whole=whole and end == len(runs)):
                writer.write(hashes, rows)
        return [*runs[:begin], writer.finish(), *runs[end:]]

    def _save(self, upper: int, runs: list[Run]) -> None:
        record = {
            "version": _VERSION,
            "life": self._life,
            "boot": _boot(),
            "upper": upper,
            "runs": [run.file.to_json() for run in runs],
            "numbered": self._numbered,
        }
        with told():
            fresh = self.directory / f"{_KEPT}.new"
            fresh.write_text(json.dumps(record), encoding="utf-8")
            fresh.replace(self.directory / _KEPT)
            self._runs, self.upper = runs, upper
            self._tidy(runs)

    def _tidy(self, runs: Sequence[Run]) -> None:
        """Files of other runs go: of what was merged, of what never came to count, and what is half written."""
        named = {run.file.name for run in runs}
        for path in self.directory.iterdir():
            if path.suffix in (".hash", ".rows") and path.stem not in named:
                path.unlink(missing_ok=True)


def _with_present(fields: pa.Schema) -> pa.Schema:
    """Columns of runs: of a key that is gone all others are null."""
    return pa.schema([*(pa.field(each.name, each.type) for each in fields), pa.field(PRESENT, pa.bool_())])


def _life(incarnation: str, schema: pa.Schema) -> str:
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
