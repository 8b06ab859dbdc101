import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sure import sure

import persist
from persist.core.shard.commands import FenceWriters
from persist.runtime import system

Contents = Callable[..., list[tuple[Any, ...]]]
Where = dict[str, str]

SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})


@pytest.fixture
def source(where: Where) -> Where:
    return where


@pytest.fixture
def sink(location: str, client: Any) -> Where:
    shard = persist.ShardId.new()
    client.open_writer(shard, schema=SCHEMA)
    return {"location": location, "shard": str(shard)}


@pytest.fixture
def feed(source: Where, client: Any) -> Callable[..., None]:
    """Append one batch to the source: rows (id, name, time, diff), complete up to the given upper."""
    writer = client.open_writer(persist.ShardId.parse(source["shard"]), schema=SCHEMA)

    def append(upper: int, *updates: tuple[int, str, int, int]) -> None:
        writer.append([(({"id": i}, {"name": n}), t, d) for i, n, t, d in updates], new_upper=upper)

    return append


def stream(spark: Any, source: Where, **options: object) -> Any:
    texts = {name: str(value) for name, value in options.items()}
    return spark.readStream.format("persist").options(**source).options(**texts).load()


def run(
    frame: Any, sink: Where, checkpoint: Path, *, mode: str = "append", fmt: str = "persist", **options: object
) -> Any:
    """Run to the end of what there is; the finished query."""
    writer = frame.writeStream.format(fmt).options(**sink).options(**{n: str(v) for n, v in options.items()})
    query = writer.option("checkpointLocation", str(checkpoint)).outputMode(mode).trigger(availableNow=True).start()
    assert query.awaitTermination(200)
    if query.exception() is not None:
        raise query.exception()
    return query


def batches(query: Any) -> list[Any]:
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


def test_stream_from_shard_to_shard_copies_every_diff(
    spark: Any, source: Where, sink: Where, feed: Any, contents: Contents, tmp_path: Path
) -> None:
    feed(10, (1, "a", 3, 1), (2, "b", 4, 2))
    feed(20, (1, "a", 12, -1), (1, "z", 12, 1))
    frame = stream(spark, source, mode="diffs", startingVersion="earliest")
    run(frame, sink, tmp_path / "c")
    assert contents(sink, 12) == contents(source, 12) == [(1, "z", 1), (2, "b", 2)]
    feed(30, (2, "b", 25, -2), (3, "c", 26, 1))
    run(stream(spark, source, mode="diffs", startingVersion="earliest"), sink, tmp_path / "c")
    for time in (3, 4, 11, 12, 25, 26):
        assert contents(sink, time) == contents(source, time)


