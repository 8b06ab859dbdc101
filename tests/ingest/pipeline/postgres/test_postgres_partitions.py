"""A partitioned table is read as one, whatever becomes of its partitions; what sends no rows stops it."""

from collections import Counter
from typing import Any

import pytest
from ingest.pipeline.conftest import contents

from persist_ingest import Location, Pipeline, PipelineOptions, create, resnapshot, status
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.sources.port import HeldUp, SourceFailure
from persist_ingest.sources.postgres import catalog

OPTIONS = PipelineOptions(tick_ms=1, told_ms=0, commit_steps_late=0)
EXPORT = "public.sales"


@pytest.fixture(autouse=True)
def looks_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)


def made(shop: Any) -> None:
    shop.run("CREATE TABLE sales (id int, day int, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)")
    shop.run("CREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM (0) TO (10)")
    # One whose columns are in another order, and one that is partitioned itself.
    shop.run("CREATE TABLE sales_2 (note text, day int NOT NULL, dropped int, id int NOT NULL)")
    shop.run("ALTER TABLE sales_2 DROP COLUMN dropped")
    shop.run("ALTER TABLE sales ATTACH PARTITION sales_2 FOR VALUES FROM (10) TO (20)")
    shop.run("CREATE TABLE sales_3 PARTITION OF sales FOR VALUES FROM (20) TO (40) PARTITION BY RANGE (day)")
    shop.run("CREATE TABLE sales_3a PARTITION OF sales_3 FOR VALUES FROM (20) TO (30)")
    shop.run("INSERT INTO sales SELECT i, i % 30, 'n' || i FROM generate_series(1, 90) i")
    shop.run("CREATE TABLE other (id int PRIMARY KEY)")


def begun(here: Location, shop: Any, **options: str) -> Pipeline:
    made(shop)
    tables = {"tables": f"{EXPORT},public.other", "setReplicaIdentity": "true"}
    create(here, "shop", "postgres", {"dsn": shop.dsn, **tables, **options}, interval_ms=1)
    pipeline = Pipeline(here, "shop", options=OPTIONS)
    pipeline.step()
    return pipeline


def follows(here: Location, shop: Any) -> bool:
    # Key columns first.
    return contents(here, "shop", EXPORT) == Counter(shop.select("SELECT * FROM sales"))


CHANGES = [
    ["UPDATE sales SET note = note || '.' WHERE id < 40", "DELETE FROM sales WHERE id = 5"],
    ["UPDATE sales SET day = day + 10 WHERE id = 3", "UPDATE sales SET day = 25 WHERE id = 4"],
    ["CREATE TABLE sales_4 PARTITION OF sales FOR VALUES FROM (40) TO (50)", "INSERT INTO sales VALUES (1, 45, 'x')"],
    ["UPDATE sales SET note = 'y' WHERE day = 45"],
    [
        "CREATE TABLE sales_3b PARTITION OF sales_3 FOR VALUES FROM (30) TO (40)",
        "INSERT INTO sales VALUES (1, 35, 'z')",
    ],
    ["CREATE TABLE sales_5 (LIKE sales)", "ALTER TABLE sales ATTACH PARTITION sales_5 DEFAULT"],
    ["INSERT INTO sales VALUES (1, 99, 'd')", "UPDATE sales SET note = 'e'"],
    ["VACUUM FULL sales_1", "VACUUM FULL sales_2", "UPDATE sales SET note = 'f' WHERE day < 3"],
    ["ALTER TABLE sales ADD COLUMN more int", "UPDATE sales SET more = 4 WHERE day < 15"],
    ["TRUNCATE sales", "INSERT INTO sales VALUES (7, 7, 'after', 1), (8, 18, 'after', 2)"],
    ["DELETE FROM sales WHERE id = 7"],
]


def test_a_partitioned_table_is_one_export_and_takes_new_partitions_in(here: Location, shop: Any) -> None:
    with begun(here, shop) as pipeline:
        assert set(status(here, "shop").exports) == {EXPORT, "public.other"}
        assert follows(here, shop), "the snapshot"
        for statements in CHANGES:
            shop.run(*statements)
            pipeline.step()
            pipeline.step()
            told = status(here, "shop").exports[EXPORT]
            assert told.state == "running", (statements, told)
            assert follows(here, shop), statements
    with Pipeline(here, "shop", options=OPTIONS) as again:
        shop.run("INSERT INTO sales VALUES (9, 9, 'again', 1)")
        again.step()
        assert follows(here, shop)


