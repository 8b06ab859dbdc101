"""Upserts as updates, against a dictionary that does the same one by one, over real shards and real files."""

import contextlib
import itertools
import os
import random
import resource
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sure import sure

import persist
from persist import Determinate
from persist.sources import encode_key
from persist_ingest import Location
from persist_ingest.location import client
from persist_ingest.pipeline.newest import gathering, kept, runs
from persist_ingest.pipeline.newest import upserts as doing
from persist_ingest.pipeline.newest.hashes import key_hashes
from persist_ingest.pipeline.newest.kept import Kept
from persist_ingest.pipeline.newest.key_ranges import KeyRange, key_ranges
from persist_ingest.pipeline.newest.keyed import ByKey
from persist_ingest.pipeline.newest.runs import RunDamaged, keys_of
from persist_ingest.pipeline.newest.upserts import PLACES, appended, gather, let_go, upserted
from persist_ingest.pipeline.state import Contents
from persist_ingest.sources.port import Keyed

SCHEMA = persist.Schema(key={"k": pa.string()}, val={"v": pa.int64()})
TYPES: dict[str, pa.DataType] = {"k": pa.string(), "v": pa.int64()}
FIELDS = pa.schema(TYPES)
OFFSETS = itertools.count()
"""Ascending, as those of a log."""
Upsert = tuple[str, int, int, bool]
"""Key, value, time, whether it is there."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "state"


@dataclass
class Export:
    """A shard that upserts go to, and what a model of it holds.

    ``ranges``: of its keys; ``apart``: each is done by a process of its own, which learns later what was appended.
    """

    here: Location
    shard: str
    place: Path
    ranges: int = 1
    apart: bool = False
    known: dict[KeyRange, str] = field(default_factory=dict)
    upper: int = 0
    held: dict[str, int] = field(default_factory=dict)
    marks: Iterator[str] = field(default_factory=lambda: map(str, itertools.count()))
    mark: str = ""

    @property
    def contents(self) -> Contents:
        return Contents(location=self.here, shard=self.shard, state_dir=str(self.place))

    def prepared(self, batch: list[Upsert], upper: int, spill_bytes: int = 1 << 20) -> pa.Table:
        """The updates of a step, not appended yet."""
        made: list[pa.RecordBatch] = []
        self.mark = next(self.marks)
        of = key_ranges(self.ranges)
        for each in [(one,) for one in of] if self.apart else [of]:
            gathered = gather(["k"], spill_bytes=spill_bytes)
            for piece in (batch[:2], batch[2:]):
                table = table_of(piece)
                gathered.add(each[0].within(table, hashes_of(table))[0] if self.apart else table)
            marks, step = set(self.known.values()), (self.upper, upper, FIELDS, ["k"], self.mark)
            made += upserted(gathered, self.contents, *step, of=each, marks=marks, keep=not self.apart)
            gathered.close()
        return pa.Table.from_batches(made, pa.schema([*FIELDS, ("ts", pa.uint64()), ("diff", pa.int64())]))

    def append(self, updates: pa.Table, upper: int, *, confirmed: bool = True) -> None:
        writer = client(self.here).open_writer(self.shard, schema=SCHEMA)
        outcome = writer.compare_and_append(updates, [self.upper], [upper])
        assert not isinstance(outcome, persist.UpperMismatch)
        self.upper = upper
        if confirmed and self.apart:
            self.known = dict.fromkeys(key_ranges(self.ranges), self.mark)
        elif confirmed:
            appended(self.contents, self.mark)

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """What is done inside is done by another ingester: it has files of its own."""
        mine = doing._held.pop((self.contents.key, os.getpid()), None)
        place, known, self.known = self.place, self.known, {}
        if self.apart:
            self.place = place.with_name("elsewhere")
        yield
        let_go(self.contents)
        self.place, self.known = place, known
        if mine is not None:
            doing._held[(self.contents.key, os.getpid())] = mine

    def step(self, batch: list[Upsert], upper: int, **options: int) -> None:
        found: Counter[Any] = Counter()
        updates = self.prepared(batch, upper, **options)
        for row in updates.to_pylist():
            found[row["k"], row["v"], row["ts"]] += row["diff"]
        assert _counted(found) == _counted(self.model(batch))
        self.append(updates, upper)

    def model(self, batch: list[Upsert]) -> Counter[Any]:
        """The updates that these upserts are, one by one; and it holds them."""
        found: Counter[Any] = Counter()
        for key, value, ts, present in batch:
            if key in self.held:
                found[key, self.held.pop(key), ts] -= 1
            if present:
                self.held[key] = value
                found[key, value, ts] += 1
        return found

    def check(self) -> None:
        """The shard holds what the model holds, each once."""
        with client(self.here).open_reader(self.shard) as reader:
            rows = reader.snapshot(self.upper - 1).to_pylist()
        assert sorted((row["k"], row["v"], row["diff"]) for row in rows) == sorted(
            (k, v, 1) for k, v in self.held.items()
        )


def hashes_of(table: pa.Table) -> Any:
    """As they are now: keys may be made to collide."""
    return vars(gathering)["key_hashes"](keys_of(table, ["k"]))


def table_of(batch: list[Upsert]) -> pa.Table:
    columns = [
        pa.array([key for key, *_ in batch], pa.string()),
        pa.array([value if there else None for _, value, _, there in batch], pa.int64()),
        pa.array([at for _, _, at, _ in batch], pa.uint64()),
        pa.nulls(len(batch), pa.int64()),
        pa.array([next(OFFSETS) for _ in batch], pa.uint64()),
        pa.array([there for *_, there in batch], pa.bool_()),
    ]
    return pa.Table.from_arrays(columns, names=["k", "v", *PLACES])


@pytest.fixture
def export(tmp_path: Path, place: Path) -> Export:
    here = Location(directory=str(tmp_path / "data"))
    shard = str(persist.ShardId.new())
    client(here).open_writer(shard, schema=SCHEMA)
    return Export(here, shard, place)


def batch_of(rng: random.Random, lower: int, keys: int) -> tuple[list[Upsert], int]:
    """Some upserts at times from ``lower`` on, and an upper behind them."""
    batch, ts = [], lower
    for _ in range(rng.randrange(0, 30)):
        ts += rng.choice([0, 0, 1])
        batch.append((f"k{rng.randrange(keys)}", rng.randrange(3), ts, rng.random() < 0.8))
    return batch, ts + 1


@pytest.mark.parametrize("collide", [False, True], ids=["apart", "colliding"])
@pytest.mark.parametrize(("ranges", "apart"), [(1, False), (3, False), (3, True)], ids=["whole", "ranges", "elsewhere"])
def test_whatever_happens_between_steps_they_equal_the_model(
    export: Export, place: Path, monkeypatch: pytest.MonkeyPatch, *, collide: bool, ranges: int, apart: bool
) -> None:
    """Restarts, lost files, steps done twice, steps of others, spilled steps, and keys that share a hash."""
    export.ranges, export.apart = ranges, apart
    monkeypatch.setattr(kept, "FAN", 3)
    loads = counted(monkeypatch, "_load")
    if collide:
        for module in (gathering, runs, kept):
            monkeypatch.setattr(module, "key_hashes", lambda keys: key_hashes(keys) & np.uint64(3 << 62))
    rng = random.Random(7)
    for number in range(150 if ranges == 1 else 60):
        batch, upper = batch_of(rng, export.upper, 40)
        happens = rng.choice(["", "", "again", "spilled", "restart", "lost", "another", "idle"]) if number else ""
        if ranges > 1 and rng.random() < 0.1:
            # Those of another number are made anew, or followed.
            export.ranges = 5 - export.ranges
        if happens == "again":
            # The append failed, and by now the log has more.
            export.prepared(batch[: len(batch) // 2], upper)
        elif happens == "restart":
            let_go(export.contents)
            export.known = {}
        elif happens == "lost":
            let_go(export.contents)
            shutil.rmtree(place)
        elif happens == "another":
            # It makes the step durable, and this process learns of it by its next.
            with export.elsewhere():
                export.step(batch, upper)
            batch, upper = batch_of(rng, export.upper, 40)
        elif happens == "idle":
            export.append(pa.Table.from_batches([], updates_schema()), export.upper + 5)
            batch = [(k, v, ts + 5, there) for k, v, ts, there in batch]
            upper += 5
        export.step(batch, upper, spill_bytes=0 if happens == "spilled" else 1 << 20)
    export.check()
    assert len(list(place.glob("*/*.rows"))) < 20 * (1 if ranges == 1 else 5), "files stay"
    # Only where nothing was there: at first, after files were lost, and in the folder of the other one.
    assert len(loads) < 40 * ranges


def updates_schema() -> pa.Schema:
    return pa.schema([*FIELDS, ("ts", pa.uint64()), ("diff", pa.int64())])


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """The frontiers that what is kept is brought to this way, from now on."""
    calls: list[int] = []
    way = getattr(kept, name)

    def calling(those: list[Kept], lower: int) -> None:
        calls.append(lower)
        way(those, lower)

    monkeypatch.setattr(kept, name, calling)
    return calls


def test_a_restart_reads_nothing_of_the_shard_again(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    export.step([(f"k{number}", number, 3, True) for number in range(500)], 4)
    let_go(export.contents)
    loads, changes = counted(monkeypatch, "_load"), counted(monkeypatch, "_catch_up")
    export.step([(f"k{number}", number + 1, 5, True) for number in range(0, 500, 3)], 6)
    assert not loads
    assert not changes
    # An append that failed is done again with what was there before it.
    export.prepared([("k1", 7, 6, True)], 8)
    let_go(export.contents)
    export.step([("k1", 7, 6, True), ("k2", 0, 7, False)], 9)
    assert not loads
    assert not changes
    # Others that went on are followed by what changed.
    with export.elsewhere():
        export.step([("k3", 99, 9, True)], 10)
    assert loads == [9]
    export.step([("k3", 100, 11, True)], 12)
    assert loads == [9]
    assert changes == [10]
    export.check()


def test_what_another_ingester_read_at_the_same_offsets_counts(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two readings of the same offsets a compacted log lost one: whose append is first is what there is."""
    export.step([("a", 0, 3, True), ("b", 0, 3, True), ("c", 0, 3, True)], 4)
    loads = counted(monkeypatch, "_load")
    export.prepared([("a", 1, 5, True), ("b", 1, 5, False), ("d", 1, 5, True)], 6)
    with export.elsewhere():
        export.step([("c", 2, 5, True)], 6)
    assert loads == [4], "the other one's"
    export.step([(key, 3, 7, True) for key in "abcd"], 8)
    assert loads == [4]
    export.check()


