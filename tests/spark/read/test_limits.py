"""Limits of micro-batches, by the calls that Spark makes: no job runs here."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from spark.read.micro_batches import micro_batches, next_batch, rows_between, stream_reader

import persist
from persist import Settings

SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
Where = dict[str, str]


@pytest.fixture
def feed(where: Where, client: Any) -> Callable[..., None]:
    """Append one batch: rows (id, name, time, diff), complete up to the given upper."""
    writer = client.open_writer(where["shard"], schema=SCHEMA)

    def append(upper: int, *updates: tuple[int, str, int, int]) -> None:
        writer.append([(({"id": i}, {"name": n}), t, d) for i, n, t, d in updates], new_upper=upper)

    return append


def forty(feed: Any) -> None:
    """Forty rows in four batches, one at each time from 0."""
    for n in range(4):
        feed(10 * n + 10, *((10 * n + k, "x", 10 * n + k, 1) for k in range(10)))


@pytest.mark.parametrize(
    "limit", [{"maxRowsPerTrigger": 10}, {"maxFilesPerTrigger": 1}, {"maxBytesPerTrigger": "half"}], ids=str
)
def test_initial_snapshot_comes_in_pieces_within_the_limits(where: Where, feed: Any, client: Any, limit: Any) -> None:
    forty(feed)
    if "maxBytesPerTrigger" in limit:
        snapshot = client.open_reader(where["shard"]).snapshot(39)
        limit = {"maxBytesPerTrigger": snapshot.encoded_bytes // 2}
    found = micro_batches(stream_reader(**where, **limit))
    assert len(found) >= 2
    assert max(len(rows) for rows in found) <= 20
    assert sorted(row for rows in found for row in rows) == [(n, "x") for n in range(40)]


def test_initial_snapshot_in_pieces_is_of_one_time_and_history_goes_on_after_it(where: Where, feed: Any) -> None:
    forty(feed)
    reader = stream_reader(**where, mode="diffs", maxRowsPerTrigger=10)
    start = reader.initialOffset()
    first, reached = next_batch(reader, start)
    assert reached["upper"] == "40"
    assert "below" in reached
    feed(50, (3, "x", 44, -1), (35, "x", 45, -1))
    rest, ends = [], [reached]
    while int(str(ends[-1]["upper"])) < 50:
        rows, end = next_batch(reader, ends[-1])
        rest.extend(rows)
        ends.append(end)
    assert {row[2] for row in first} == {39}
    assert sorted(first + rest) == sorted([*((n, "x", 39, 1) for n in range(40)), (3, "x", 44, -1), (35, "x", 45, -1)])
    # Asked again, as after a restart, each interval is what it was.
    again = stream_reader(**where, mode="diffs", maxRowsPerTrigger=10)
    assert sorted(rows_between(again, start, reached)) == sorted(first)
    rest_of_snapshot = rows_between(again, reached, ends[-1] | {"upper": "40"})
    assert sorted(rest_of_snapshot) == [(n, "x", 39, 1) for n in range(len(first), 40)]


def test_initial_snapshot_without_limits_is_one_piece(where: Where, feed: Any) -> None:
    forty(feed)
    assert [len(rows) for rows in micro_batches(stream_reader(**where))] == [40]
    assert [len(rows) for rows in micro_batches(stream_reader(**where, maxTimesPerTrigger=3))] == [40]


def test_compacted_history_is_cut_by_times_within_the_limits(where: Where, feed: Any, location: str) -> None:
    forty(feed)
    with persist.embedded(location, settings=Settings()) as client:
        compaction = client.begin_compaction(where["shard"])
        if compaction is not None:
            compaction.commit([piece.run() for piece in compaction.pieces(1)])
        assert len(client.open_reader(where["shard"]).changes_since(1)) < 4
    found = micro_batches(stream_reader(**where, mode="diffs", startingVersion=1, maxRowsPerTrigger=10))
    assert sorted(row for rows in found for row in rows) == [(n, "x", n, 1) for n in range(1, 40)]
    assert max(len(rows) for rows in found) <= 12
    assert len(found) <= 6


def test_batch_of_one_time_is_one_micro_batch(where: Where, feed: Any) -> None:
    feed(10, (0, "x", 0, 1))
    feed(20, *((n, "x", 15, 1) for n in range(30)))
    found = micro_batches(stream_reader(**where, mode="diffs", startingVersion=1, maxRowsPerTrigger=10))
    assert sorted(len(rows) for rows in found if rows) == [30]


@pytest.mark.parametrize("fail", [True, False])
def test_initial_snapshot_whose_time_was_compacted_away_fails_or_goes_on(
    where: Where, feed: Any, client: Any, fail: bool
) -> None:
    forty(feed)
    options = {**where, "mode": "diffs", "maxRowsPerTrigger": 10, "failOnDataLoss": str(fail).lower()}
    first = stream_reader(**options)
    start = first.initialOffset()
    rows, reached = next_batch(first, start)
    first.stop()
    feed(60, (100, "y", 50, 1))
    reader = client.open_reader(where["shard"])
    reader.downgrade_since(55)
    reader.expire()
    later = stream_reader(**options)
    if fail:
        with pytest.raises(persist.NotReadable, match="failOnDataLoss"):
            next_batch(later, reached)
        return
    rest: list[Any] = []
    while int(str(reached["upper"])) < 60:
        more, reached = next_batch(later, reached)
        rest.extend(more)
    assert sorted(row[0] for row in rows + rest) == [*range(40), 100]


def test_progress_says_how_much_no_micro_batch_has_taken_yet(where: Where, feed: Any) -> None:
    forty(feed)
    reader = stream_reader(**where, mode="diffs", maxRowsPerTrigger=10)
    start = reader.initialOffset()
    assert "numRowsOutstanding" not in reader.reportLatestOffset()
    left, taken = [], 0
    while taken < 40:
        rows, start = next_batch(reader, start)
        taken += len(rows)
        report = reader.reportLatestOffset()
        assert report["upper"] == "40"
        left.append(int(str(report["numRowsOutstanding"])))
        assert (left[-1] == 0) == (report["numBytesOutstanding"] == 0) == (report["numFilesOutstanding"] == 0)
    assert left == sorted(left, reverse=True)
    assert left[0] > left[-1] == 0
    feed(50, (3, "x", 44, -1), (35, "x", 45, -1))
    assert reader.reportLatestOffset() | {"numRowsOutstanding": 2, "upper": "50"} == reader.reportLatestOffset()
    next_batch(reader, start)
    assert reader.reportLatestOffset()["numRowsOutstanding"] == 0
