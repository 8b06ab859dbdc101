"""A write that is refused, or whose tasks fail, leaves its shard as it was: no rows, no columns, no shard.

By the calls that Spark makes of a writer: no job runs here.
"""

import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st
from sure import sure

import persist
from persist import Determinate, ShardNotFound, UsageError
from persist.core.shard.commands import FenceWriters
from persist.runtime import system
from pyspark_persist.options.names import OPTIONS, SINK, WRITE
from pyspark_persist.options.parsing import parse_write
from pyspark_persist.spark_types import arrow_schema
from pyspark_persist.write.commit import WriteCommit
from pyspark_persist.write.writing import BatchWriter, StreamWriter, Write

Where = dict[str, str]
Options = Mapping[str, object]

PLAIN: tuple[str, ...] = ("id bigint", "name string")
WIDER = (*PLAIN, "more bigint")
KINDS = {"bigint": st.LongType(), "string": st.StringType(), "int": st.IntegerType(), "void": st.NullType()}
VALUES: dict[str, list[Any]] = {"bigint": [7], "int": [7], "string": ["a"], "void": [None]}


def frame_of(columns: Iterable[str]) -> st.StructType:
    """A DataFrame's schema: NAME TYPE each."""
    return st.StructType([st.StructField(name, KINDS[kind]) for name, kind in map(str.split, columns)])


def write(where: Where, options: Options, columns: Iterable[str] = PLAIN, *, overwrite: bool = False) -> None:
    """What Spark does for one row written by one task in one batch write."""
    frame = frame_of(columns)
    given = {**where, **{name: str(value) for name, value in options.items()}}
    writer = BatchWriter(Write.plan(parse_write(given, WRITE), frame, overwrite=overwrite))
    writer.commit([pickle.loads(pickle.dumps(writer)).write(iter([one_row(frame)]))])


def stream(where: Where, options: Options, columns: Iterable[str] = PLAIN) -> None:
    """What Spark does for one row written by one task in one micro-batch."""
    frame = frame_of(columns)
    given = {**where, **{name: str(value) for name, value in options.items()}}
    writer = StreamWriter(Write.plan(parse_write(given, SINK), frame, overwrite=False), "checkpoint")
    writer.commit([pickle.loads(pickle.dumps(writer)).write(iter([one_row(frame)]))], 0)


def one_row(frame: st.StructType) -> pa.RecordBatch:
    kinds = {kind: name for name, kind in KINDS.items()}
    data = [pa.array(VALUES[kinds[field.dataType]], arrow_schema(frame).field(field.name).type) for field in frame]
    return pa.RecordBatch.from_arrays(data, names=frame.fieldNames())


@pytest.fixture
def held(where: Where, client: Any) -> Where:
    """A shard that holds a row at 10 and ends at 11."""
    schema = persist.Schema(key={"id": pa.field("id", pa.int64(), nullable=False)}, val={"name": pa.string()})
    client.open_writer(where["shard"], schema=schema).append([(({"id": 1}, {"name": "a"}), 10, 1)], new_upper=11)
    return where


def kept(client: Any, where: Where) -> dict[str, Any]:
    """What a shard holds; nothing for the one that does not exist."""
    try:
        state = client.inspect(where["shard"])
    except ShardNotFound:
        return {}
    return {name: state[name] for name in ("since", "upper", "rows", "spine", "schemas", "transactions")}


