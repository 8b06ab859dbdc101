"""The audit of a table: a row for each commit that happened, and none for others, whichever process dies when."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st
from sure import sure

import persist
from persist import Determinate, Indeterminate, InvalidArgument, LocationError, ShardNotFound
from pyspark_persist import PersistTable
from pyspark_persist.audit import recording
from pyspark_persist.audit.entry import BEGUN, audit_shard
from pyspark_persist.options.names import WRITE
from pyspark_persist.options.parsing import parse_write
from pyspark_persist.write.commit import WriteCommit
from pyspark_persist.write.writing import BatchWriter, Write, transaction_of

Where = dict[str, str]
Options = dict[str, object]
Kept = Callable[[], list[dict[str, Any]]]


class Planned(RuntimeError):
    """What a test ends a process by."""


@pytest.fixture
def table(spark: Any, client: Any, where: Where) -> PersistTable:
    """A table with an audit, of rows 0 to 9, which was written before it had one."""
    schema = persist.Schema(key={"id": pa.int64()}, val={"n": pa.int64()})
    client.open_writer(where["shard"], schema=schema).append(
        [(({"id": key}, {"n": 0}), 5, 1) for key in range(10)], new_upper=6
    )
    made = PersistTable.forShard(spark, where["shard"], location=where["location"])
    assert made.startAudit() == made.startAudit() == audit_shard(where["shard"])
    return made


def frame_of(spark: Any, *keys: int) -> Any:
    return spark.createDataFrame([(key, key) for key in keys], "id long, n long")


@pytest.fixture
def kept(client: Any, where: Where) -> Kept:
    """The rows of the audit as they are stored, oldest first, each there once."""

    def read() -> list[dict[str, Any]]:
        shard = audit_shard(where["shard"])
        upper = client.recent_upper(shard).time
        with client.open_reader(shard) as reader:
            rows = reader.snapshot(upper - 1).to_pylist() if upper else []
        assert all(row["diff"] == 1 for row in rows)
        return sorted(rows, key=lambda row: row["began_at"])

    return read


def test_every_kind_of_commit_has_a_row_that_says_who_how_and_what(
    spark: Any, table: PersistTable, where: Where, tmp_path: Path
) -> None:
    frame_of(spark, 10).write.format("persist").mode("append").options(**where, userMetadata="load 7").save()
    table.append(frame_of(spark, 11), txnAppId="app", txnVersion=3)
    table.update({"n": "n + 1"}, "id < 4", userMetadata="ticket 12")
    table.merge(frame_of(spark, 3, 77), "id").whenMatchedDelete("source.n > 1").whenNotMatchedInsertAll().execute()
    table.delete("id = 1")
    table.delete("id = 99")  # finds nothing, commits nothing
    table.overwrite(frame_of(spark, 5), "id = 5")
    table.restore(sure(table.frontiers()[1].time) - 2)
    frame_of(spark, 8).write.format("persist").mode("overwrite").options(**where).save()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"id": 50, "n": 1}')
    stream = spark.readStream.schema("id long, n long").json(str(tmp_path / "in"))
    sink = stream.writeStream.format("persist").options(**where, checkpointLocation=str(tmp_path / "checkpoint"))
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination(120)
    rows = [row.asDict() for row in table.audit().collect()][::-1]
    operations = ["append", "append", "update", "merge", "delete", "overwrite", "restore", "overwrite"]
    assert [row["operation"] for row in rows] == [*operations, "streaming append"]
    assert {row["state"] for row in rows} == {"committed"}
    context = spark.sparkContext
    assert {(row["user"], row["application"]) for row in rows} == {(context.sparkUser(), context.applicationId)}
    assert {row["application_name"] for row in rows} == {"tests"}
    assert [row["user_metadata"] for row in rows[:3]] == ["load 7", None, "ticket 12"]
    assert (rows[1]["txn_app_id"], rows[1]["txn_version"]) == ("app", 3)
    assert [row["rows_updated"] for row in rows[:4]] == [None, None, 4, 0]
    assert (rows[3]["rows_deleted"], rows[3]["rows_inserted"]) == (1, 1)
    assert json.loads(rows[2]["parameters"]) == {"set": {"n": "n + 1"}, "where": "id < 4"}
    merged = json.loads(rows[3]["parameters"])
    assert merged["on"] == "id"
    assert merged["clauses"][0] == {"rows": "matched", "become": "deleted", "when": "source.n > 1"}
    streamed = json.loads(rows[-1]["parameters"])
    assert streamed == {"query": f"spark:{query.id}", "batch": 0}
    uppers = [row["upper"] for row in rows]
    assert uppers == sorted(uppers)
    assert uppers[-1] == table.frontiers()[1].time
    assert rows[2]["read_at"] == rows[1]["upper"] - 1


def planned(where: Where, **options: object) -> tuple[Write, list[Any]]:
    """A write of one row, up to its commit."""
    frame = st.StructType([st.StructField("id", st.LongType()), st.StructField("n", st.LongType())])
    given = {**where, **{name: str(each) for name, each in options.items()}}
    write = Write.plan(parse_write(given, WRITE), frame, overwrite=False)
    return write, [BatchWriter(write).write(iter([pa.RecordBatch.from_pydict({"id": [20], "n": [1]})]))]


def commit(write: Write, messages: list[Any]) -> Any:
    return write.commit(messages, transaction_of(write.options, messages))


@pytest.mark.usefixtures("table")
def test_commit_that_is_refused_has_no_row(where: Where, kept: Kept) -> None:
    write, messages = planned(where, expectedUpper=99, newUpper=100)
    with pytest.raises(persist.UsageError):
        commit(write, messages)
    assert kept() == []


@pytest.mark.usefixtures("table")
def test_commit_that_is_overtaken_for_ever_has_no_row(
    where: Where, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(self: WriteCommit) -> Any:
        raise Determinate("overtaken")

    monkeypatch.setattr(WriteCommit, "_commit", overtaken)
    with pytest.raises(Determinate):
        commit(*planned(where))
    assert kept() == []


@pytest.mark.parametrize("options", [{}, {"txnAppId": "app", "txnVersion": 1}], ids=str)
def test_commit_whose_writer_died_behind_it_is_settled_once(
    table: PersistTable, where: Where, kept: Kept, monkeypatch: pytest.MonkeyPatch, options: Options
) -> None:
    write, messages = planned(where, **options)
    original = WriteCommit._commit

    def dies(self: WriteCommit) -> Any:
        original(self)
        raise Planned("killed")

    monkeypatch.setattr(WriteCommit, "_commit", dies)
    with pytest.raises(Planned):
        commit(write, messages)
    monkeypatch.undo()
    assert [row["state"] for row in kept()] == ["begun"]
    # As Spark does that runs the commit again; and as another process does that only asks.
    assert not options or commit(write, messages).already_committed
    for _ in range(2):
        (row,) = table.audit().collect()
        assert (row["state"], row["upper"]) == ("committed", table.frontiers()[1].time)
    assert [row["state"] for row in kept()] == ["committed"]


def test_commit_whose_writer_died_before_it_stays_begun_and_its_repetition_has_a_row_of_its_own(
    table: PersistTable, where: Where, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, messages = planned(where, txnAppId="app", txnVersion=1)
    original = WriteCommit._commit

    def dies(self: WriteCommit) -> Any:
        raise Planned("killed")

    monkeypatch.setattr(WriteCommit, "_commit", dies)
    with pytest.raises(Planned):
        commit(write, messages)
    assert [row["state"] for row in table.audit().collect()] == ["begun"]
    monkeypatch.setattr(WriteCommit, "_commit", original)
    assert not commit(write, messages).already_committed
    # The one that did not happen is of the same commit: it goes once that is known to have happened.
    assert [row["state"] for row in table.audit().collect()] == ["committed"]
    assert [row["state"] for row in kept()] == ["committed"]


def test_commit_in_doubt_stays_begun_until_the_table_knows(
    table: PersistTable, where: Where, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, messages = planned(where)
    original = WriteCommit._commit

    def unanswered(self: WriteCommit) -> Any:
        original(self)
        raise Indeterminate("the answer was lost")

    monkeypatch.setattr(WriteCommit, "_commit", unanswered)
    with pytest.raises(Indeterminate):
        commit(write, messages)
    assert [row["state"] for row in kept()] == ["begun"]
    assert [row["state"] for row in table.audit().collect()] == ["committed"]


@pytest.mark.usefixtures("table")
def test_row_that_cannot_be_written_before_keeps_the_commit_from_happening(
    where: Where, client: Any, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, messages = planned(where)
    upper = client.recent_upper(where["shard"])

    def away(self: Any, changes: Any, *, step: str) -> None:
        raise Indeterminate("the store is away")

    monkeypatch.setattr(recording._Attempt, "put", away)
    with pytest.raises(LocationError):
        commit(write, messages)
    assert client.recent_upper(where["shard"]) == upper
    assert kept() == []


def test_row_that_cannot_be_made_final_does_not_make_the_commit_a_failure(
    table: PersistTable, where: Where, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, messages = planned(where)
    put = recording._Attempt.put

    def away(self: Any, changes: Any, *, step: str) -> None:
        if step != BEGUN:
            raise Indeterminate("the store is away")
        put(self, changes, step=step)

    monkeypatch.setattr(recording._Attempt, "put", away)
    assert commit(write, messages).rows == 1
    assert [row["state"] for row in kept()] == ["begun"]
    monkeypatch.undo()
    assert [row["state"] for row in table.audit().collect()] == ["committed"]


def test_metadata_that_nothing_keeps_is_refused_and_a_table_without_an_audit_says_so(
    spark: Any, client: Any, where: Where
) -> None:
    table = PersistTable.forShard(spark, where["shard"], location=where["location"])
    rows = frame_of(spark, 1)
    with pytest.raises(InvalidArgument, match="userMetadata") as refused:
        table.append(rows, keyColumns=["id"], userMetadata="x")
    assert "startAudit" in str(refused.value.hint)
    with pytest.raises(ShardNotFound, match="no audit"):
        table.audit()
    with pytest.raises(ShardNotFound):
        client.inspect(where["shard"])
    table.startAudit()
    table.append(rows, keyColumns=["id"], userMetadata="x")
    assert [row["user_metadata"] for row in table.audit().collect()] == ["x"]


def test_audit_that_was_ended_keeps_no_write(spark: Any, table: PersistTable, client: Any, where: Where) -> None:
    client.finalize(audit_shard(where["shard"]), force=True)
    table.append(frame_of(spark, 12))
    assert table.count() == 11
