"""Columns that are called otherwise than upstream, in each type of source that has the option."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ingest.sources.fake_kafka import FakeCluster, Log, Message
from ingest.sources.suite import reached

from persist import InvalidArgument
from persist_ingest import Location, Pipeline, PipelineOptions, Records, create
from persist_ingest.location import client
from persist_ingest.sources.kafka.kind import KafkaType
from persist_ingest.sources.port import Changes, Upserts

OPTIONS = PipelineOptions(tick_ms=1, forget_ms=0, told_ms=0, commit_steps_late=0)
SCHEMA = "id bigint not null, ts bigint, name string"
RENAMED = "ts:moment,id:name,name:id"
ROW = {"id": 1, "ts": 5, "name": "x"}
WANTED = {"name": 1, "moment": 5, "id": "x"}


def lines(path: Path, *messages: Any) -> None:
    path.mkdir(exist_ok=True)
    (path / ".new").write_text("".join(json.dumps(each) + "\n" for each in messages))
    (path / ".new").rename(path / "a.json")


def of_files(folder: Path) -> tuple[str, dict[str, str]]:
    lines(folder / "rows", ROW)
    return "files", {"path": f"{folder}/rows", "format": "json"}


def of_updates(folder: Path) -> tuple[str, dict[str, str]]:
    update = {"data": ROW, "time": 5, "diff": 1}
    lines(
        folder / "updates",
        {"array": [update]},
        {"array": [update]},
        {"progress": {"lower": [0], "upper": [6], "counts": [{"time": 5, "count": 1}]}},
    )
    return "cdcv2", {"path": f"{folder}/updates"}


def of_transactions(folder: Path) -> tuple[str, dict[str, str]]:
    counted = [{"data_collection": "t", "event_count": 1}]
    lines(
        folder / "transactions",
        {"status": "BEGIN", "id": "1"},
        {"status": "END", "id": "1", "event_count": 1, "data_collections": counted},
    )
    lines(
        folder / "changes",
        {"op": "c", "before": None, "after": ROW, "transaction": {"id": "1", "data_collection_order": 1}},
    )
    paths = {"path": f"{folder}/changes", "transactionPath": f"{folder}/transactions"}
    return "debezium", {**paths, "dataCollection": "t"}


@pytest.mark.parametrize("kind", [of_files, of_updates, of_transactions])
def test_a_table_has_the_new_names(tmp_path: Path, kind: Callable[[Path], tuple[str, dict[str, str]]]) -> None:
    """Also where two change names, and where a shard has a column of that name itself; also in a second process."""
    here = Location(directory=str(tmp_path / "data"))
    type_name, options = kind(tmp_path)
    options = {**options, "schema": SCHEMA, "key": "id", "renameColumns": RENAMED}
    create(here, "feed", type_name, options, interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.run(until=lambda step: rows(here) != [])
    assert rows(here) == [WANTED]


def rows(here: Location) -> list[dict[str, Any]]:
    shard = Records(client(here)).source("feed").shards["rows"]
    upper = client(here).recent_upper(shard).time
    if not upper:
        return []
    with client(here).open_reader(shard) as reader:
        found = reader.snapshot(upper - 1).to_arrow()
    return [{name: row[name] for name in found.column_names[:-1]} for row in found.to_pylist()]


def made(**options: str) -> Any:
    log = Log()
    log.put(Message(b"k", json.dumps(ROW).encode()))
    cluster = FakeCluster(logs={0: log})
    kafka = KafkaType(lambda topic, group, settings: cluster)
    given = {"bootstrapServers": "nowhere:1", "topic": "t", "schema": SCHEMA, "key": "id", **options}
    with kafka.create(given, source="test") as beginning:
        definition = json.loads(json.dumps(beginning.definition))
        reader = kafka.open(definition, beginning.reader.exports())
    (task,) = reader.plan(beginning.bound, reached(reader), 1)
    (event,) = task.read()
    assert isinstance(event, Changes | Upserts)
    return event.rows.to_pylist()[0]


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"renameColumns": RENAMED}, WANTED),
        ({"renameColumns": "offset:at,ts:moment", "include": "offset"}, {"id": 1, "moment": 5, "name": "x", "at": 0}),
        (
            {"envelope": "upsert", "keyFormat": "text", "key": "who", "renameColumns": "who:id,id:number,ts:moment"},
            {"id": "k", "number": 1, "moment": 5, "name": "x"},
        ),
    ],
)
def test_columns_of_topics_of_keys_and_included_ones(more: dict[str, str], wanted: dict[str, Any]) -> None:
    assert made(**more) == wanted


@pytest.mark.parametrize(
    ("renames", "says"),
    [
        ("nmae:title,ts:t", r"not there.*did you mean name\?"),
        ("name:id,ts:t", "name of another one"),
        ("name:ID,ts:t", "name of another one"),
        ("name:a,ts:a", "two columns get"),
        ("name:a,name:b", "renamed twice"),
        ("name=a", "malformed"),
        ("name:", "malformed"),
        ("name:diff,ts:t", "diff"),
    ],
)
def test_names_that_are_unknown_or_taken_are_refused(renames: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        made(renameColumns=renames)