@pytest.mark.parametrize("goes_on", ["itself", "as another process"])
def test_what_was_appended_without_a_word_of_it_is_read_of_the_shard(
    export: Export, monkeypatch: pytest.MonkeyPatch, goes_on: str
) -> None:
    """It is not known whose append it was, so not what is in it."""
    export.step([("a", 0, 3, True), ("b", 0, 3, True)], 4)
    loads, changes = counted(monkeypatch, "_load"), counted(monkeypatch, "_catch_up")
    batch: list[Upsert] = [("a", 1, 5, True), ("b", 1, 5, False), ("c", 1, 5, True)]
    export.model(batch)
    export.append(export.prepared(batch, 6), 6, confirmed=False)
    if goes_on != "itself":
        let_go(export.contents)
    export.step([(key, 3, 7, True) for key in "abc"], 8)
    assert not loads
    assert changes == [6]
    # What is confirmed too late is not the newest any more.
    appended(export.contents, "1")
    export.step([(key, 4, 9, True) for key in "abc"], 10)
    assert changes == [6]
    export.check()


@pytest.mark.parametrize("won", ["this one", "another", "not known"])
def test_what_a_process_elsewhere_prepared_counts_once_it_is_given_the_mark(
    export: Export, monkeypatch: pytest.MonkeyPatch, won: str
) -> None:
    """And what another ingester read at the same offsets is read of the shard."""
    export.ranges, export.apart = 3, True
    keys = [f"k{number}" for number in range(60)]
    export.step([(key, 0, 3, True) for key in keys], 4)
    loads, changes = counted(monkeypatch, "_load"), counted(monkeypatch, "_catch_up")
    batch: list[Upsert] = [(key, 1, 5, number % 3 > 0) for number, key in enumerate(keys[:40])]
    updates = export.prepared(batch, 6)
    assert not loads
    if won == "another":
        with export.elsewhere():
            export.step([(key, 2, 5, True) for key in keys[30:]], 6)
        loads.clear()
    else:
        export.model(batch)
        export.append(updates, 6, confirmed=won == "this one")
    changes.clear()
    export.step([(key, 3, 7, True) for key in keys], 8)
    assert not loads
    assert changes == ([] if won == "this one" else [6] * 3)
    # A mark that is given still, when more was appended since, is of what is there.
    export.step([(key, 4, 9, True) for key in keys[:5]], 10)
    export.step([(key, 4, 11, True) for key in keys], 12)
    export.check()


