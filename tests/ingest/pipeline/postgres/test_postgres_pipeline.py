"""Tables of PostgreSQL through the whole pipeline: what comes out, what is released upstream, and what stops it."""

from collections import Counter
from typing import Any

import pytest
from ingest.pipeline.conftest import contents
from sure import put, sure

from persist import PersistError, ShardId
from persist.sources import Lsn, UpstreamLost
from persist_ingest import Location, Pipeline, PipelineOptions, Records, create, status
from persist_ingest.location import client
from persist_ingest.sources.port import SourceFailure, TableAltered

OPTIONS = PipelineOptions(tick_ms=1, forget_ms=0, told_ms=0, commit_steps_late=0)
ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text)"
ORDERS = "CREATE TABLE orders (item int, number int)"
DROP_SLOT = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
NAMES = {"items": "public.items", "orders": "public.orders"}


def begun(here: Location, shop: Any, *tables: str) -> Pipeline:
    for table in tables:
        shop.run(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    named = ",".join(NAMES[table] for table in tables)
    create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": named}, interval_ms=1)
    return Pipeline(here, "shop", options=OPTIONS)


def follows(here: Location, shop: Any, table: str) -> bool:
    return contents(here, "shop", NAMES[table]) == Counter(shop.select(f"SELECT * FROM {table}"))


def test_a_table_follows_whatever_happens_to_it(here: Location, shop: Any) -> None:
    shop.run(ITEMS, "INSERT INTO items SELECT n, 'item ' || n FROM generate_series(1, 500) n")
    with begun(here, shop, "items") as pipeline:
        assert follows(here, shop, "items"), "the snapshot"
        shop.run("UPDATE items SET name = 'new' WHERE id < 50", "DELETE FROM items WHERE id > 400")
        shop.run("UPDATE items SET id = id + 1000 WHERE id = 7")
        pipeline.step()
        assert follows(here, shop, "items"), "changes"
        shop.run("INSERT INTO items VALUES (9000, 'before')", "UPDATE items SET name = 'x' WHERE id = 60")
        shop.run("TRUNCATE items", "INSERT INTO items VALUES (1, 'after')", "INSERT INTO items VALUES (2, 'gone')")
        shop.run("BEGIN", "TRUNCATE items", "INSERT INTO items VALUES (3, 'last')", "COMMIT")
        pipeline.step()
        assert follows(here, shop, "items"), "truncations in the middle of a step"
        shop.run("ALTER TABLE items ADD COLUMN price int", "INSERT INTO items VALUES (4, 'priced', 12)")
        pipeline.step()
        assert follows(here, shop, "items"), "an added column"
        shop.run("UPDATE items SET price = 7 WHERE id = 3")
        pipeline.step()
        assert follows(here, shop, "items")


def test_a_transaction_lands_at_one_time_in_all_tables(here: Location, shop: Any) -> None:
    shop.run(ITEMS, ORDERS)
    with begun(here, shop, "items", "orders") as pipeline:
        for number in range(20):
            shop.run("BEGIN", f"INSERT INTO items VALUES ({number}, 'x')")
            shop.run(f"INSERT INTO orders VALUES ({number}, 1)", "COMMIT")
            if number % 3 == 0:
                pipeline.step()
        pipeline.step()
    the_client = client(here)
    times = []
    for export in NAMES.values():
        shard = Records(the_client).source("shop").shards[export]
        with the_client.open_reader(shard) as reader:
            since = reader.since.time or 0
            rows = reader.diffs([since + 1], the_client.recent_upper(shard)).to_arrow()
        times.append(dict(zip(rows.column(0).to_pylist(), rows["ts"].to_pylist(), strict=True)))
    assert times[0] == times[1]
    assert len(times[0]) == 20
    assert len(set(times[0].values())) > 3


def test_what_is_durable_is_let_go_upstream_and_nothing_more(here: Location, shop: Any) -> None:
    shop.run(ITEMS)
    slot = "SELECT confirmed_flush_lsn::text, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)"
    slot += " FROM pg_replication_slots WHERE database = current_database() AND NOT temporary"
    with begun(here, shop, "items") as pipeline:
        [(first, _)] = shop.select(slot)
        retained = []
        for number in range(6):
            shop.run(f"INSERT INTO items SELECT n, repeat('x', 500) FROM generate_series({number}000, {number}999) n")
            pipeline.step()
            told = client(here).minter().resumption(pipeline.source.remap_source, pipeline.source.shards)
            [(confirmed, kept)] = shop.select(slot)
            assert lsn(confirmed) <= sure(sure(told.source.offsets).bound(0)), "released before it was durable"
            retained.append(kept)
            pipeline._reader._advanced_at = pipeline._reader._logged_at = None  # type: ignore[union-attr]
        assert lsn(confirmed) > lsn(first)
        assert min(retained[2:]) < max(retained), "WAL is kept for ever"


def lsn(text: str) -> int:
    high, low = text.split("/")
    return Lsn(int(high, 16) << 32 | int(low, 16)).position


@pytest.mark.parametrize(
    ("trouble", "kind", "word"),
    [
        ([DROP_SLOT], UpstreamLost, "slot"),
        (["DROP TABLE items"], SourceFailure, "items"),
        (["ALTER TABLE items ALTER COLUMN id TYPE bigint", "INSERT INTO items VALUES (77, 'x')"], TableAltered, "id"),
        (["ALTER TABLE items DROP COLUMN name", "INSERT INTO items VALUES (77)"], TableAltered, "name"),
        (["ALTER PUBLICATION persist_shop DROP TABLE items"], TableAltered, "items"),
        (["ALTER TABLE items REPLICA IDENTITY DEFAULT", "UPDATE items SET name = 'y'"], SourceFailure, "items"),
    ],
    ids=["slot dropped", "table dropped", "type altered", "column dropped", "not published", "identity altered"],
)
def test_trouble_is_definite_and_told(
    here: Location, shop: Any, trouble: list[str], kind: type[PersistError], word: str
) -> None:
    shop.run(ITEMS, "INSERT INTO items VALUES (1, 'a')")
    pipeline = begun(here, shop, "items")
    pipeline.run(steps=2)
    before = contents(here, "shop", "public.items")
    shop.run(*trouble)
    with pytest.raises(kind) as caught:
        pipeline.run(steps=50)
    assert word in str(caught.value)
    told = status(here, "shop")
    assert told.state == "failed"
    assert kind.__name__ in told.error
    assert contents(here, "shop", "public.items") == before, "what was wrong left a trace"


def test_an_upstream_that_is_away_is_waited_for(here: Location, shop: Any) -> None:
    shop.run(ITEMS)
    begun(here, shop, "items").close()
    complaints: list[PersistError] = []

    def is_followed(step: Any) -> bool:
        return bool(complaints) and step.appended > 0

    with Pipeline(here, "shop", options=OPTIONS, complain=complaints.append) as pipeline:
        pipeline.step()
        shop.run("INSERT INTO items VALUES (1, 'a')")
        # Its sessions are ended as when the server restarts.
        shop.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'persist'")
        pipeline.run(until=is_followed)
    assert complaints
    assert follows(here, shop, "items")


def test_progress_is_a_collection_like_any_other(here: Location, shop: Any) -> None:
    shop.run(ITEMS)
    with begun(here, shop, "items") as pipeline:
        shop.run("INSERT INTO items VALUES (1, 'a')")
        step = pipeline.step()
        the_client = client(here)
        shard = ShardId.named("table", "shop_progress")
        with the_client.open_reader(shard) as reader:
            [row] = reader.snapshot(sure(the_client.recent_upper(shard).time) - 1).to_pylist()
        assert row["offset"] == step.frontier.bound(0)
        assert row["kind"] == "lsn"


def test_a_read_that_crashed_between_two_appends_is_finished_by_another(here: Location, shop: Any) -> None:
    shop.run(ITEMS, ORDERS)
    with begun(here, shop, "items", "orders") as first:
        first.step()
        shop.run("INSERT INTO items SELECT n, 'x' FROM generate_series(1, 50) n", "INSERT INTO orders VALUES (1, 1)")
        append = first._append

        def half(name: str, batches: list[Any], upper: Any) -> bool:
            if name == "public.orders":
                raise KeyboardInterrupt
            return append(name, batches, upper)

        put(first, "_append", half)
        with pytest.raises(KeyboardInterrupt):
            first.step()
    with Pipeline(here, "shop", options=OPTIONS) as second:
        step = second.step()
    assert step.reread == 50, "what was in flight, and no more"
    assert follows(here, shop, "items")
    assert follows(here, shop, "orders")
