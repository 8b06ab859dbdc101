"""Streaming queries that are given one ``txnAppId`` count batches each for itself: none takes another's for its own."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from pyspark_persist import PersistTable

Where = dict[str, str]
Contents = Callable[..., list[tuple[Any, ...]]]
Writes = Callable[[Any, int, Where], object]

APP = "job"


def merged(batch: Any, number: int, where: Where) -> object:
    table = PersistTable.forShard(batch.sparkSession, where["shard"], location=where["location"])
    return table.merge(batch, "id").whenNotMatchedInsertAll().execute(txnAppId=APP, txnVersion=number)


def appended(batch: Any, number: int, where: Where) -> object:
    table = PersistTable.forShard(batch.sparkSession, where["shard"], location=where["location"])
    return table.append(batch, txnAppId=APP, txnVersion=number)


def saved(batch: Any, number: int, where: Where) -> object:
    writer = batch.write.format("persist").options(**where).option("txnAppId", APP).option("txnVersion", number)
    return writer.mode("append").save()


WAYS: dict[str, Writes] = {"merge": merged, "append": appended, "save": saved}


def run(spark: Any, where: Where, files: Path, checkpoint: Path, write: Writes) -> None:
    """A query over the files there are. Raises what it ended by."""
    query = (
        spark.readStream.schema("id long, name string")
        .json(str(files))
        .writeStream.foreachBatch(lambda batch, number: write(batch, number, where))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)
    if query.exception() is not None:
        raise query.exception()


def put(files: Path, *keys: int) -> None:
    files.mkdir(exist_ok=True)
    text = "".join(f'{{"id": {key}, "name": "x"}}\n' for key in keys)
    (files / f"{keys[0]}.json").write_text(text)


@pytest.mark.parametrize("way", WAYS)
def test_batches_of_another_query_are_no_replays(
    spark: Any, client: Any, where: Where, contents: Contents, tmp_path: Path, way: str
) -> None:
    client.open_writer(where["shard"], schema=persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()}))
    put(tmp_path / "one", 1, 2)
    put(tmp_path / "other", 8, 9)
    run(spark, where, tmp_path / "one", tmp_path / "c1", WAYS[way])
    with pytest.raises(Exception, match="another query committed this version under the same application id"):
        run(spark, where, tmp_path / "other", tmp_path / "c2", WAYS[way])
    assert contents(where) == [(1, "x", 1), (2, "x", 1)]
    # The query itself, as it goes on where Spark did not note its last batch.
    (tmp_path / "c1" / "commits" / "0").unlink()
    (tmp_path / "c1" / "commits" / ".0.crc").unlink(missing_ok=True)
    put(tmp_path / "one", 3)
    run(spark, where, tmp_path / "one", tmp_path / "c1", WAYS[way])
    assert contents(where) == [(1, "x", 1), (2, "x", 1), (3, "x", 1)]
    shutil.rmtree(tmp_path / "c1")
    with pytest.raises(Exception, match="another query committed"):
        run(spark, where, tmp_path / "one", tmp_path / "c1", WAYS[way])
