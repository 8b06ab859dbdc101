"""Names on the command line: the shard that every other door has under that name; errors show what was typed."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

import persist as library

SCHEMA = library.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
OLD = library.ShardId.named("persist.table", "direct", "M", "people")


def test_a_table_of_python_is_read_and_appended_to_by_its_name(persist, here, people):
    with library.embedded(here[1]) as client:
        client.table("people", schema=SCHEMA).upsert([{"id": 7, "name": "eve"}])
    assert persist("shard", "snapshot", "people", "--json", *here).lines == [{"id": 7, "name": "eve", "diff": 1}]
    assert "the existing shard people" in persist("shard", "append", "people", people, *here).err
    with library.embedded(here[1]) as client:
        assert len(client.table("people").snapshot().to_pylist()) == 3


def test_a_table_under_the_other_derivation_is_reached_by_its_name(persist, here):
    with library.embedded(here[1]) as client:
        client.table(OLD, schema=SCHEMA).upsert([{"id": 7, "name": "eve"}])
    assert len(persist("shard", "snapshot", "people", "--json", *here).lines) == 1
    assert persist("usage", "--shard", "people", "--json", *here).json["shards"][0]["shard"] == OLD


@pytest.mark.parametrize(
    "words",
    [
        ("shard", "snapshot", "people"),
        ("shard", "inspect", "people"),
        ("shard", "listen", "people"),
        ("shard", "append", "people", "FILE", "--key", "id"),
        ("shard", "finalize", "people", "--force", "--commit"),
        ("fsck", "--shard", "people"),
        ("usage", "--shard", "people"),
        ("admin", "compact", "--shard", "people", "--commit"),
        ("backup", "create", "BACKUP", "--shard", "people"),
    ],
    ids=" ".join,
)
def test_two_shards_of_one_name_are_both_listed_and_neither_is_taken(persist, here, people, tmp_path: Path, words):
    new = library.ShardId.for_name("people")
    with library.embedded(here[1]) as client:
        for shard in (OLD, new):
            client.open_writer(shard, schema=SCHEMA).append([(({"id": 1}, {"name": "a"}), 0, 1)], 1)
        before = [client.inspect(shard)["seqno"] for shard in (OLD, new)]
    placed = {"FILE": people, "BACKUP": f"file:{tmp_path}/backup"}
    refused = persist(*(placed.get(word, word) for word in words), *here)
    assert refused.code == 2, refused.out + refused.err
    assert all(shard in refused.err for shard in (OLD, new))
    assert "people" in refused.err
    with library.embedded(here[1]) as client:
        assert [client.inspect(shard)["seqno"] for shard in (OLD, new)] == before
    assert len(persist("shard", "snapshot", new, "--json", *here).lines) == 1


@pytest.mark.parametrize("words", [("snapshot",), ("inspect",), ("listen",), ("finalize",)], ids=" ".join)
def test_a_mistyped_name_is_shown_with_near_ones(persist, here, people, words):
    persist("shard", "append", "people", people, "--key", "id", *here)
    told = persist("shard", *words, "peolpe", *here)
    assert (told.code, "name=peolpe" in told.err, "did you mean people?" in told.err) == (2, True, True)
    if words == ("snapshot",):
        program = json.loads(persist("shard", *words, "peolpe", "--json", *here).err)
        assert program["details"] == {"name": "peolpe", "near": "people"}


def test_a_name_with_nothing_in_it_makes_no_shard(persist, begun, people):
    refused = persist("shard", "append", "", people, "--key", "id", *begun)
    assert (refused.code, "a shard has a name" in refused.err) == (2, True)
    assert persist("shard", "list", "--json", *begun).json == []


def test_an_item_is_written_by_none_of_its_former_names(persist, here, people):
    made = (
        "create table people (id bigint primary key, name text) with (mode = direct); create table logged (id bigint)"
    )
    source = "create source s from load-generator (generator = counter, messages = 3)"
    assert persist("sql", *here, f"{made}; alter table people rename to k2; alter table logged rename to l2").code == 0
    assert persist("sql", *here, source).code == 0
    (table,) = persist("source", "list", "--json", *here).json["sources"]
    shards = [f"s.{export}" for export in table["exports"]]
    assert shards
    for name, why in (("people", "k2"), ("logged", "l2"), *((each, "nothing else writes its rows") for each in shards)):
        refused = persist("shard", "append", name, people, *here)
        assert (refused.code, why in refused.err) == (2, True), (name, refused.err)
    assert persist("sql", *here, "--json", "select count(*) as n from k2").lines == [{"n": 0}]


def test_a_column_that_is_misspelled_is_named(persist, here, people):
    assert persist("shard", "append", "people", people, "--key", "id", *here).code == 0
    refused = persist("shard", "snapshot", "people", "--columns", "nam", *here)
    assert (refused.code, "did you mean name?" in refused.err) == (2, True), refused.err