ATTACHED = [
    "BEGIN", "CREATE TABLE sales_9 (LIKE sales INCLUDING ALL)", "ALTER TABLE sales_9 REPLICA IDENTITY FULL",
    "INSERT INTO sales_9 VALUES (900, 95, 'x')",
    "ALTER TABLE sales ATTACH PARTITION sales_9 FOR VALUES FROM (90) TO (100)", "COMMIT",
]  # fmt: skip
SILENT = {
    "attached with rows": [
        "CREATE TABLE sales_4 (LIKE sales)", "INSERT INTO sales_4 VALUES (1, 45, 'x')",
        "ALTER TABLE sales ATTACH PARTITION sales_4 FOR VALUES FROM (40) TO (50)",
    ],
    "made, filled and attached at once": [
        "BEGIN", "CREATE TABLE sales_4 (LIKE sales)", "INSERT INTO sales_4 VALUES (1, 45, 'x')",
        "ALTER TABLE sales ATTACH PARTITION sales_4 FOR VALUES FROM (40) TO (50)", "COMMIT",
    ],
    "detached": ["ALTER TABLE sales DETACH PARTITION sales_2"],
    "detached, filled and attached": [
        "ALTER TABLE sales DETACH PARTITION sales_2", "DELETE FROM sales_2 WHERE id < 50",
        "ALTER TABLE sales ATTACH PARTITION sales_2 FOR VALUES FROM (10) TO (20)",
    ],
    "dropped": ["DROP TABLE sales_3"],
    "truncated alone": ["TRUNCATE sales_1"],
    "a default of old rows": ["ALTER TABLE sales ADD COLUMN more int DEFAULT 7"],
    "rewritten": ["ALTER TABLE sales ALTER note TYPE text USING upper(note)"],
    "an identity that was another for a while": [
        "ALTER TABLE sales_1 REPLICA IDENTITY DEFAULT", "DELETE FROM sales WHERE day = 3",
        "ALTER TABLE sales_1 REPLICA IDENTITY FULL",
    ],
    "attached with a row that was changed": [*ATTACHED, "UPDATE sales SET note = 'y' WHERE day = 95"],
    "attached with a row that went": [*ATTACHED, "DELETE FROM sales WHERE day = 95"],
    "attached with a row that was written anew": [*ATTACHED, "ALTER TABLE sales ALTER note TYPE varchar(80)"],
    "attached below another": [
        "CREATE TABLE sales_m (LIKE sales INCLUDING ALL) PARTITION BY RANGE (day)",
        "CREATE TABLE sales_ma PARTITION OF sales_m FOR VALUES FROM (90) TO (100)",
        "ALTER TABLE sales_ma REPLICA IDENTITY FULL", "INSERT INTO sales_m VALUES (900, 95, 'x')",
        "ALTER TABLE sales ATTACH PARTITION sales_m FOR VALUES FROM (90) TO (100)",
    ],
    "sent by its partitions": ["ALTER PUBLICATION persist_shop SET (publish_via_partition_root = false)"],
}  # fmt: skip


@pytest.mark.parametrize("kind", SILENT)
def test_what_sends_no_rows_stops_the_table_and_one_call_mends_it(here: Location, shop: Any, kind: str) -> None:
    with begun(here, shop) as pipeline:
        before = contents(here, "shop", EXPORT)
        shop.run(*SILENT[kind], "INSERT INTO sales (id, day, note) VALUES (1000, 1, 'n')")
        if kind == "sent by its partitions":
            with pytest.raises(SourceFailure):
                pipeline.step()
            return
        pipeline.step()
        told = status(here, "shop").exports
        assert told[EXPORT].state == "stalled"
        assert told["public.other"].state == "running"
        assert contents(here, "shop", EXPORT) == before
        resnapshot(here, "shop", EXPORT)
        shop.run("UPDATE sales SET note = 'again' WHERE id > 80")
        pipeline.step()
        pipeline.step()
        assert status(here, "shop").exports[EXPORT].state == "running"
        assert follows(here, shop)


@pytest.mark.parametrize("next", ["ALTER TABLE sales DROP COLUMN more", "DROP TABLE sales_1"])
def test_what_goes_while_it_is_looked_at_is_looked_at_again(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch, next: str
) -> None:
    with begun(here, shop) as pipeline:
        shop.run("ALTER TABLE sales ADD COLUMN more int", "VACUUM FULL sales_1", "INSERT INTO other VALUES (1)")
        todo, forms = [next], catalog.forms

        def then(*given: Any) -> Any:
            found = forms(*given)
            shop.run(*([todo.pop()] if todo else []))
            return found

        monkeypatch.setattr(catalog, "forms", then)
        with pytest.raises(HeldUp, match="looked at"):
            pipeline.step()
        assert not todo
        pipeline.step()
        assert contents(here, "shop", "public.other") == Counter([(1,)])
        told = status(here, "shop").exports[EXPORT]
        if told.state == "stalled":
            resnapshot(here, "shop", EXPORT)
            pipeline.step()
        assert follows(here, shop)


def test_a_new_partition_without_its_identity_stops_a_source_that_may_not_set_it(here: Location, shop: Any) -> None:
    made(shop)
    for table in ("sales", "sales_1", "sales_2", "sales_3", "sales_3a", "other"):
        shop.run(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": f"{EXPORT},public.other"}, interval_ms=1)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        shop.run("CREATE TABLE sales_4 PARTITION OF sales FOR VALUES FROM (40) TO (50)")
        pipeline.step()
        told = status(here, "shop").exports[EXPORT]
        assert told.state == "stalled"
        assert "ALTER TABLE" in told.hint
        assert "sales_4" in told.hint
        shop.run("ALTER TABLE sales_4 REPLICA IDENTITY FULL", "INSERT INTO sales VALUES (1, 45, 'x')")
        resnapshot(here, "shop", EXPORT)
        pipeline.step()
        pipeline.step()
        assert follows(here, shop)


def test_a_root_beside_its_partition_or_published_by_partitions_is_refused(here: Location, shop: Any) -> None:
    made(shop)
    shop.run("CREATE PUBLICATION parts FOR TABLE sales")
    both = {"dsn": shop.dsn, "tables": f"{EXPORT},public.sales_1", "setReplicaIdentity": "true"}
    with pytest.raises(SourceFailure, match="beside"):
        create(here, "shop", "postgres", both)
    parts = {"dsn": shop.dsn, "tables": EXPORT, "publication": "parts", "setReplicaIdentity": "true"}
    with pytest.raises(SourceFailure) as refused:
        create(here, "shop", "postgres", parts)
    assert "publish_via_partition_root" in refused.value.hint
