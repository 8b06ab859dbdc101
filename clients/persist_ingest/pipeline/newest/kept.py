"""The newest rows of an export's keys at one frontier, as runs in files of this machine: of all keys, or of a range.

A cache, which is never wrong and may go at any time: ``kept.json`` names the history of the shard that the rows are
of, the frontier they are at, and the files, each of which was whole before it was named. It is believed only as long as
the machine runs, so nothing has to be flushed to disk. It is never ahead of the shard: what a step made is recorded
after the shard acknowledged it, since with a compacted log another reading of the same offsets comes to other rows.
Until then it is only prepared; where another process may be the one that learns of it, in ``prepared.json``.
What is not there, or not at the shard's frontier, comes from the shard: its changes, or all of it, in bounded memory.
Source: sources.md section 4, upsert; reliability.md I18.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, TypedDict

import numpy as np
import pyarrow as pa

from persist import InvalidArgument, LocationError, NotReadable
from persist.arrow import ArrowArray, Numbers, array_of
from persist.runtime import system
from persist_ingest.pipeline.newest.gathering import Gathered
from persist_ingest.pipeline.newest.hashes import key_hashes
from persist_ingest.pipeline.newest.key_ranges import WHOLE, KeyRange, numbers_of
from persist_ingest.pipeline.newest.ordering import by_key
from persist_ingest.pipeline.newest.runs import (
    PRESENT,
    Run,
    RunDamaged,
    RunFile,
    RunJson,
    RunWriter,
    found_in,
    in_order,
    keys_of,
    merged,
)
from persist_ingest.pipeline.newest.sums import checksum
from persist_ingest.pipeline.newest.trouble import check_folder, told
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
_VERSION: Final = 3
_KEPT: Final = "kept.json"
_PREPARED: Final = "prepared.json"
_OURS: Final = re.compile(r"[0-9a-f]{32}(\..+)?\.[0-9]+")
"""The names of folders, as ``_taken`` gives them."""
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a step comes to, if what ``mark`` stands for is appended. ``is_all``: nothing from before counts then."""

    mark: str
    upper: int
    runs: tuple[Run, ...]
    is_all: bool


class _KeptJson(TypedDict):
    """A record in JSON; ``mark``, ``is_all`` and ``base``, what it was prepared on, are of what is prepared."""

    version: int
    life: str
    boot: str
    upper: int
    runs: list[RunJson]
    numbered: int
    mark: str
    is_all: bool
    base: int


