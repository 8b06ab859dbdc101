"""``persist fsck --deep`` counts rows that were taken back without having come, and changes nothing."""

from pathlib import Path

import pyarrow as pa

import persist as library
from persist_ingest import Location, Pipeline, PipelineOptions, Records, create
from persist_ingest.location import client, release

SCHEMA = library.Schema(key={"id": pa.int64()}, val={"name": pa.string()})


def updates(*rows: tuple[int, str, int], ts: int) -> pa.Table:
    ids, names, diffs = zip(*rows, strict=True)
    times = pa.array([ts] * len(rows), pa.uint64())
    return pa.table({"id": ids, "name": names, "ts": times, "diff": diffs})


def test_impossible_rows_of_any_shard_are_noted(persist, tmp_path: Path) -> None:
    location = tmp_path / "location"
    with library.embedded(location) as here:
        writer = here.open_writer(library.ShardId.named("table", "people"), schema=SCHEMA)
        writer.append(updates((1, "a", 1), (2, "b", -1), (3, "c", -2), ts=1), 2)
        writer.append(updates((1, "a", -1), (3, "c", 2), ts=2), 3)
        # Its last time is complete, and holds nothing.
        before = here.inspect(writer.shard)
    assert persist("fsck", "--location", location, "--json").json["notes"] == []
    done = persist("fsck", "--deep", "--location", location, "--json")
    assert done.code == 0, done.err
    (noted,) = done.json["notes"]
    assert noted["what"].startswith("1 rows are there less than no times")
    with library.embedded(location) as here:
        after = here.inspect(library.ShardId.named("table", "people"))
    assert (after["seqno"], after["upper"]) == (before["seqno"], before["upper"])


def test_those_of_a_source_are_a_problem(persist, tmp_path: Path) -> None:
    here = Location(directory=str(tmp_path / "location"))
    create(here, "made", "loadgen", {"generator": "counter", "messages": "10"}, interval_ms=1)
    with Pipeline(here, "made", options=PipelineOptions(tick_ms=1)) as pipeline:
        pipeline.step()
    assert persist("fsck", "--deep", "--location", here.directory).code == 0
    # What a wrong reader of an upstream would come to.
    source = Records(client(here)).source("made")
    (shard,) = source.exports.values()
    writer = client(here).open_writer(shard)
    keys = {
        name: pa.array([10**9], kind)
        for name, kind in zip(writer.schema.key.names, writer.schema.key.types, strict=True)
    }
    vals = {
        name: pa.array([None], kind)
        for name, kind in zip(writer.schema.val.names, writer.schema.val.types, strict=True)
    }
    writer.append_at_upper(
        pa.table({**keys, **vals, "diff": [-1]}), not_before=client(here).recent_upper(shard).time or 0
    )
    release(here)
    done = persist("fsck", "--deep", "--location", here.directory, "--json")
    assert done.code == 1
    (wrong,) = done.json["problems"]
    assert (wrong["shard"], wrong["invariant"]) == (shard, "I19")
    assert "resnapshot" in wrong["next_step"]
    counted = persist("source", "status", "made", "--count", "--location", here.directory)
    assert counted.code == 1
    release(here)
