"""``persist admin forget-applications`` as a person runs it."""

from pathlib import Path

import pyarrow as pa
import pytest

import persist as library
from persist.core.ids import ShardId
from persist.errors import OutcomeForgotten
from persist.settings import Settings

SHARD = ShardId.named("table", "events")
SCHEMA = library.Schema(key={"id": pa.int64()})


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A location whose one shard 600 applications wrote: more than one diff forgets."""
    location = tmp_path / "location"
    with library.embedded(location, settings=Settings(compaction=False)) as client:
        writer = client.open_writer(SHARD, schema=SCHEMA)
        for number in range(600):
            append(writer, f"job {number}")
    return location


def append(writer: library.WriteHandle, app_id: str, new_since: int = 0) -> library.Appended:
    transaction = library.Transaction(app_id=app_id, version=1, new_since=new_since)
    return writer.append_at_upper(pa.table({"id": [1]}), transaction=transaction)


def known(persist, location: Path) -> list[str]:
    return list(persist("shard", "inspect", "events", "--location", location, "--json").json["transactions"])


def test_those_that_committed_last_are_kept(persist, written):
    where = ("--location", written, "--shard", "events", "--keep", 3)
    dry = persist("admin", "forget-applications", *where)
    assert dry.code == 0, dry.err
    assert "597" in dry.out
    assert "--commit" in dry.err
    assert len(known(persist, written)) == 600
    done = persist("admin", "forget-applications", *where, "--commit", "--json")
    [row] = done.json["shards"]
    assert (done.code, row["forgotten"]) == (0, 597)
    assert known(persist, written) == ["job 597", "job 598", "job 599"]
    with library.embedded(written) as client:
        writer = client.open_writer(SHARD, schema=SCHEMA)
        assert append(writer, "job 599").already_committed
        with pytest.raises(OutcomeForgotten) as refused:
            append(writer, "job 0")
        assert int(refused.value.details["new_since"]) == row["new_since"]
        assert not append(writer, "job 600", new_since=row["new_since"]).already_committed
        reader = client.open_reader(SHARD)
        assert reader.snapshot().to_arrow()["diff"].to_pylist() == [601]
    again = persist("admin", "forget-applications", "job 600", *where[:4], "--commit", "--json")
    assert again.json["shards"][0]["forgotten"] == 1


def test_what_is_not_known_is_said_and_forgets_nothing(persist, written):
    where = ("--location", written, "--shard", "events", "--commit")
    mistyped = persist("admin", "forget-applications", "jobs 1", *where)
    assert mistyped.code == 2
    assert "no such application" in mistyped.err
    assert "inspect" in mistyped.err
    for wrong in ((), ("job 1", "--keep", 5), ("--keep", -1)):
        assert persist("admin", "forget-applications", *wrong, *where).code == 2
    assert len(known(persist, written)) == 600


@pytest.mark.parametrize("mode", ["wal", "direct"])
def test_a_table_is_read_and_written_whatever_applications_are_forgotten(persist, tmp_path, mode):
    """How far a log was copied into it is recorded like an application, and its rows may be in the log alone."""
    location = tmp_path / "location"
    with library.embedded(location) as client:
        table = client.table("t", schema=SCHEMA, mode=mode)
        shard = table.shard
        table.insert([{"id": 1}])
        assert len(table.snapshot().to_arrow()) == 1
        writer = client.open_writer(shard)
        upper = writer.upper.time or 0
        if mode == "direct":
            writer.append_at_upper(
                pa.table({"id": [7]}), not_before=upper, transaction=library.Transaction(app_id="job", version=1)
            )
        table.insert([{"id": 2}])  # with a log: in that only
    where = ("--location", location, "--shard", str(shard), "--commit")
    assert persist("admin", "forget-applications", *where, "--keep", 0).code == 0
    if mode == "wal":
        [kept] = library.embedded(location).inspect(shard)["transactions"]
        refused = persist("admin", "forget-applications", kept, *where)
        assert refused.code == 2
        assert "records of itself" in refused.err
    with library.embedded(location) as client:
        table = client.table("t", schema=SCHEMA, mode=mode)
        table.insert([{"id": 3}])
        found = table.snapshot().to_arrow().sort_by("id")["id"].to_pylist()
        assert found == ([1, 2, 3] if mode == "wal" else [1, 2, 3, 7])