def test_a_prepared_step_that_is_damaged_or_of_something_else_is_read_of_the_shard(
    export: Export, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export.ranges, export.apart = 2, True
    keys = [f"k{number}" for number in range(60)]
    export.step([(key, 0, 3, True) for key in keys], 4)
    older = {path: path.read_bytes() for path in place.glob("*/prepared.json")}
    assert len(older) == 2
    changes = counted(monkeypatch, "_catch_up")
    for at, damage in enumerate(("older", "garbled", "gone"), 1):
        export.step([(key, at, 3 + 2 * at, True) for key in keys], 4 + 2 * at)
        for path, content in older.items():
            if damage == "gone":
                path.unlink()
            else:
                path.write_bytes(content if damage == "older" else b"{")
    export.step([(key, 9, 11, True) for key in keys], 12)
    assert changes == [6, 6, 8, 8, 10, 10]
    export.check()


def test_a_step_that_begins_before_what_is_known_is_refused(export: Export) -> None:
    export.step([("a", 0, 3, True)], 4)
    export.upper = 2
    with pytest.raises(persist.NotReadable, match="further on"):
        export.prepared([("a", 1, 3, True)], 4)
    export.upper = 4
    export.step([("a", 1, 5, True)], 6)
    export.check()


def test_what_was_kept_before_the_machine_started_again_is_not_believed(
    export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export.step([("a", 1, 3, True)], 4)
    let_go(export.contents)
    boot = tmp_path / "boot"
    boot.write_text("another")
    monkeypatch.setattr(kept, "_BOOT", boot)
    loads = counted(monkeypatch, "_load")
    export.step([("a", 2, 5, True)], 6)
    assert loads == [4]
    export.check()


@pytest.mark.parametrize("damage", ["cut", "gone", "garbled"])
def test_damaged_files_are_read_anew(export: Export, place: Path, damage: str) -> None:
    export.step([(f"k{number}", number, 3, True) for number in range(500)], 4)
    let_go(export.contents)
    [rows] = place.glob("*/*.rows")
    if damage == "cut":
        rows.write_bytes(rows.read_bytes()[:-100])
    elif damage == "gone":
        rows.unlink()
    else:
        (rows.parent / "kept.json").write_text("{")
    export.step([("k7", 0, 5, True)], 6)
    export.check()


@pytest.mark.parametrize("suffix", ["hash", "rows", "json"])
def test_no_bit_of_the_files_is_believed_that_was_not_written(
    export: Export, place: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "FAN", 2)
    rng, upper = random.Random(suffix), 4
    export.step([(f"k{number}", number, 3, True) for number in range(300)], upper)
    for _ in range(20):
        let_go(export.contents)
        paths = sorted(place.glob(f"*/*.{suffix}"))
        content = bytearray((path := rng.choice(paths)).read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        # All keys: so all is touched, if not by these then by what they are merged with.
        batch: list[Upsert] = [(f"k{number}", rng.randrange(9), upper + 1, True) for number in range(300)]
        held = dict(export.held)
        with contextlib.suppress(RunDamaged):
            export.step(batch, upper + 2)
        if export.upper == upper:
            export.held = held
            export.step(batch, upper + 2)
        upper += 2
        export.check()


@pytest.mark.parametrize("inside", [False, True])
def test_a_folder_that_is_removed_while_it_is_used_is_made_again(export: Export, place: Path, *, inside: bool) -> None:
    export.step([(f"k{number}", number, 3, True) for number in range(50)], 4)
    for number in range(3):
        for each in [*place.iterdir()] if inside else [place]:
            shutil.rmtree(each)
        batch: list[Upsert] = [("k7", number, export.upper + 1, True)]
        with pytest.raises(Determinate, match="cannot be kept"):
            export.prepared(batch, export.upper + 2)
        export.step(batch, export.upper + 2)
        export.check()
    assert len([*place.iterdir()]) == 1


@contextlib.contextmanager
def limited(what: int, most: int) -> Iterator[None]:
    """What the kernel lets this process do."""
    before = resource.getrlimit(what)
    resource.setrlimit(what, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


@pytest.mark.parametrize("spill_bytes", [1 << 30, 1000], ids=["newest rows", "rows of a step"])
@pytest.mark.parametrize("lacking", ["space", "files"])
def test_what_the_machine_refuses_is_waited_for(export: Export, place: Path, lacking: str, spill_bytes: int) -> None:
    keys = [f"k{number}" for number in range(30_000)]
    export.step([(key, 1, 3, True) for key in keys[:50]], 4)
    there = sorted(place.glob("*/*"))
    batch = [(key, 2, 5, True) for key in keys]
    export.prepared(batch[:1], 6)
    limit = (resource.RLIMIT_FSIZE, 10_000 if spill_bytes == 1000 else 200_000)
    if lacking == "files":
        limit = (resource.RLIMIT_NOFILE, 3)
    with limited(*limit), pytest.raises(Determinate, match="cannot be kept"):
        export.prepared(batch, 6, spill_bytes=spill_bytes)
    export.prepared(batch[:1], 6)
    assert sorted(place.glob("*/*.rows"))[0] in there
    assert len(list(place.glob("*/*.rows"))) == 2, "what was half written went"
    export.step(batch[:100], 6)
    export.check()


def test_what_is_appended_is_not_failed_by_its_record(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    export.step([("a", 1, 3, True)], 4)
    changes = counted(monkeypatch, "_catch_up")
    batch: list[Upsert] = [("a", 2, 5, True)]
    export.model(batch)
    export.append(export.prepared(batch, 6), 6, confirmed=False)
    with limited(resource.RLIMIT_FSIZE, 10):
        appended(export.contents, export.mark)
    export.step([("a", 3, 7, True)], 8)
    assert changes == [6]
    export.check()


def test_runs_take_no_descriptors_and_few_rows_are_written_again(
    export: Export, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a shard holds is read a piece at a time, and pieces are merged as those of steps are."""
    rows = 64_000
    export.append(
        pa.table(
            {
                "k": [f"k{number}" for number in range(rows)],
                "v": range(rows),
                "ts": pa.array([1] * rows, pa.uint64()),
                "diff": [1] * rows,
            }
        ),
        2,
        confirmed=False,
    )
    batches = Contents.batches

    def cut(self: Contents, upper: int) -> Iterator[pa.RecordBatch]:
        for batch in batches(self, upper):
            for begin in range(0, batch.num_rows, 1000):
                # A copy: a slice has all bytes.
                yield batch.take(pa.array(range(begin, min(begin + 1000, batch.num_rows))))

    monkeypatch.setattr(Contents, "batches", cut)
    monkeypatch.setattr(kept, "LOAD_BYTES", 1)
    written: list[int] = []
    merged = runs.merged

    def merging(these: Any, *args: Any, **options: Any) -> Any:
        written.append(sum(run.file.rows for run in these))
        return merged(these, *args, **options)

    monkeypatch.setattr(kept, "merged", merging)
    newest = Kept(export.contents, FIELDS, ["k"])
    newest.at(2)
    assert newest.rows == rows
    assert sum(written) == 2 * rows, "64 pieces: each row in two merges"
    held = [os.readlink(each) for each in Path("/dev/fd").iterdir() if each.is_symlink() and each.exists()]
    assert [Path(each).name for each in held if each.startswith(str(place))] == ["lock"]
    newest.close()


@pytest.mark.parametrize("keys", [1, 30_000], ids=["one key", "all at once"])
def test_what_a_range_of_a_step_holds_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, keys: int) -> None:
    monkeypatch.setattr(gathering, "_BITS", 3)
    monkeypatch.setattr(gathering, "_RANGES", 8)
    gathered, most = gather(["k"], spill_bytes=100_000), 0
    for begin in range(0, 60_000, 1000):
        numbers = range(begin, begin + 1000)
        gathered.add(table_of([(f"k{number % keys}", number, 1, True) for number in numbers]))
    last: dict[str, int] = {}
    for table, _ in gathered.ranges():
        most = max(most, table.nbytes)
        for key, value in zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True):
            last[sure(key)] = max(sure(value), last.get(sure(key), -1))
    gathered.close()
    assert last == {f"k{number % keys}": number for number in range(60_000 - keys, 60_000)}
    assert 0 < most <= 100_000


@pytest.mark.parametrize("durable", [2, 9, 10])
def test_of_changes_that_are_durable_in_part_the_rest_is_filled_from_what_is_held(export: Export, durable: int) -> None:
    """As after another ingester's shorter step: values that were not sent again, and keys that changed."""
    export.step([(f"k{number}", number, 0, True) for number in range(10)], 1)
    export.step([(f"k{number}", 10 + number, 1, True) for number in range(durable)], 2)
    # Ten updates of a value; then k0 becomes n0 with its value as it was, and k1's is not sent.
    keys, count = [*(f"k{number}" for number in range(10)), "k0", "n0", "k1"], 13
    values = [*range(10, 20), None, None, None]
    event = Keyed(
        export="",
        rows=pa.record_batch([pa.array(keys), pa.array(values, pa.int64())], names=["k", "v"]),
        offsets=pa.nulls(count, pa.uint64()),
        present=pa.array([*[True] * 10, False, True, True]),
        fresh=pa.array([key == "n0" for key in keys]),
        before=pa.array([-1] * 11 + [10, -1]),
        unchanged={"v": pa.array([*[False] * 11, True, True])},
    )
    times = pa.array([*[1] * durable, *[2] * (count - durable)], pa.uint64())
    by_key = ByKey(export.contents, 2, FIELDS, ["k"])
    with contextlib.closing(by_key):
        rows = [row for batch in by_key.changed(event, times) for row in batch.to_pylist()]
    found = Counter[Any]()
    for row in rows:
        found[row["k"], row["v"]] += row["diff"]
    assert +found == Counter({("n0", 10): 1, **{(f"k{number}", 10 + number): 1 for number in range(durable, 10)}})
    assert -found == Counter({("k0", 10): 1, **{(f"k{number}", number): 1 for number in range(durable, 10)}})


def test_files_that_nobody_has_used_for_long_go(export: Export, place: Path) -> None:
    old, fresh, foreign = f"{'0' * 32}.0", f"{'f' * 32}.named.1", "a user's own"
    for name in (old, fresh, foreign):
        (place / name).mkdir(parents=True, mode=0o700)
        (place / name / "lock").touch()
    place.chmod(0o700)
    for name in (old, foreign):
        os.utime(place / name / "lock", (0, 0))
    export.step([("a", 1, 3, True)], 4)
    assert not (place / old).exists()
    assert (place / fresh).exists()
    kept.forget(export.contents)
    assert len(list(place.iterdir())) == 3, "what is at work is not removed"
    let_go(export.contents)
    kept.forget(export.contents)
    assert {each.name for each in place.iterdir()} == {fresh, foreign}


def test_folders_that_others_write_into_are_refused(export: Export, place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(persist.InvalidArgument, match="others can write"):
        export.step([("a", 1, 3, True)], 4)


def test_equal_keys_have_equal_hashes_whatever_lies_beside_them() -> None:
    rng = random.Random(3)
    texts = sorted({"".join(rng.choices("ab\0\xff", k=rng.randrange(40))) for _ in range(3000)})
    hashes = key_hashes(encode_key([pa.array(texts)]))
    assert len(set(hashes.tolist())) == len(texts)
    for begin in range(0, len(texts), 157):
        part = encode_key([pa.array(texts)]).slice(begin, 100)
        assert (key_hashes(part) == hashes[begin : begin + 100]).all()
    # Spread evenly: ranges of hashes are parts of about equal size.
    sizes = np.bincount((key_hashes(encode_key([pa.array(range(64_000))])) >> np.uint64(58)).astype(int), minlength=64)
    assert sizes.min() > 800
    assert sizes.max() < 1200


def _counted(updates: Counter[Any]) -> dict[Any, int]:
    """Those that do not cancel."""
    return {update: count for update, count in updates.items() if count}