REFUSED: dict[str, list[tuple[Options, tuple[str, ...]]]] = {
    "location": [({"endpoint": "localhost:1"}, PLAIN)],
    "endpoint": [({"endpoint": "localhost:1", "consensus": "sqlite:x"}, PLAIN)],
    "blob": [({"blob": "nonsense://", "consensus": "sqlite:x"}, PLAIN)],
    "consensus": [({"consensus": "sqlite:x"}, PLAIN)],
    "shard": [({"shard": "nonsense"}, PLAIN)],
    "table": [({"table": "t"}, PLAIN), ({"table": "parts"}, PLAIN)],
    "path": [({"path": "t"}, PLAIN)],
    "timeoutMs": [({"timeoutMs": 0}, PLAIN)],
    "commitTime": [
        ({"commitTime": -1}, PLAIN),
        ({"commitTime": 3}, PLAIN),
        ({"commitTime": 3, "mergeSchema": "true"}, WIDER),
        ({"commitTime": 3, "txnAppId": "a", "txnVersion": 1, "mergeSchema": "true"}, WIDER),
        ({"commitTime": 30, "mergeSchema": "true"}, (*WIDER, "_ts bigint")),
        ({"commitTime": 3, "expectedUpper": 11}, PLAIN),
    ],
    "expectedUpper": [
        ({"expectedUpper": 5, "newUpper": 20, "mergeSchema": "true"}, WIDER),
        ({"expectedUpper": 15, "newUpper": 20, "mergeSchema": "true"}, WIDER),
        ({"expectedUpper": 5, "newUpper": 20, "txnAppId": "a", "txnVersion": 1, "mergeSchema": "true"}, WIDER),
        ({"expectedUpper": 11, "newUpper": 20, "mergeSchema": "true"}, (*WIDER, "_diff string")),
    ],
    "newUpper": [({"newUpper": 20}, PLAIN), ({"expectedUpper": 11, "newUpper": 11}, PLAIN)],
    "txnAppId": [({"txnAppId": "a"}, PLAIN)],
    "txnVersion": [({"txnVersion": 1}, PLAIN), ({"txnAppId": "a", "txnVersion": "x"}, PLAIN)],
    "txnNewSince": [
        ({"txnNewSince": 5, "commitTime": 20}, PLAIN),
        ({"txnNewSince": "x", "txnAppId": "a", "txnVersion": 1}, PLAIN),
    ],
    "keyColumns": [({"keyColumns": "nope", "mergeSchema": "true"}, ("name string", "more bigint"))],
    "userMetadata": [({"userMetadata": "x" * 65_537}, PLAIN), ({"userMetadata": "x", "mergeSchema": "true"}, WIDER)],
    "mergeSchema": [
        ({"mergeSchema": "maybe"}, WIDER),
        ({"mergeSchema": "true"}, ("name string", "more bigint")),
        ({"mergeSchema": "true"}, ("id bigint", "name int", "more bigint")),
        ({"mergeSchema": "true"}, (*WIDER, "MORE bigint")),
        ({"mergeSchema": "true"}, (*WIDER, "_commit_version bigint")),
        ({"mergeSchema": "true"}, (*WIDER, "nothing void")),
        ({"mergeSchema": "true"}, (*WIDER, "_ts string")),
    ],
}
CASES = [(options, columns) for cases in REFUSED.values() for options, columns in cases]
ONLY_BATCH = {"commitTime", "expectedUpper", "newUpper", "txnAppId", "txnVersion"}


def test_every_option_of_a_write_has_a_refusal_here() -> None:
    assert set(REFUSED) == {option.name for option in OPTIONS if option.uses & {WRITE, SINK}}


@pytest.mark.parametrize(("options", "columns"), CASES, ids=str)
def test_refused_batch_write_changes_nothing(
    held: Where, client: Any, options: Options, columns: tuple[str, ...]
) -> None:
    before = kept(client, held)
    with pytest.raises(UsageError):
        write(held, options, columns)
    assert kept(client, held) == before


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({"keyColumns": "nope"}, PLAIN),
        ({"keyColumns": "id,ID"}, PLAIN),
        ({"keyColumns": "id"}, (*PLAIN, "Name string")),
        ({"keyColumns": "id"}, (*PLAIN, "nothing void")),
        ({"keyColumns": "id"}, (*PLAIN, "_ts string")),
        ({"keyColumns": "id"}, (*PLAIN, "_change_type string")),
        ({"keyColumns": "id", "commitTime": 3}, (*PLAIN, "_ts bigint")),
        ({"keyColumns": "id", "expectedUpper": 5, "newUpper": 9}, PLAIN),
        ({}, PLAIN),
    ],
    ids=str,
)
def test_refused_first_write_makes_no_shard(
    where: Where, client: Any, options: Options, columns: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError):
        write(where, options, columns)
    assert kept(client, where) == {}