def test_stream_replayed_after_a_lost_commit_log_happens_once(
    spark: Any, source: Where, sink: Where, feed: Any, contents: Contents, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "c"
    for n in range(3):
        feed(10 * (n + 1), (n, "x", 10 * n + 1, 1))
        run(stream(spark, source, readChangeFeed="true").select("id", "name"), sink, checkpoint)
    last = max((p for p in (checkpoint / "commits").iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    run(stream(spark, source, readChangeFeed="true").select("id", "name"), sink, checkpoint)
    assert not any(count != 1 for *_, count in contents(sink))
    assert [row[0] for row in contents(sink)] == [0, 1, 2]
    assert (checkpoint / "commits" / last.name).exists()


def test_stream_whose_commit_fails_after_it_happened_goes_on_exactly_once(
    spark: Any, source: Where, sink: Where, feed: Any, contents: Contents, tmp_path: Path
) -> None:
    feed(10, (1, "a", 3, 2))
    frame = stream(spark, source).select("id", "name")
    with pytest.raises(Exception, match="after commit"):
        run(frame, sink, tmp_path / "c", fmt="persist_task_fails")
    run(stream(spark, source).select("id", "name"), sink, tmp_path / "c")
    assert contents(sink) == [(1, "a", 2)]


def test_stream_whose_writer_was_fenced_off_goes_on_under_a_new_one(
    spark: Any, source: Where, sink: Where, feed: Any, client: Any, contents: Contents, tmp_path: Path
) -> None:
    shard = persist.ShardId.parse(sink["shard"])
    feed(10, (1, "a", 3, 1))
    frame = stream(spark, source, mode="diffs", startingVersion="earliest")
    writer = frame.writeStream.format("persist").options(**sink).option("checkpointLocation", str(tmp_path / "c"))
    # The process that plans writes has an id already, which this shard never saw when it fences writers off.
    other = {**sink, "shard": str(persist.ShardId.new())}
    spark.range(1).write.format("persist").options(**other).option("keyColumns", "id").mode("append").save()
    fence(client, shard)
    query = writer.start()
    try:
        for number in (1, 2):
            query.processAllAvailable()
            assert query.exception() is None
            feed(10 * number + 10, (number + 1, "b", 10 * number + 2, 1))
        query.processAllAvailable()
    finally:
        query.stop()
    assert contents(sink, 22) == [(1, "a", 1), (2, "b", 1), (3, "b", 1)]
    assert not set(client.inspect(shard)["writers"]) & set(client.inspect(other["shard"])["writers"])


def fence(client: Any, shard: persist.ShardId) -> None:
    """Refuse writers the shard does not know, as a sweep does."""
    loop, core = client._loop, client._inner
    command = FenceWriters(born_before_ms=system().now_ms())
    loop.run(core._location.shards.apply(shard, command, timeout=30))


def test_new_query_under_the_app_id_of_another_is_refused_and_loses_no_rows(
    spark: Any, source: Where, sink: Where, feed: Any, contents: Contents, tmp_path: Path
) -> None:
    """Its batches begin at 0 again: they are other rows, and no replays of what was committed under these numbers."""
    feed(10, (1, "a", 3, 1))
    for _ in range(2):
        run(stream(spark, source).select("id", "name"), sink, tmp_path / "c0", txnAppId="copy")
    assert contents(sink) == [(1, "a", 1)]
    feed(20, (2, "b", 13, 1))
    later = stream(spark, source, startingVersion=10).select("id", "name")
    with pytest.raises(Exception, match="another query committed this version"):
        run(later, sink, tmp_path / "c1", txnAppId="copy")
    assert contents(sink) == [(1, "a", 1)]
    run(later, sink, tmp_path / "c2", txnAppId="copy 2")
    assert contents(sink) == [(1, "a", 1), (2, "b", 1)]
    run(stream(spark, source).select("id", "name"), sink, tmp_path / "c0", txnAppId="copy")
    assert contents(sink) == [(1, "a", 1), (2, "b", 2)]


def test_stream_limits_cut_micro_batches_at_batches(
    spark: Any, source: Where, feed: Any, client: Any, tmp_path: Path
) -> None:
    for n in range(6):
        feed(10 * (n + 1), *((10 * n + k, "x", 10 * n + k, 1) for k in range(5)))
    options = {"startingVersion": 1, "mode": "diffs"}
    by_files = run(stream(spark, source, maxFilesPerTrigger=2, **options), {}, tmp_path / "f", fmt="noop")
    assert [p["numInputRows"] for p in batches(by_files)] == [9, 10, 10]
    by_rows = run(stream(spark, source, maxRowsPerTrigger=12, **options), {}, tmp_path / "r", fmt="noop")
    assert [p["numInputRows"] for p in batches(by_rows)] == [9, 10, 10]
    largest = max(batch.encoded_bytes for batch in client.open_reader(source["shard"]).changes_since(0))
    by_bytes = run(stream(spark, source, maxBytesPerTrigger=largest, **options), {}, tmp_path / "b", fmt="noop")
    assert [p["numInputRows"] for p in batches(by_bytes)] == [4, 5, 5, 5, 5, 5]
    everything = run(stream(spark, source, **options), {}, tmp_path / "e", fmt="noop")
    assert [p["numInputRows"] for p in batches(everything)] == [29]
    assert client.open_reader(source["shard"]).since == persist.Antichain.of(0)


@pytest.mark.parametrize(
    ("options", "held", "since"),
    [
        # The stream is the only reader: history ends only if it is asked to end it.
        ({}, None, 0),
        ({"downgradeSince": "true"}, None, 19),
        # Another reader decides: the stream follows, but never beyond its own position, and never ahead.
        ({}, 15, 15),
        ({}, 25, 19),
        ({"downgradeSince": "true"}, 15, 15),
    ],
)
def test_stream_ends_history_only_when_asked(
    spark: Any,
    source: Where,
    feed: Any,
    client: Any,
    tmp_path: Path,
    options: dict[str, str],
    held: int | None,
    since: int,
) -> None:
    for n in range(3):
        feed(10 * (n + 1), (n, "x", 10 * n + 1, 1))
    frame = stream(spark, source, startingVersion=1, mode="diffs", maxFilesPerTrigger=1, **options)
    # The last micro-batch of such a run is never reported as committed: the position is 20.
    with persist.embedded(source["location"]) as other:
        critical = other.open_since("retention", source["shard"]) if held is not None else None

        def decide(batch: Any, number: int) -> None:
            if number == 0 and critical is not None:
                critical.compare_and_downgrade(b"", sure(held))

        writer = frame.writeStream.foreachBatch(decide).option("checkpointLocation", str(tmp_path / "c"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(200)
        assert query.exception() is None
        assert client.inspect(source["shard"])["since"] == [since]


def test_stream_offsets_are_readable_frontiers(
    spark: Any, source: Where, sink: Where, feed: Any, tmp_path: Path
) -> None:
    feed(10, (1, "a", 3, 1))
    query = run(stream(spark, source), {}, tmp_path / "c", fmt="noop")
    offset = query.lastProgress["sources"][0]["endOffset"]
    found = json.loads(offset) if isinstance(offset, str) else offset
    assert found.pop("place")
    assert found == {"v": 1, "shard": source["shard"], "upper": "10"}
    reported = query.lastProgress["sources"][0]["latestOffset"]
    assert (json.loads(reported) if isinstance(reported, str) else reported)["numRowsOutstanding"] == 0


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("snapshot", [(1, "z", 19, 1), (2, "b", 19, 2)]),
        ("earliest", [(1, "a", 3, 1), (1, "a", 12, -1), (1, "z", 12, 1), (2, "b", 4, 2)]),
        ("12", [(1, "a", 12, -1), (1, "z", 12, 1)]),
        ("latest", []),
    ],
)
def test_stream_starts_where_it_is_told(
    spark: Any, source: Where, feed: Any, tmp_path: Path, start: str, expected: list[Any]
) -> None:
    feed(10, (1, "a", 3, 1), (2, "b", 4, 2))
    feed(20, (1, "a", 12, -1), (1, "z", 12, 1))
    out = tmp_path / "out"
    frame = stream(spark, source, mode="diffs", startingVersion=start)
    run(frame, {"path": str(out)}, tmp_path / "c", fmt="json")
    rows = spark.read.schema("id bigint, name string, _ts bigint, _diff bigint").json(str(out)).collect()
    assert sorted(tuple(row) for row in rows) == expected


def test_stream_of_plain_rows_refuses_deletions_with_a_next_step(
    spark: Any, source: Where, feed: Any, tmp_path: Path
) -> None:
    feed(10, (1, "a", 3, 1))
    feed(20, (1, "a", 12, -1))
    with pytest.raises(Exception, match="readChangeFeed"):
        run(stream(spark, source, startingVersion="earliest"), {}, tmp_path / "c", fmt="noop")
    query = run(stream(spark, source, startingVersion="earliest", ignoreDeletes="true"), {}, tmp_path / "d", fmt="noop")
    assert sum(p["numInputRows"] for p in query.recentProgress) == 1


def test_stream_past_which_history_was_compacted_fails_or_skips(
    spark: Any, source: Where, feed: Any, client: Any, tmp_path: Path
) -> None:
    shard = persist.ShardId.parse(source["shard"])
    feed(10, (1, "a", 3, 1))
    feed(20, (2, "b", 12, 1))
    reader = client.open_reader(shard)
    reader.downgrade_since(15)
    feed(30, (3, "c", 25, 1))
    assert client.open_reader(shard).since == persist.Antichain.of(15)
    with pytest.raises(Exception, match="failOnDataLoss"):
        run(stream(spark, source, startingVersion=5), {}, tmp_path / "c", fmt="noop")
    query = run(stream(spark, source, startingVersion=5, failOnDataLoss="false"), {}, tmp_path / "d", fmt="noop")
    assert sum(p["numInputRows"] for p in query.recentProgress) == 1


def test_stream_in_complete_mode_keeps_the_newest_result(
    spark: Any, source: Where, location: str, client: Any, feed: Any, contents: Contents, tmp_path: Path
) -> None:
    counts = persist.ShardId.new()
    client.open_writer(counts, schema=persist.Schema(key={"name": pa.string()}, val={"n": pa.int64()}))
    where = {"location": location, "shard": str(counts)}
    for upper, updates in ((10, [(1, "a", 3, 1), (2, "b", 4, 1)]), (20, [(3, "a", 12, 2)])):
        feed(upper, *updates)
        frame = stream(spark, source).groupBy("name").count().withColumnRenamed("count", "n")
        run(frame, where, tmp_path / "c", mode="complete")
    assert contents(where) == [("a", 3, 1), ("b", 1, 1)]


def test_stream_from_a_foreign_checkpoint_is_refused(
    spark: Any, source: Where, sink: Where, feed: Any, client: Any, tmp_path: Path
) -> None:
    feed(10, (1, "a", 3, 1))
    run(stream(spark, source), {}, tmp_path / "c", fmt="noop")
    with pytest.raises(Exception, match="another shard"):
        run(stream(spark, sink), {}, tmp_path / "c", fmt="noop")


def test_stream_of_a_closed_shard_ends_with_its_last_update(
    spark: Any, source: Where, sink: Where, client: Any, feed: Any, contents: Contents, tmp_path: Path
) -> None:
    feed(10, (1, "a", 3, 1))
    run(stream(spark, source, mode="diffs", startingVersion="earliest"), sink, tmp_path / "c")
    client.open_writer(source["shard"]).append([(({"id": 2}, {"name": "b"}), 11, 1)], new_upper=[])
    query = run(stream(spark, source, mode="diffs", startingVersion="earliest"), sink, tmp_path / "c")
    assert contents(sink) == [(1, "a", 1), (2, "b", 1)]
    assert (
        run(stream(spark, source, mode="diffs", startingVersion="earliest"), sink, tmp_path / "c").exception() is None
    )
    assert query.exception() is None
