"""Columns of MariaDB's tables that are called otherwise: by snapshot, by changes, and when a table comes anew."""

import pytest
from ingest.mysql.conftest import Shop

from persist import InvalidArgument, PersistError
from persist_ingest import Location, Pipeline, add_export, create, drop_export, resnapshot, status
from persist_ingest.location import client
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.pipeline.records import Records


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)


def renames(shop: Shop) -> str:
    pairs = ("id:number", "ts:moment", "`Old Name`:name", "name:label")
    return ", ".join(f"{shop.export('items')}.{each}" for each in pairs)


def fields(here: Location, shop: Shop) -> list[str]:
    schema = client(here).schema(Records(client(here)).source("shop").exports[shop.export("items")])
    return [*schema.key.names, *schema.val.names]


def follows(here: Location, shop: Shop, pipeline: Pipeline) -> bool:
    """Within some steps, as what others recorded is seen after one."""
    for _ in range(5):
        pipeline.step()
        if shop.there(here, "items") == shop.rows("items"):
            return True
    return False


def test_renamed_columns_keep_their_names_through_changes_and_anew(here: Location, shop: Shop) -> None:
    shop.run(
        "CREATE TABLE others (id int PRIMARY KEY)",
        "CREATE TABLE items (id int PRIMARY KEY, ts datetime, `Old Name` text, name text)",
        "INSERT INTO items VALUES (1, '2026-01-01', 'a', 'x'), (2, NULL, 'b', 'y')",
    )
    with shop.source(here, "items", "others", renameColumns=renames(shop)) as pipeline:
        assert fields(here, shop) == ["number", "moment", "name", "label"]
        assert follows(here, shop, pipeline)
        shop.run("UPDATE items SET name = 'z', id = 3 WHERE id = 1", "DELETE FROM items WHERE id = 2")
        shop.run("INSERT INTO items VALUES (4, '2026-02-02', 'c', NULL)")
        assert follows(here, shop, pipeline)
        # A column that is called like one that has its name from here is called otherwise, once the table is read anew.
        shop.run("ALTER TABLE items ADD COLUMN moment int", "UPDATE items SET moment = 7 WHERE id = 3")
        pipeline.step()
        told = status(here, "shop", ask_upstream=False).exports[shop.export("items")]
        assert told.state == "stalled"
        assert "called as another" in told.error
        resnapshot(here, "shop", shop.export("items"))
        assert fields(here, shop) == ["number", "moment", "name", "label", "_moment"]
        shop.run("UPDATE items SET moment = 8, ts = NULL WHERE id = 4")
        assert follows(here, shop, pipeline)
        # The same when the table leaves the source, and comes back.
        drop_export(here, "shop", shop.export("items"))
        add_export(here, "shop", shop.export("items"))
        assert fields(here, shop) == ["number", "moment", "name", "label", "_moment"]
        shop.run("INSERT INTO items VALUES (5, '2026-03-03', 'd', 'e', 9)")
        assert follows(here, shop, pipeline)


def test_a_column_that_comes_is_never_taken_for_another(here: Location, shop: Shop) -> None:
    # A collection calls a column ts otherwise: as this one is called.
    shop.run("CREATE TABLE items (id int PRIMARY KEY, _ts int)", "INSERT INTO items VALUES (1, 1)")
    shop.run("CREATE TABLE others (id int PRIMARY KEY)")
    with shop.source(here, "items", "others") as pipeline:
        assert follows(here, shop, pipeline)
        shop.run("ALTER TABLE items ADD COLUMN ts int", "INSERT INTO items VALUES (2, 2, 3)")
        pipeline.step()
        assert status(here, "shop", ask_upstream=False).exports[shop.export("items")].state == "stalled"
        resnapshot(here, "shop", shop.export("items"))
        assert follows(here, shop, pipeline)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("items.nothing:a", "not read"),
        ("others.id:a", "not read"),
        ("items.id:ts", "collections have themselves"),
        ("items.id:NAME", "name of another one"),
        ("items.id:a,items.id:b", "twice"),
        ("items.id", "malformed"),
    ],
)
def test_a_renaming_that_cannot_be_is_refused(here: Location, shop: Shop, given: str, says: str) -> None:
    shop.run("CREATE TABLE items (id int PRIMARY KEY, name text)", "CREATE TABLE others (id int PRIMARY KEY)")
    named = ",".join(shop.export(each) for each in given.split(","))
    options = {**shop.options, "tables": shop.export("items"), "renameColumns": named}
    with pytest.raises(InvalidArgument, match=says):
        create(here, "shop", "mysql", options)
    with pytest.raises(PersistError):
        Records(client(here)).source("shop")