class Kept:
    """That of one export, or of a range of its keys, held by one process.

    ``upper``: what the shard held just before it is in here. What a step comes to is only prepared: it counts once
    the shard has it, by an append of exactly those updates. Where another's append won, or it is not known whose,
    the shard's changes say what it holds.
    Raises LocationError where files cannot be read or written; what was there before counts then.
    """

    def __init__(
        self,
        contents: Contents,
        fields: pa.Schema,
        key_names: Sequence[str],
        of: KeyRange = WHOLE,
        incarnation: str | None = None,
    ) -> None:
        """With whatever is there of an earlier process. ``incarnation``: of the contents, if it was asked for."""
        self.upper = 0
        self.of = of
        self.contents = contents
        self.schema = _with_present(fields)
        self.key_names = list(key_names)
        self._runs: list[Run] = []
        self._prepared: _Prepared | None = None
        self._numbered = 0
        self._is_damaged = False
        self._life = _life(contents.incarnation() if incarnation is None else incarnation, self.schema)
        with told():
            self.directory, self._lock = _taken(contents, of)
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
        """``bring`` of this one."""
        bring([self], lower)

    def found(self, hashes: Numbers, keys: ArrowArray) -> tuple[Numbers, pa.Table]:
        """For each of these distinct keys, in order of their hashes, the index of its row in the table, or -1."""
        return self.found_in(self._runs, hashes, keys)

    def found_in(self, runs: Sequence[Run], hashes: Numbers, keys: ArrowArray) -> tuple[Numbers, pa.Table]:
        """The same in these runs, newest first."""
        with self.sound():
            return found_in(runs, hashes, keys, self.key_names, self.schema)

    @contextlib.contextmanager
    def sound(self) -> Iterator[None]:
        """While its runs are read: where they are damaged, it begins anew once it is closed. Raises RunDamaged."""
        try:
            yield
        except RunDamaged as damage:
            self._is_damaged = True
            _log.warning("what was kept of shard %s is read anew: %s", self.contents.shard, damage)
            raise

    def is_of(self, contents: Contents, fields: pa.Schema, incarnation: str) -> bool:
        """Whether it is of these contents, in the history that they have now, with these columns."""
        return contents == self.contents and self._life == _life(incarnation, _with_present(fields))

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
        self._prepared = _Prepared(mark, upper, tuple(newest), is_all)

    def confirm(self, *marks: str) -> None:
        """The updates that these stand for were appended: what was prepared with one of them counts, if it is there."""
        if self._prepared is not None and self._prepared.mark in marks:
            prepared, self._prepared = self._prepared, None
            self.add(prepared.runs, prepared.upper, is_all=prepared.is_all)

    def close(self) -> None:
        """Leave it to the next process, with what is prepared, which that one may confirm."""
        prepared, self._runs, self._prepared = self._prepared, [], None
        try:
            if self._is_damaged:
                with told():
                    self.begin_anew()
            elif prepared is not None:
                with told():
                    self._record(_PREPARED, prepared.upper, prepared.runs, prepared.mark, is_all=prepared.is_all)
        except LocationError as error:
            _log.warning("changes of shard %s are read again: %s", self.contents.shard, error)
        finally:
            self._lock.close()

    def _open(self) -> None:
        """What an earlier process left, if it is whole and of this life of the shard."""
        kept = self._recorded(_KEPT)
        if kept is not None:
            given, self._runs = kept
            self.upper, self._numbered = given["upper"], given["numbered"]
        prepared = self._recorded(_PREPARED)
        # What was prepared on something else is not what comes after this. At 0 there is nothing, and no record.
        if prepared is not None and prepared[0]["base"] == self.upper:
            given, runs = prepared
            self._prepared = _Prepared(given["mark"], given["upper"], tuple(runs), given["is_all"])
            self._numbered = max(self._numbered, given["numbered"])
        elif kept is None:
            self.begin_anew()

    def _recorded(self, name: str) -> tuple[_KeptJson, list[Run]] | None:
        try:
            written, _, text = (self.directory / name).read_bytes().partition(b"\n")
            if int(written, 16) != checksum(text):
                raise ValueError("the record is not what was written")
            given: _KeptJson = json.loads(text)
            if [given["version"], given["life"], given["boot"]] == [_VERSION, self._life, _boot()] and given["boot"]:
                return given, [Run(self.directory, RunFile.of(each)) for each in given["runs"]]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, IndexError, RunDamaged) as damage:
            _log.warning("what was kept of shard %s is read anew: %s", self.contents.shard, damage)
        return None

    def begin_anew(self) -> None:
        """Nothing of it is known. Raises OSError."""
        self._runs, self.upper = [], 0
        (self.directory / _KEPT).unlink(missing_ok=True)
        self.unprepared()

    def unprepared(self) -> None:
        """What was prepared is not going to count. Raises OSError."""
        self._prepared = None
        # First, as it names files that go.
        (self.directory / _PREPARED).unlink(missing_ok=True)
        self.tidy(self._runs)

    def add(self, newest: Sequence[Run], upper: int, *, is_all: bool = False) -> None:
        """These hold from now on, beside what was there, and it is recorded."""
        runs = [*(run for run in newest if run.file.rows), *(() if is_all else self._runs)]
        self.save(upper, self.compacted(runs))

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
        with self.sound(), self.writer() as writer, told():
            for hashes, rows in merged(runs[begin:end], self.key_names, whole=whole and end == len(runs)):
                writer.write(hashes, rows)
        return [*runs[:begin], writer.finish(), *runs[end:]]

    def save(self, upper: int, runs: list[Run]) -> None:
        """These are all there is, and it is recorded."""
        with told():
            self._record(_KEPT, upper, runs)
            self._runs, self.upper = runs, upper
            self.unprepared()

    def _record(self, name: str, upper: int, runs: Sequence[Run], mark: str = "", *, is_all: bool = False) -> None:
        record = _KeptJson(
            version=_VERSION,
            life=self._life,
            boot=_boot(),
            upper=upper,
            runs=[run.file.to_json() for run in runs],
            numbered=self._numbered,
            mark=mark,
            is_all=is_all,
            base=self.upper,
        )
        fresh = self.directory / f"{name}.new"
        text = json.dumps(record).encode()
        fresh.write_bytes(b"%08x\n%b" % (checksum(text), text))
        fresh.replace(self.directory / name)

    def tidy(self, runs: Sequence[Run]) -> None:
        """Files of other runs go: of what was merged, of what never came to count, and what is half written."""
        named = {run.file.name for run in runs}
        for path in self.directory.iterdir():
            if path.suffix in (".hash", ".rows") and path.stem not in named:
                path.unlink(missing_ok=True)


