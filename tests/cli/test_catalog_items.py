"""Items of an environment on the command line: adopted, listed, found by name through every door, given back."""

import pyarrow as pa
import pytest

import persist as library
from persist.core.catalog.ddl.statements import CreateSchema, CreateTable, QualifiedName, Retain

ROWS = library.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
OLD = library.ShardId.named("persist.table", "direct", "M", "people")


@pytest.fixture
def location(here) -> str:
    """Of a directory with the table people."""
    with library.embedded(here[1]) as client:
        client.table("people", schema=ROWS).upsert([{"id": 7, "name": "eve"}])
    return here[1]


def test_a_shard_is_adopted_found_by_its_names_and_given_back(persist, here, location):
    assert persist("catalog", "items", *here).code != 0
    adopted = persist("catalog", "adopt", "people", "--json", *here).json
    assert adopted["name"] == "persist.public.people"
    assert adopted["shard"] == library.ShardId.for_name("people")
    (listed,) = persist("catalog", "items", "--json", *here).json
    assert listed == adopted
    for name in ("people", "public.people", "persist.public.people", adopted["shard"]):
        assert persist("shard", "snapshot", name, "--json", *here).lines == [{"id": 7, "name": "eve", "diff": 1}]
    shards = persist("shard", "list", "--json", *here).json
    assert [row["name"] for row in shards if row["shard"] == adopted["shard"]] == ["persist.public.people"]
    twice = persist("catalog", "adopt", "people", *here)
    assert (twice.code, "another object has this name" in twice.err) == (2, True)
    assert persist("catalog", "leave", "people", "--json", *here).json == adopted
    assert persist("catalog", "items", "--json", *here).json == []
    assert persist("shard", "snapshot", "people", "--json", *here).lines
    missing = persist("catalog", "leave", "people", *here)
    assert (missing.code, "no such" in missing.err) == (2, True)


def test_adopting_asks_which_shard_is_meant_and_then_the_name_is_that_one(persist, here, location):
    with library.embedded(here[1]) as client:
        client.open_writer(OLD, schema=ROWS).append([(({"id": 1}, {"name": "old"}), 0, 1)], 1)
    asked = persist("catalog", "adopt", "people", *here)
    assert asked.code == 2
    assert all(shard in asked.err for shard in (OLD, library.ShardId.for_name("people")))
    assert persist("catalog", "adopt", "people", "--shard", OLD, "--json", *here).json["shard"] == OLD
    assert persist("shard", "snapshot", "people", "--json", *here).lines == [{"id": 1, "name": "old", "diff": 1}]
    persist("catalog", "leave", "people", *here)
    assert persist("shard", "snapshot", "people", *here).code == 2


def test_an_item_is_found_by_name_in_python_and_never_mistaken_for_what_a_name_derives_to(here, location):
    with library.embedded(here[1]) as client:
        environment = client.environment()
        environment.execute(CreateSchema("sales"), CreateTable(QualifiedName("orders", "sales"), ROWS, mode="direct"))
        environment.close()
    with library.embedded(here[1]) as client:
        orders = client.table("sales.orders")
        orders.upsert([{"id": 1, "name": "new"}])
        assert client.named("persist.sales.orders") == orders.shard
        _, reader = client.open("sales.orders")
        assert reader.shard == orders.shard
        with pytest.raises(library.ShardNotFound) as refused:
            client.open_reader("sales.ordres")
        assert "persist.sales.orders" in refused.value.hint
        # What no item claims is what it was, and nothing is made by looking.
        assert client.named("people") == library.ShardId.for_name("people")
        before = set(client.list_shards())
        with pytest.raises(library.ShardNotFound):
            client.named("persist.public.nothing")
        assert set(client.list_shards()) == before


def test_a_table_of_sql_is_written_through_its_log_by_every_door(here, location):
    with library.embedded(here[1]) as client:
        with client.environment() as environment:
            environment.execute(CreateTable(QualifiedName("t"), ROWS, retain=Retain()))
        with pytest.raises(library.InvalidArgument, match="written through a log"):
            client.open_writer("t")
        with pytest.raises(library.InvalidArgument, match="another mode"):
            client.table("t")
        table = client.table("public.t", mode="wal")
        table.upsert([{"id": 1, "name": "a"}])
        assert table.snapshot().to_pylist() == [{"id": 1, "name": "a", "diff": 1}]


def test_rows_are_not_appended_past_a_log_by_the_id_of_its_table(persist, here, people):
    assert persist("sql", "CREATE TABLE t (id bigint); INSERT INTO t VALUES (7)", *here).code == 0
    shard = persist("catalog", "items", "--json", *here).json[0]["shard"]
    for name in ("t", shard):
        refused = persist("shard", "append", name, people, "--key", "id", *here)
        assert (refused.code, "persist.public.t" in refused.err, "through a log" in refused.err) == (2, True, True)
    assert persist("sql", "--csv", "SELECT id FROM t", *here).out.split() == ['"id"', "7"]


def test_looking_at_names_without_an_environment_makes_none(persist, here, location):
    before = persist("shard", "list", "--json", *here).json
    assert all("name" not in row for row in before)
    assert persist("shard", "snapshot", "people", "--json", *here).lines
    assert persist("shard", "snapshot", "poeple", *here).code == 2
    with library.embedded(here[1]) as client:
        assert client.item_names() == {}
        assert not client.environment().exists()
    after = persist("shard", "list", "--json", *here).json
    assert [row["shard"] for row in after] == [row["shard"] for row in before]


def test_the_shard_of_an_item_is_not_finalized_under_it(persist, here, location):
    assert persist("sql", "CREATE TABLE t (id int); INSERT INTO t VALUES (7); CREATE HOLD h ON t", *here).code == 0
    assert persist("catalog", "adopt", "people", *here).code == 0
    for name in ("t", "people", persist("catalog", "items", "--json", *here).json[0]["shard"]):
        for group in ("shard", "admin"):
            refused = persist(group, "finalize", name, "--force", "--commit", *here)
            assert (refused.code, "persist.public." in refused.err, "catalog leave" in refused.err) == (2, True, True)
    assert persist("sql", "--csv", "SELECT id FROM t", *here).out.split() == ['"id"', "7"]
    assert persist("catalog", "leave", "people", *here).code == 0
    assert persist("shard", "finalize", "people", "--force", "--commit", *here).code == 0


def test_the_shard_of_another_environment_is_not_finalized(persist, here, location):
    assert persist("catalog", "adopt", "people", "--environment", "second", *here).code == 0
    for more in ((), ("--commit",)):
        refused = persist("shard", "finalize", "people", "--force", *more, *here)
        assert (refused.code, "collections-" in refused.err, "catalog leave" in refused.err) == (2, True, True)
    assert persist("shard", "snapshot", "people", "--json", *here).lines
