"""Sources as items of an environment, with a PostgreSQL upstream: made once, read by name, dropped."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ingest.pipeline.conftest import Shop, here, shop, shop_server

import persist
from persist import InvalidArgument
from persist.catalog import ObjectType, PrivilegeMissing, Retain, UniquenessViolation
from persist_ingest import (
    Location,
    Pipeline,
    PipelineOptions,
    Records,
    add_export,
    adopt,
    create,
    drop,
    drop_export,
    resnapshot,
)
from persist_ingest.location import client
from persist_ingest.pipeline import creation
from persist_ingest.pipeline.records import SourceExists

__all__ = ["here", "shop", "shop_server"]

OPTIONS = PipelineOptions(tick_ms=1, forget_ms=0, told_ms=0, commit_steps_late=0)
NAMES = ["persist.public.orders", "persist.public.shop"]


@pytest.fixture
def names(here: Location) -> Iterator[Any]:
    """An environment of the place."""
    environment = client(here).environment()
    client(here).sql("CREATE TABLE persist.public.mine (id bigint PRIMARY KEY)")
    yield environment
    environment.close()


@pytest.fixture
def upstream(shop: Shop) -> dict[str, str]:
    shop.run(
        "CREATE TABLE orders (id bigint PRIMARY KEY, what text)",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        "INSERT INTO orders VALUES (1, 'tea')",
    )
    return {"dsn": shop.dsn, "tables": "public.orders"}


def steps(pipeline: Pipeline, until: Callable[[], bool]) -> None:
    """Step after step until it is so: what is recorded of exports is looked at from time to time, not by each step."""
    for _ in range(600):
        pipeline.step()
        if until():
            return
        time.sleep(0.05)
    pytest.fail("it did not become so in half a minute of steps")


def items(names: Any) -> list[str]:
    fed = (ObjectType.SOURCE, ObjectType.SUBSOURCE)
    return sorted(str(each.name) for each in names.items() if each.kind in fed)


def rows(here: Location, sql: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client(here).sql(sql)[-1].to_arrow().to_pylist()
    return found


def slots(shop: Shop) -> int:
    ((count,),) = shop.select(
        "SELECT count(*) FROM pg_replication_slots WHERE NOT temporary AND database = current_database()"
    )
    return int(count)


def test_what_comes_upstream_is_selected_by_name(here: Location, names: Any, shop: Shop, upstream: Any) -> None:
    source = create(here, "shop", "postgres", upstream, interval_ms=1)
    assert items(names) == NAMES
    item, orders = names.resolve("shop", strict=True), names.resolve("orders", strict=True)
    assert (str(item.remap), str(item.timeline), item.claims_epoch) == (source.remap, "M", False)
    assert (str(orders.data), item.retain) == (source.exports["public.orders"], Retain())
    client(here).sql("CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM orders")
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        for n in range(2, 5):
            shop.run(f"INSERT INTO orders VALUES ({n}, 'cup {n}')")
            pipeline.step()
        told = shop.select("SELECT id, what FROM orders ORDER BY id")
        upper = client(here).recent_upper(source.exports["public.orders"]).time or 0
        found = rows(here, f"SELECT id, what FROM orders ORDER BY id AS OF {upper - 1}")
        assert [(row["id"], row["what"]) for row in found] == told


def test_a_creation_that_was_broken_off_is_finished_by_repeating_it(
    here: Location, names: Any, shop: Shop, upstream: Any
) -> None:
    first = creation.create(here, "shop", "postgres", upstream)
    assert items(names) == []
    heard: list[Any] = []
    assert create(here, "shop", "postgres", upstream, finished=heard.append) == first
    assert (heard, items(names), slots(shop)) == ([first], NAMES, 1)
    with pytest.raises(SourceExists):
        create(here, "shop", "postgres", upstream)
    assert adopt(here, "shop") == adopt(here, "shop") == "persist.public.shop"
    assert items(names) == NAMES


@pytest.mark.parametrize(
    ("type_name", "changed", "how"),
    [
        ("postgres", {"tables": "public.orders,public.others"}, {}),
        ("postgres", {"dsn": "host=nowhere.invalid"}, {}),
        ("postgres", {"typo": "1"}, {}),
        ("postgres", {"timeline": "own"}, {}),
        ("postgres", {}, {"interval_ms": 7}),
        ("loadgen", {}, {}),
    ],
)
def test_a_creation_that_asks_for_something_else_does_not_finish_an_earlier_one(
    here: Location, names: Any, shop: Shop, upstream: Any, type_name: str, changed: Any, how: Any
) -> None:
    first = creation.create(here, "shop", "postgres", upstream)
    with pytest.raises(SourceExists, match="other options"):
        create(here, "shop", type_name, {**upstream, **changed}, **how)
    assert (items(names), slots(shop)) == ([], 1)
    assert create(here, "shop", "postgres", {name.upper(): text for name, text in upstream.items()}) == first
    assert items(names) == NAMES
    drop(here, "shop")
    assert Records(client(here)).asked(first) is None


def test_a_refusal_leaves_nothing(here: Location, names: Any, shop: Shop, upstream: Any) -> None:
    with pytest.raises(UniquenessViolation):
        create(here, "mine", "postgres", upstream)
    assert (Records(client(here)).sources(), items(names), slots(shop)) == ({}, [], 0)


def test_without_an_environment_nothing_is_made(here: Location, shop: Shop, upstream: Any) -> None:
    create(here, "shop", "postgres", upstream)
    assert adopt(here, "shop") is None
    assert not client(here).environment().exists()
    drop(here, "shop")
    assert slots(shop) == 0


def test_dropping_refuses_while_something_depends_on_it(here: Location, names: Any, shop: Shop, upstream: Any) -> None:
    create(here, "shop", "postgres", upstream)
    client(here).sql("CREATE VIEW v AS SELECT what FROM orders")
    with pytest.raises(persist.UsageError, match="depend on this"):
        drop(here, "shop")
    assert (slots(shop), items(names), [*Records(client(here)).sources()]) == (1, NAMES, ["shop"])
    drop(here, "shop", cascade=True)
    assert (slots(shop), items(names), Records(client(here)).sources()) == (0, [], {})
    create(here, "shop", "postgres", upstream)
    assert items(names) == NAMES


@pytest.fixture
def second(here: Location) -> Iterator[Any]:
    """Another environment of the place."""
    client(here).sql("CREATE TABLE persist.public.other (id bigint)", environment="second")
    environment = client(here).environment("second")
    yield environment
    environment.close()


def test_what_is_another_environments_is_dropped_there_alone(
    here: Location, names: Any, second: Any, shop: Shop, upstream: Any
) -> None:
    source = create(here, "shop", "postgres", upstream, environment="second", interval_ms=1)
    shop.run("CREATE TABLE more (id int PRIMARY KEY)", "ALTER TABLE more REPLICA IDENTITY FULL")
    grown = add_export(here, "shop", "public.more")
    assert (items(names), items(second)) == ([], NAMES)
    ends: Any = (lambda: drop(here, "shop"), lambda: drop_export(here, "shop", "public.orders"))
    for end in ends:
        with pytest.raises(InvalidArgument, match="an environment holds this shard") as refused:
            end()
        assert "persist catalog leave" in refused.value.hint
    assert Records(client(here)).source("shop").exports == grown.exports
    assert (slots(shop), items(second), str(second.resolve("shop", strict=True).remap)) == (1, NAMES, source.remap)
    assert not any(client(here).inspect(each)["is_tombstone"] for each in grown.shards.values())
    drop(here, "shop", environment="second")
    assert (slots(shop), items(second), Records(client(here)).sources()) == (0, [], {})
    assert all(client(here).inspect(each)["is_tombstone"] for each in grown.shards.values())


def test_what_is_another_environments_too_is_not_given_up_here(
    here: Location, names: Any, shop: Shop, upstream: Any
) -> None:
    source = create(here, "shop", "postgres", upstream)
    # As earlier releases left it, which let two adopt one shard.
    hold = client(here).open_since("collections-" + "0" * 16, source.exports["public.orders"], purpose="collections")
    with pytest.raises(InvalidArgument, match="an environment holds this shard"):
        drop(here, "shop")
    assert (slots(shop), items(names), [*Records(client(here)).sources()]) == (1, NAMES, ["shop"])
    hold.expire()
    drop(here, "shop")
    assert (slots(shop), items(names), Records(client(here)).sources()) == (0, [], {})


def test_times_of_two_timelines_are_not_read_together(
    here: Location, names: Any, shop: Shop, upstream: Any, tmp_path: Path
) -> None:
    create(here, "shop", "postgres", upstream)
    log = tmp_path / "cdc"
    log.mkdir()
    progress = {"progress": {"lower": [0], "upper": [3], "counts": []}}
    (log / "0.jsonl").write_text(json.dumps(progress) + "\n")
    brought = create(here, "cdc", "cdcv2", {"path": str(log), "schema": "id bigint not null", "key": "id"})
    assert str(names.resolve("cdc", strict=True).timeline) == brought.timeline
    (changes,) = brought.exports
    with pytest.raises(persist.UsageError, match="timeline") as refused:
        rows(here, f"SELECT * FROM orders, {changes}")
    assert refused.value.reason == "MULTIPLE_TIMELINES"


def test_an_export_goes_with_its_item_unless_something_is_made_of_it(
    here: Location, names: Any, shop: Shop, upstream: dict[str, str]
) -> None:
    create(here, "shop", "postgres", upstream, interval_ms=1)
    shop.run("CREATE TABLE more (id int PRIMARY KEY)", "ALTER TABLE more REPLICA IDENTITY FULL")
    grown = add_export(here, "shop", "public.more")
    adopt(here, "shop")
    assert items(names) == sorted([*NAMES, "persist.public.more"])
    rows(here, "CREATE VIEW of_more AS SELECT id FROM more")
    with pytest.raises(persist.UsageError) as refused:
        drop_export(here, "shop", "public.more")
    assert refused.value.reason == "DEPENDENT_OBJECTS"
    assert Records(client(here)).source("shop").exports == grown.exports
    rows(here, "DROP VIEW of_more")
    assert set(drop_export(here, "shop", "public.more").exports) == {"public.orders"}
    assert items(names) == NAMES
    assert client(here).inspect(grown.exports["public.more"])["is_tombstone"]
    # It is the last one.
    with pytest.raises(InvalidArgument, match="one export at least"):
        drop_export(here, "shop", "public.orders")
    adopt(here, "shop")
    assert items(names) == NAMES


def test_a_column_that_is_added_upstream_is_in_sql_and_what_was_made_before_keeps_its_own(
    here: Location, names: Any, shop: Shop, upstream: Any
) -> None:
    # Beside another one, as the last table that runs stops its source.
    shop.run("CREATE TABLE other (id bigint PRIMARY KEY)", "ALTER TABLE other REPLICA IDENTITY FULL")
    create(here, "shop", "postgres", {**upstream, "tables": "public.orders,public.other"}, interval_ms=1)
    client(here).sql("CREATE VIEW old AS SELECT * FROM orders; CREATE CURSOR c FOR SUBSCRIBE orders")
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        shop.run("ALTER TABLE orders ADD COLUMN price int", "INSERT INTO orders VALUES (2, 'cup', 7)")
        pipeline.step()
        pipeline.step()
        pipeline.names.wait()
        assert rows(here, "SET isolation = serializable; SELECT * FROM orders ORDER BY id") == [
            {"id": 1, "what": "tea", "price": None},
            {"id": 2, "what": "cup", "price": 7},
        ]
        assert rows(here, "SET isolation = serializable; SELECT * FROM old ORDER BY id") == [
            {"id": 1, "what": "tea"},
            {"id": 2, "what": "cup"},
        ]
        # A renamed column is another one, and the one that it was stays, null from then on.
        shop.run("ALTER TABLE orders RENAME COLUMN what TO item")
        shop.run("INSERT INTO orders VALUES (3, 'pot', 9)")
        pipeline.step()
        resnapshot(here, "shop", "public.orders")
        now = [
            {"id": 1, "what": None, "price": None, "item": "tea"},
            {"id": 2, "what": None, "price": 7, "item": "cup"},
            {"id": 3, "what": None, "price": 9, "item": "pot"},
        ]
        ordered = "SET isolation = serializable; SELECT * FROM orders ORDER BY id"
        steps(pipeline, lambda: rows(here, ordered) == now)


def test_an_export_that_is_added_is_a_subsource(here: Location, names: Any, shop: Shop, upstream: Any) -> None:
    create(here, "shop", "postgres", upstream, interval_ms=1)
    client(here).sql("ALTER SOURCE shop RENAME TO store")
    shop.run(
        "CREATE TABLE customers (id bigint PRIMARY KEY)",
        "ALTER TABLE customers REPLICA IDENTITY FULL",
        "INSERT INTO customers VALUES (7)",
    )
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        add_export(here, "shop", "public.customers")
        # It is looked for from time to time, and read first.
        steps(pipeline, lambda: len(items(names)) == 3)
        assert items(names) == ["persist.public.customers", "persist.public.orders", "persist.public.store"]
        assert rows(here, "SET isolation = serializable; SELECT id FROM customers") == [{"id": 7}]
        assert names.resolve("customers", strict=True).fed_by == names.resolve("store", strict=True).id


def test_to_adopt_it_again_brings_an_item_up_to_date(here: Location, names: Any, shop: Shop, upstream: Any) -> None:
    source = create(here, "shop", "postgres", upstream, interval_ms=1)
    shard = source.exports["public.orders"]
    before = client(here).schema(shard)
    assert adopt(here, "shop") == "persist.public.shop"
    assert names.resolve("orders", strict=True).schema == before
    wider = persist.Schema(before.key, pa.schema([*before.val, pa.field("price", pa.int64())]))
    client(here).evolve_schema(shard, wider)
    client(here).sql("CREATE ROLE ann")
    with pytest.raises(PrivilegeMissing):
        adopt(here, "shop", role="ann")
    for _ in range(2):
        assert adopt(here, "shop") == "persist.public.shop"
        assert names.resolve("orders", strict=True).column_names == ("id", "what", "price")
        assert items(names) == NAMES


LEADS = """
import signal, sys
from persist_ingest.location import Location, client
the_client = client(Location(directory=sys.argv[1]))
the_client.sql("CREATE TABLE led (id bigint PRIMARY KEY)")
print("leads", flush=True)
signal.pause()
"""


def test_no_step_waits_for_a_leader_that_stands_still(here: Location, shop: Shop, upstream: Any) -> None:
    leader = subprocess.Popen([sys.executable, "-c", LEADS, str(here.directory)], stdout=subprocess.PIPE, text=True)
    try:
        assert leader.stdout is not None
        assert leader.stdout.readline() == "leads\n"
        source = create(here, "shop", "postgres", upstream, interval_ms=1)
        with Pipeline(here, "shop", options=OPTIONS) as pipeline:
            pipeline.step()
            pipeline.names.wait()
            leader.send_signal(signal.SIGSTOP)
            shop.run("ALTER TABLE orders ADD COLUMN price int", "INSERT INTO orders VALUES (2, 'cup', 7)")
            while not pipeline.names.is_under_way:
                pipeline.step()
            for number in range(3, 7):
                shop.run(f"INSERT INTO orders VALUES ({number}, 'pot', 7)")
                pipeline.step()
            # All of them while the first one's names were waited for.
            assert pipeline.names.is_under_way
            shard = source.exports["public.orders"]
            reader = client(here).open_reader(shard)
            there = reader.snapshot((client(here).recent_upper(shard).time or 0) - 1).to_arrow()
            assert {row["id"] for row in there.to_pylist()} >= {2, 3, 4, 5}
            leader.send_signal(signal.SIGCONT)
            pipeline.names.wait()
        assert "price" in rows(here, "SET isolation = serializable; SELECT * FROM orders")[0]
    finally:
        leader.kill()
        leader.wait()