def bring(those: Sequence[Kept], lower: int) -> None:
    """Have these, ranges of one export, be at this frontier, by whatever is quickest; what was prepared goes.

    Raises NotReadable (also where the shard is known to be further on), LocationError.
    """
    for each in those:
        with told():
            each.unprepared()
        if each.upper > lower:
            raise NotReadable(
                "the shard is further on than this step begins",
                hint="ask for its upper",
                shard=each.contents.shard,
                lower=lower,
                upper=each.upper,
            )
    for upper in sorted({each.upper for each in those} - {0, lower}):
        with contextlib.suppress(NotReadable, TooMany):
            _catch_up([each for each in those if each.upper == upper], lower)
    missing = [each for each in those if each.upper != lower]
    if missing:
        _load(missing, lower)


def _catch_up(those: Sequence[Kept], lower: int) -> None:
    """Others appended meanwhile, or this process without learning of it: what changed since."""
    first = those[0]
    rows = sum(each.rows for each in those) * first.of.count // len(those)
    with contextlib.closing(Gathered(first.key_names, ("ts", "diff"), 0)) as gathered:
        for batch in first.contents.changes(first.upper, lower, max(rows // CATCH_UP_SHARE, CATCH_UP_ROWS)):
            gathered.add(_within(those, pa.Table.from_batches([batch])))
        with contextlib.ExitStack() as writing:
            writers = [writing.enter_context(each.writer()) for each in those]
            for table, hashes in gathered.ranges():
                hashes, rows_of_keys = _last(table, hashes, first.key_names)
                for each, writer in zip(those, writers, strict=True):
                    mine, its = each.of.within(rows_of_keys, hashes)
                    writer.write(its, mine)
            runs = [writer.finish() for writer in writers]
    for each, run in zip(those, runs, strict=True):
        each.add([run], lower)


def _last(table: pa.Table, hashes: Numbers, key_names: Sequence[str]) -> tuple[Numbers, pa.Table]:
    """Of each key the row that it has after all of these changes, or its last one, as taken back."""
    ts, diffs = (table.column(name).to_numpy() for name in ("ts", "diff"))
    order, is_first = by_key(hashes, table, key_names, (ts, diffs))
    order = order[np.r_[is_first[1:], True]]
    rows = table.take(array_of(order)).append_column(PRESENT, pa.array(diffs[order] > 0))
    return hashes[order], rows


def _load(those: Sequence[Kept], lower: int) -> None:
    """All that the shard holds."""
    first = those[0]
    with told():
        for each in those:
            each.begin_anew()
    runs: list[list[Run]] = [[] for _ in those]
    batches = first.contents.batches(lower)
    tables = (_within(those, pa.Table.from_batches([batch])) for batch in batches)
    for heap in _heaped(tables):
        # A row that is there less than no times is none.
        kept = heap.filter(pa.array(heap.column("diff").to_numpy() > 0))
        there = kept.append_column(PRESENT, pa.array(np.ones(kept.num_rows, bool))).select(first.schema.names)
        hashes, there = in_order(there, first.key_names)
        for number, each in enumerate(those):
            mine, its = each.of.within(there, hashes)
            if not len(its):
                continue
            with each.writer() as writer:
                writer.write(its, mine)
            more = [writer.finish(), *runs[number]]
            with told():
                fewer = each.compacted(more)
                if len(fewer) < len(more):
                    each.tidy(fewer)
            runs[number] = fewer
    for each, made in zip(those, runs, strict=True):
        each.save(lower, made)


def _within(those: Sequence[Kept], table: pa.Table) -> pa.Table:
    """The rows of these ranges."""
    count = those[0].of.count
    if len(those) == count:
        return table
    of = numbers_of(key_hashes(keys_of(table, those[0].key_names)), count)
    return table.filter(pa.array(np.isin(of, [each.of.number for each in those])))


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


def _taken(contents: Contents, of: KeyRange) -> tuple[Path, IO[bytes]]:
    """A folder of these keys that no other process has. Each ingester of a machine gets its own, and finds it again."""
    root = _root(contents)
    for number in range(1000):
        place = root / ".".join(filter(None, (contents.key, of.label, str(number))))
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
            # What else is there is not of this.
            if place != mine and _OURS.fullmatch(place.name) and (place / "lock").stat().st_mtime < oldest:
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
    """Where all of them are. Raises InvalidArgument where others could write into it, or it is another's."""
    root = check_folder(contents.state_dir or folder_of_user())
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


def _heaped(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    heap: list[pa.Table] = []
    size = 0
    for table in tables:
        heap.append(table)
        size += table.nbytes
        if size > LOAD_BYTES:
            yield pa.concat_tables(heap)
            heap, size = [], 0
    if heap:
        yield pa.concat_tables(heap)