@pytest.mark.parametrize(
    ("options", "columns"),
    [case for case in CASES if not ONLY_BATCH & set(case[0])],
    ids=str,
)
def test_refused_micro_batch_changes_nothing(
    held: Where, client: Any, options: Options, columns: tuple[str, ...]
) -> None:
    before = kept(client, held)
    with pytest.raises(UsageError):
        stream(held, options, columns)
    assert kept(client, held) == before


def test_overwrite_that_is_refused_changes_nothing(held: Where, client: Any) -> None:
    before = kept(client, held)
    with pytest.raises(UsageError, match="happens at one time"):
        write(held, {"mergeSchema": "true"}, (*WIDER, "_ts bigint"), overwrite=True)
    with pytest.raises(UsageError, match="complete already"):
        write(held, {"mergeSchema": "true", "commitTime": 4}, WIDER, overwrite=True)
    assert kept(client, held) == before


@pytest.mark.parametrize("nulls", [{"id": [None]}, {"_diff": [None]}, {"_ts": [None]}], ids=str)
def test_write_whose_task_fails_changes_nothing(held: Where, client: Any, nulls: dict[str, list[Any]]) -> None:
    frame = frame_of((*WIDER, "_ts bigint", "_diff bigint"))
    before = kept(client, held)
    options = parse_write({**held, "mergeSchema": "true"}, WRITE)
    planned = Write.plan(options, frame, overwrite=False)
    data = {"id": [2], "name": ["b"], "more": [1], "_ts": [20], "_diff": [1]} | nulls
    with pytest.raises(UsageError) as refused:
        planned.write(iter([pa.RecordBatch.from_pydict(data, schema=arrow_schema(frame))]))
    (name,) = nulls
    assert refused.value.details["column"] == name
    assert refused.value.details["nulls"] == "1"
    assert "declare" not in str(refused.value.hint)
    assert kept(client, held) == before


def test_first_write_whose_tasks_fail_makes_no_shard(where: Where, client: Any) -> None:
    planned = Write.plan(parse_write({**where, "keyColumns": "id"}, WRITE), frame_of(PLAIN), overwrite=False)
    planned.write(iter([one_row(frame_of(PLAIN))]))
    assert kept(client, where) == {}


def test_refused_write_makes_no_location(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ShardNotFound, match="keyColumns"):
        write({"location": str(missing), "table": "t"}, {})
    assert not missing.exists()
    write({"location": str(missing), "table": "t"}, {"keyColumns": "id"})
    with persist.embedded(missing, create=False) as client:
        assert len(client.list_shards()) == 1


def test_shard_whose_maker_was_stopped_before_it_said_what_it_holds_is_written_all_the_same(
    where: Where, client: Any, contents: Any
) -> None:
    loop, core = client._loop, client._inner
    loop.run(core._location.shards.open(persist.ShardId.parse(where["shard"]), create=True, timeout=30))
    with pytest.raises(ShardNotFound, match="keyColumns"):
        write(where, {})
    write(where, {"keyColumns": "id"})
    assert contents(where) == [(7, "a", 1)]


def test_late_commit_time_with_a_transaction_is_refused_unless_that_very_write_happened(
    held: Where, client: Any
) -> None:
    options = {"commitTime": 20, "txnAppId": "app", "txnVersion": 1}
    write(held, options)
    write(held, options)
    assert client.inspect(held["shard"])["rows"] == 2
    with pytest.raises(persist.InvalidBounds, match="complete already"):
        write(held, options | {"txnVersion": 2})
    assert client.recent_upper(held["shard"]) == persist.Antichain.of(21)


