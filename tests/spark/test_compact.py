"""Compaction on executors: the same rows on one task and on four, one commit, nothing changed when a task fails."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from pyspark_persist import PersistTable

SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
MANUAL = persist.Settings(compaction=False, inline_part_bytes_max=0, sort_rows=500, row_group_rows=64)
# Too few to be worth it for the embedded client of this process.
COMMITS, ROWS = 6, 400


def grown(location: str) -> persist.ShardId:
    """A shard of many runs in which later commits take back part of the earlier ones."""
    with persist.embedded(location, settings=MANUAL) as client:
        shard = persist.ShardId.new()
        writer, reader = client.open(shard, schema=SCHEMA)
        for step in range(COMMITS):
            ids = [(number * 7919 + step // 2) % 5_000 for number in range(ROWS)]
            columns = {
                "id": pa.array(ids, pa.int64()),
                "name": [f"n{key}" for key in ids],
                "ts": pa.array([step] * ROWS, pa.uint64()),
                "diff": pa.array([-1 if step % 2 else 1] * ROWS, pa.int64()),
            }
            keep = ROWS if step % 2 == 0 else ROWS // 2
            writer.append(pa.table(columns).slice(0, keep), step + 1)
        reader.downgrade_since(COMMITS - 1)
    return shard


def shown(location: str, shard: persist.ShardId) -> list[dict[str, Any]]:
    with persist.embedded(location, settings=MANUAL) as client:
        rows: list[dict[str, Any]] = client.open_reader(shard).snapshot(COMMITS - 1).to_pylist()
        return rows


def batches(location: str, shard: persist.ShardId) -> list[Any]:
    with persist.embedded(location, settings=MANUAL) as client:
        return [batch for each in client.inspect(shard)["spine"] for batch in each["batches"]]


@pytest.mark.parametrize("pieces", [1, 4])
def test_shard_is_one_run_afterwards_with_the_same_rows(spark: Any, tmp_path: Path, pieces: int) -> None:
    location = str(tmp_path / "data")
    shard = grown(location)
    before = shown(location, shard)
    assert len(before) == COMMITS // 2 * ROWS // 2
    table = PersistTable.forShard(spark, shard, location=location)
    done = table.compact(pieces=pieces)
    assert done.applied
    assert done.rows_after == len(before)
    assert shown(location, shard) == before
    [batch] = batches(location, shard)
    assert len(batch["runs"]) == 1
    assert table.toDF().count() == len(before)
    assert table.compact() is None


def test_task_that_fails_for_good_changes_nothing(spark: Any, tmp_path: Path) -> None:
    location = str(tmp_path / "data")
    shard = grown(location)
    before, described = shown(location, shard), batches(location, shard)
    victim = next(path for path in Path(location).rglob("p*") if path.is_file() and path.stat().st_size > 500)
    whole = victim.read_bytes()
    victim.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(Exception, match=r"checksum|[Cc]orrupt"):
        PersistTable.forShard(spark, shard, location=location).compact(pieces=3)
    victim.write_bytes(whole)
    assert batches(location, shard) == described
    assert shown(location, shard) == before
    assert PersistTable.forShard(spark, shard, location=location).compact(pieces=3).applied
    assert shown(location, shard) == before
