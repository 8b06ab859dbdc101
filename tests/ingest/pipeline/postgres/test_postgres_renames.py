"""Columns of PostgreSQL tables that are called otherwise: by snapshot, by changes, and when a table comes anew."""

from collections import Counter
from typing import Any

import pytest
from ingest.pipeline.conftest import contents

from persist import InvalidArgument, PersistError
from persist_ingest import (
    Location,
    Pipeline,
    PipelineOptions,
    Records,
    add_export,
    create,
    drop_export,
    resnapshot,
    status,
)
from persist_ingest.location import client

OPTIONS = PipelineOptions(tick_ms=1, told_ms=0, commit_steps_late=0)
EXPORT = "public.items"
RENAMES = 'public.items.id:number, public.items.ts:moment,public.items."Old Name":name, public.items.name:label'


def fields(here: Location) -> list[str]:
    schema = client(here).schema(Records(client(here)).source("shop").exports[EXPORT])
    return [*schema.key.names, *schema.val.names]


@pytest.mark.parametrize("identity", ["FULL", "DEFAULT"])
def test_renamed_columns_keep_their_names_through_changes_and_anew(here: Location, shop: Any, identity: str) -> None:
    shop.run(
        "CREATE TABLE others (id int PRIMARY KEY)",
        'CREATE TABLE items (id int PRIMARY KEY, ts timestamptz, "Old Name" text, name text)',
        f"ALTER TABLE items REPLICA IDENTITY {identity}",
        "INSERT INTO items VALUES (1, '2026-01-01 00:00Z', 'a', 'x'), (2, NULL, 'b', 'y')",
    )
    create(
        here,
        "shop",
        "postgres",
        {"dsn": shop.dsn, "tables": f"{EXPORT}, public.others", "renameColumns": RENAMES},
        interval_ms=1,
    )
    assert fields(here) == ["number", "moment", "name", "label"]
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:

        def follows(columns: str) -> bool:
            pipeline.step()
            return contents(here, "shop", EXPORT) == Counter(shop.select(f"SELECT {columns} FROM items"))

        whole = 'id, ts, "Old Name", name'
        assert follows(whole)
        shop.run("UPDATE items SET name = 'z', id = 3 WHERE id = 1", "DELETE FROM items WHERE id = 2")
        shop.run("INSERT INTO items VALUES (4, now(), 'c', NULL)")
        assert follows(whole)
        # A column that is called like one that has its name from here is called otherwise, once the table is read anew.
        shop.run("ALTER TABLE items ADD COLUMN moment int", "UPDATE items SET moment = 7 WHERE id = 3")
        pipeline.step()
        assert status(here, "shop", ask_upstream=False).exports[EXPORT].state == "stalled"
        resnapshot(here, "shop", EXPORT)
        assert fields(here) == ["number", "moment", "name", "label", "_moment"]
        shop.run("UPDATE items SET moment = 8, ts = NULL WHERE id = 4")
        while not follows(f"{whole}, moment"):
            pass
        # The same when the table leaves the source, and comes back.
        drop_export(here, "shop", EXPORT)
        add_export(here, "shop", EXPORT)
        assert fields(here) == ["number", "moment", "name", "label", "_moment"]
        shop.run("INSERT INTO items VALUES (5, now(), 'd', 'e', 9)")
        while not follows(f"{whole}, moment"):
            pass


@pytest.mark.parametrize(
    ("renames", "says"),
    [
        ("public.items.nothing:a", "not read"),
        ("public.others.id:a", "not read"),
        ("public.items.id:ts", "collections have themselves"),
        ("public.items.id:NAME", "name of another one"),
        ("public.items.id:a,public.items.name:A", "name of another one"),
        ("public.items.id:a,public.items.id:b", "twice"),
        ("public.items.id", "malformed"),
    ],
)
def test_a_renaming_that_cannot_be_is_refused_before_anything_is_made(
    here: Location, shop: Any, renames: str, says: str
) -> None:
    shop.run("CREATE TABLE items (id int PRIMARY KEY, name text)", "CREATE TABLE others (id int PRIMARY KEY)")
    with pytest.raises(InvalidArgument, match=says):
        create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": EXPORT, "renameColumns": renames})
    assert shop.select("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]
    with pytest.raises(PersistError):
        Records(client(here)).source("shop")
