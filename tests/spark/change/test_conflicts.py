"""Changes beside other writers: computed anew or refused, in the shard once, and equal to a model at their time."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark.change.conftest import COLUMNS, Held
from spark.change.models import Row, Rows, changed, merged, rows_of

import persist
from persist import InvalidArgument, InvalidBounds
from pyspark_persist.change.running import ChangeResult

FIRST = [(key, "t", 0) for key in range(20)]


def between(location: str, shard: str, flag: Path, row: Row | None) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What a source does while it is read: the first task appends this row, or moves the upper by one."""

    def act(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            try:
                os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                with persist.embedded(location) as client:
                    writer = client.open_writer(shard)
                    at = writer.upper.time
                    given = [] if row is None else [(({"id": row[0]}, {"name": row[1], "n": row[2]}), at, 1)]
                    assert at is not None
                    writer.append(given, new_upper=at + 1)
            yield batch

    return act


@pytest.fixture
def source(held: Held, location: str, tmp_path: Path) -> Callable[[Row | None], Any]:
    """A source of rows 0 to 9 that, when it is first read, writes to the table that it is merged into."""
    held.put(*FIRST, at=5)

    def made(row: Row | None) -> Any:
        rows = held.frame(*[(key, "s", key) for key in range(10)])
        return rows.mapInArrow(between(location, held.shard, tmp_path / "written", row), COLUMNS)

    return made


def upsert(held: Held, source: Any, **how: Any) -> ChangeResult:
    return held.table.merge(source, "id").whenMatchedUpdateAll().whenNotMatchedInsertAll().execute(**how)


@pytest.mark.usefixtures("kept")
def test_write_that_comes_between_is_seen_by_the_change_that_is_computed_anew(held: Held, source: Any) -> None:
    done = upsert(held, source((3, "between", 3)))
    assert done.attempts == 2
    assert held.rows() == rows_of([(key, "s", key) for key in range(10)] + [(3, "s", 3)] + FIRST[10:])
    assert (done.rows_updated, done.read_at) == (11, 6)
    assert held.rows(6) == rows_of([*FIRST, (3, "between", 3)])


@pytest.mark.parametrize("how", [{"onConflict": "refuse"}, {"readAt": 5}], ids=str)
def test_write_that_comes_between_refuses_a_change_that_is_bound_to_what_was_read(
    held: Held, source: Any, how: dict[str, Any]
) -> None:
    with pytest.raises(InvalidBounds, match=r"came between|after readAt"):
        upsert(held, source((3, "between", 3)), **how)
    assert held.rows() == rows_of([*FIRST, (3, "between", 3)])
    assert held.upper == 7


@pytest.mark.usefixtures("kept")
def test_upper_that_moves_without_rows_is_followed(held: Held, source: Any) -> None:
    done = upsert(held, source(None), readAt=5, onConflict="refuse")
    assert (done.attempts, done.read_at, done.rows_updated) == (1, 6, 10)
    assert held.rows() == rows_of([(key, "s", key) for key in range(10)] + FIRST[10:])


def test_commit_time_that_another_write_reached_first_is_refused(held: Held, source: Any) -> None:
    with pytest.raises(InvalidBounds, match="commitTime is complete"):
        upsert(held, source((3, "between", 3)), commitTime=6)
    assert held.rows() == rows_of([*FIRST, (3, "between", 3)])


def test_read_at_of_another_engine_holds_while_nothing_was_written(held: Held) -> None:
    held.put(*FIRST, at=5)
    held.writer.append([], new_upper=9)
    assert held.table.delete("id < 5", readAt=5, commitTime=10).rows_deleted == 5
    with pytest.raises(InvalidBounds, match="after readAt"):
        held.table.delete("id < 7", readAt=9)
    assert held.table.update({"n": 1}, readAt=10).rows_updated == 15


def test_change_under_a_transaction_happens_once(held: Held) -> None:
    held.put(*FIRST, at=5)
    first = held.table.update({"n": "n + 1"}, txnAppId="app", txnVersion=1)
    after = held.kept()
    ways: list[dict[str, Any]] = [{}, {"commitTime": 2}, {"readAt": 5}]
    for how in ways:
        again = held.table.update({"n": "n + 1"}, txnAppId="app", txnVersion=1, **how)
        assert (again.already_committed, again.rows_updated, again.upper) == (True, 0, first.upper)
    with pytest.raises(InvalidArgument, match="something else was committed"):
        held.table.delete(txnAppId="app", txnVersion=1)
    assert held.kept() == after
    assert held.table.delete("id = 99", txnAppId="app", txnVersion=2).rows == 0
    assert held.table.delete("id = 99", txnAppId="app", txnVersion=2).already_committed
    with pytest.raises(InvalidArgument, match="a later version"):
        held.table.update({"n": "n + 1"}, txnAppId="app", txnVersion=1)
    assert held.rows() == rows_of((key, "t", 1) for key in range(20))


def test_change_that_two_drivers_make_under_one_transaction_happens_once(held: Held) -> None:
    held.put(*FIRST, at=5)
    done: list[ChangeResult] = []
    rows = held.frame(*[(key, "s", key) for key in range(10, 30)])

    def run() -> None:
        merge = held.table.merge(rows, "id").whenMatchedUpdate(set={"n": "target.n + 1"}).whenNotMatchedInsertAll()
        done.append(merge.execute(txnAppId="app", txnVersion=7))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(each.already_committed for each in done) == [False, True]
    assert done[0].upper == done[1].upper
    assert held.rows() == rows_of(
        [*FIRST[:10], *[(key, "t", 1) for key in range(10, 20)], *[(key, "s", key) for key in range(20, 30)]]
    )


@pytest.mark.usefixtures("kept")
def test_write_of_rows_that_the_change_is_not_about_leaves_it_as_it_was_computed(held: Held, source: Any) -> None:
    done = upsert(held, source((77, "elsewhere", 3)), onConflict="refuse")
    assert (done.attempts, done.rows_updated, done.read_at) == (1, 10, 6)
    assert held.rows() == rows_of([(key, "s", key) for key in range(10)] + FIRST[10:] + [(77, "elsewhere", 3)])


def test_change_that_is_bound_to_another_engines_read_is_refused_by_any_row(held: Held, source: Any) -> None:
    with pytest.raises(InvalidBounds):
        upsert(held, source((77, "elsewhere", 3)), readAt=5)
    assert held.rows() == rows_of([*FIRST, (77, "elsewhere", 3)])


def test_changes_among_four_writers_are_each_the_models_at_their_time(held: Held, client: Any) -> None:
    """Each must equal the model over the rows just before it, whatever was written while it was computed."""
    held.put(*FIRST, at=5)
    stop = threading.Event()
    written: list[Row] = []

    def write(number: int) -> None:
        writer = client.open_writer(held.shard)
        step = 0
        while not stop.wait(0.1):
            # Most rows are of no matter to any change; some are, for a while.
            matters = step % 40 == 39 and step < 120
            row = (number if matters else number * 1000 + step % 7, f"w{number}", 2 if matters else step % 2)
            writer.append_at_upper(pa.table({"id": [row[0]], "name": [row[1]], "n": [row[2]]}))
            written.append(row)
            step += 1

    def merge_model(rows: Rows) -> Rows:
        return merged(
            rows,
            given,
            matched=lambda mine, other: other,
            not_matched=lambda other: other,
            by_source=lambda mine: mine,
        )

    given = [(key, "m", key) for key in (*range(10, 25), 9999)]
    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 5)]
    for each in threads:
        each.start()
    checked: list[tuple[ChangeResult, Callable[[Rows], Rows]]] = []
    try:
        merging = held.table.merge(held.frame(*given), "id").whenMatchedUpdateAll().whenNotMatchedInsertAll()
        for _ in range(2):
            checked.append((merging.execute(), merge_model))
            done = held.table.update({"n": "n + 1"}, "id < 1000")
            checked.append((done, lambda rows: changed(rows, lambda r: (r[0], r[1], r[2] + 1) if r[0] < 1000 else r)))
            done = held.table.delete("n = 2")
            checked.append((done, lambda rows: changed(rows, lambda r: None if r[2] == 2 else r)))
    finally:
        stop.set()
        for each in threads:
            each.join()
    assert len(written) >= 40
    for done, model in checked:
        if done.rows:
            read_at, at = done.read_at, (done.upper.time or 0) - 1
            assert read_at is not None
            assert held.rows(at) == model(held.rows(read_at)), done
            assert held.rows(at - 1) == held.rows(read_at)
    assert sum(done.rows > 0 for done, _ in checked) >= 4


def test_merges_of_four_drivers_at_once_lose_and_double_nothing(held: Held, client: Any) -> None:
    """Each adds to the same rows, and brings one of its own: what one reads the other changes."""
    held.put(*FIRST, at=5)
    amounts = {number: 10**number for number in range(4)}
    failed: list[Exception] = []

    def run(number: int) -> None:
        try:
            given = held.frame(*[(key, "s", amounts[number]) for key in (*range(5), 100 + number)])
            merge = held.table.merge(given, "id").whenMatchedUpdate(set={"n": "target.n + source.n"})
            merge.whenNotMatchedInsertAll().execute(txnAppId=f"driver {number}", txnVersion=1)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in amounts]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []
    own = [(100 + number, "s", amount) for number, amount in amounts.items()]
    assert held.rows() == rows_of([*[(key, "t", 1111) for key in range(5)], *FIRST[5:], *own])