def test_writes_that_add_the_same_column_at_once_both_happen(held: Where, client: Any) -> None:
    frame = frame_of(WIDER)
    options = parse_write({**held, "mergeSchema": "true"}, WRITE)
    plans = [Write.plan(options, frame, overwrite=False) for _ in range(2)]
    outputs = [plan.write(iter([one_row(frame)])) for plan in plans]
    for plan, output in zip(plans, outputs, strict=True):
        plan.commit([output], None)
    assert client.schema(held["shard"]).val.names == ["name", "more"]
    assert client.inspect(held["shard"])["rows"] == 3


def test_write_that_finds_other_new_columns_at_its_commit_is_refused(held: Where, client: Any) -> None:
    options = parse_write({**held, "mergeSchema": "true"}, WRITE)
    plan = Write.plan(options, frame_of((*PLAIN, "one bigint")), overwrite=False)
    output = plan.write(iter([one_row(frame_of((*PLAIN, "one bigint")))]))
    write(held, {"mergeSchema": "true"}, (*PLAIN, "other bigint"))
    before = kept(client, held)
    with pytest.raises(persist.SchemaMismatch, match="run it again"):
        plan.commit([output], None)
    assert kept(client, held) == before


def test_overwrite_that_finds_a_new_column_at_its_commit_takes_everything_back(
    held: Where, client: Any, contents: Any
) -> None:
    plan = Write.plan(parse_write(held, WRITE), frame_of(PLAIN), overwrite=True)
    output = plan.write(iter([one_row(frame_of(PLAIN))]))
    write(held, {"mergeSchema": "true"}, (*PLAIN, "other bigint"))
    plan.commit([output], None)
    assert contents(held) == [(7, "a", None, 1)]


def test_micro_batches_planned_before_there_was_a_shard_each_happen_once(where: Where, client: Any) -> None:
    frame = frame_of(PLAIN)
    options = parse_write({**where, "keyColumns": "id"}, SINK)
    writer = StreamWriter(Write.plan(options, frame, overwrite=False), "checkpoint")
    writer.commit([], 0)
    assert kept(client, where) == {}
    for batch in (1, 1, 2, 2):
        writer.commit([pickle.loads(pickle.dumps(writer)).write(iter([one_row(frame)]))], batch)
    with pytest.raises(persist.InvalidArgument, match="a later version was committed"):
        writer.commit([pickle.loads(pickle.dumps(writer)).write(iter([one_row(frame)]))], 1)
    assert client.inspect(where["shard"])["rows"] == 2


def test_write_after_its_writer_was_fenced_off_is_planned_under_a_new_one(
    where: Where, held: Where, client: Any
) -> None:
    other = {**where, "shard": str(persist.ShardId.new())}
    write(other, {"keyColumns": "id"})
    known = Write.plan(parse_write(other, WRITE), frame_of(PLAIN), overwrite=False)
    loop, core = client._loop, client._inner
    command = FenceWriters(born_before_ms=system().now_ms())
    loop.run(core._location.shards.apply(persist.ShardId.parse(held["shard"]), command, timeout=30))
    assert known.writer_id != Write.plan(parse_write(held, WRITE), frame_of(PLAIN), overwrite=False).writer_id


class Overtaken(WriteCommit):
    """A commit before each of whose attempts another writer moves the shard's upper."""

    def _append(self, writer: Any, batches: list[Any], placement: Any) -> Any:
        rival = self._target.client().open_writer(self._target.shard_id)
        upper = sure(rival.upper.time)
        assert rival.compare_and_append([], upper, upper + 1).upper.time == upper + 1
        return super()._append(writer, batches, placement)


def test_commit_that_is_always_overtaken_certainly_did_not_happen(
    held: Where, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_persist.write.commit.ATTEMPTS", 5)
    frame = frame_of(PLAIN)
    planned = Write.plan(parse_write(held, WRITE), frame, overwrite=False)
    output = planned.write(iter([one_row(frame)]))
    with pytest.raises(Determinate, match="moved at every attempt"):
        Overtaken(planned, output.writer_id, [output.prepared], None).run()
    assert client.inspect(held["shard"])["rows"] == 1
