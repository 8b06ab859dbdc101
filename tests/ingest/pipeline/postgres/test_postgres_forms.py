"""Tables of PostgreSQL whose form changes under a pipeline: what no message shows stops it before anything is wrong."""

import dataclasses
import json
from collections import Counter
from typing import Any

import pytest
from ingest.pipeline.conftest import contents

from persist_ingest import Location, Pipeline, PipelineOptions, Records, create, resnapshot, status
from persist_ingest.location import client
from persist_ingest.sources.port import SourceFailure, TableAltered

OPTIONS = PipelineOptions(tick_ms=1, told_ms=0, commit_steps_late=0)
EXPORT = "public.items"
MOVED = "UPDATE items SET id = id + 100"


def begun(here: Location, shop: Any, *more: str) -> Pipeline:
    shop.run("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    shop.run("CREATE TABLE items (id int PRIMARY KEY, name text, mood mood)", *more)
    shop.run("ALTER TABLE items REPLICA IDENTITY FULL", "INSERT INTO items VALUES (1, 'a', 'sad'), (2, 'b', 'ok')")
    create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": EXPORT}, interval_ms=1)
    pipeline = Pipeline(here, "shop", options=OPTIONS)
    pipeline.step()
    return pipeline


def follows(here: Location, shop: Any) -> bool:
    return contents(here, "shop", EXPORT) == Counter(shop.select("SELECT * FROM items"))


SILENT = {
    "an identity": ["ALTER TABLE items ADD COLUMN n int GENERATED ALWAYS AS IDENTITY"],
    "a default that varies, and is gone": [
        "ALTER TABLE items ADD COLUMN n int DEFAULT random() * 1000",
        "ALTER TABLE items ALTER n DROP DEFAULT",
    ],
    "a default that is kept": [
        "ALTER TABLE items ADD COLUMN n int DEFAULT 7", "ALTER TABLE items ALTER n DROP DEFAULT",
    ],
    "a default that was written, and is gone": [
        "ALTER TABLE items ADD COLUMN n int DEFAULT 7", "VACUUM FULL items", "ALTER TABLE items ALTER n DROP DEFAULT",
    ],
    "a value of an enum": ["ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"],
    "a value of an enum, there and back": [
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", MOVED, "ALTER TYPE mood RENAME VALUE 'blue' TO 'sad'",
    ],
    "values by an expression": ["ALTER TABLE items ALTER name TYPE text USING upper(name)"],
    "values by an expression, and moved": [
        "ALTER TABLE items ALTER name TYPE text USING upper(name)", "VACUUM FULL items",
        "ALTER TABLE items ALTER name SET STATISTICS 50",
    ],
    "a column dropped and added again": [
        "ALTER TABLE items DROP COLUMN name", "ALTER TABLE items ADD COLUMN name text",
    ],
    "a new column added twice": [
        "ALTER TABLE items ADD COLUMN n int", "UPDATE items SET n = 5", "ALTER TABLE items DROP COLUMN n",
        "ALTER TABLE items ADD COLUMN n int",
    ],
    "columns exchanged, for a while": [
        "ALTER TABLE items ADD COLUMN n text", "ALTER TABLE items RENAME COLUMN name TO x",
        "ALTER TABLE items RENAME COLUMN n TO name", "ALTER TABLE items RENAME COLUMN x TO n",
        "INSERT INTO items VALUES (7, 'n', 'ok', 'name')",
        "ALTER TABLE items RENAME COLUMN name TO x", "ALTER TABLE items RENAME COLUMN n TO name",
        "ALTER TABLE items RENAME COLUMN x TO n",
    ],
}  # fmt: skip


@pytest.mark.parametrize("silent", SILENT.values(), ids=SILENT)
def test_what_changes_rows_without_a_message_stops_before_anything_is_wrong(
    here: Location, shop: Any, silent: list[str]
) -> None:
    with begun(here, shop) as pipeline:
        before = contents(here, "shop", EXPORT)
        shop.run(*silent, "INSERT INTO items (id, name) VALUES (3, 'c')", MOVED)
        for _ in range(2):
            with pytest.raises(TableAltered) as refused:
                pipeline.run(steps=20)
            assert refused.value.details["export"] == EXPORT
            assert refused.value.details["column"] in {"n", "name", "mood"}
            assert refused.value.hint
    with pytest.raises(TableAltered), Pipeline(here, "shop", options=OPTIONS) as again:
        again.run(steps=2)
    assert contents(here, "shop", EXPORT) == before, "nothing of it, and no negative count"
    told = status(here, "shop")
    assert told.state == "failed"
    assert "TableAltered" in told.error


WITHIN = {
    "a label in an array": ("mood[]", "'{sad}'", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"),
    "a label in a range in a domain": ("span", "'[sad,ok]'", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"),
    "a label in a composite": ("pair", "ROW('sad', 1)", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"),
    "a composite in an array": ("pair[]", "ARRAY[ROW('sad', 1)::pair]", "ALTER TYPE pair ADD ATTRIBUTE c int"),
}


@pytest.mark.parametrize("kind", WITHIN)
def test_what_a_type_is_made_of_is_its_form(here: Location, shop: Any, kind: str) -> None:
    declared, value, change = WITHIN[kind]
    types = ["CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE TYPE pair AS (a mood, b int)"]
    types += ["CREATE TYPE moods AS RANGE (subtype = mood)", "CREATE DOMAIN span AS moods"]
    shop.run(*types, f"CREATE TABLE items (id int PRIMARY KEY, name text, v {declared})")
    shop.run("ALTER TABLE items REPLICA IDENTITY FULL", f"INSERT INTO items VALUES (1, 'a', {value})")
    create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": EXPORT}, interval_ms=1)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        shop.run(f"INSERT INTO items VALUES (2, 'b', {value})", MOVED)
        pipeline.step()
        before = contents(here, "shop", EXPORT)
        assert before == Counter(shop.select("SELECT id, name, v::text FROM items"))
        shop.run(change, MOVED)
        with pytest.raises(TableAltered):
            pipeline.step()
        assert contents(here, "shop", EXPORT) == before
        resnapshot(here, "shop", EXPORT)
        pipeline.step()
        pipeline.step()
        assert contents(here, "shop", EXPORT) == Counter(shop.select("SELECT id, name, v::text FROM items"))


def test_it_stops_although_no_row_came_afterwards(here: Location, shop: Any) -> None:
    with begun(here, shop) as pipeline:
        shop.run("ALTER TABLE items ALTER name TYPE text USING upper(name)")
        with pytest.raises(TableAltered):
            pipeline.step()
    assert "TableAltered" in status(here, "shop").upstream_error


def test_what_changes_no_row_that_was_read_goes_on(here: Location, shop: Any) -> None:
    changes = [
        ["VACUUM FULL items"],
        ["ALTER TABLE items ALTER name SET STATISTICS 50", "CLUSTER items USING items_pkey"],
        ["ALTER TABLE items ALTER name SET DEFAULT 'x'", "ALTER TABLE items ALTER name SET NOT NULL"],
        ["TRUNCATE items", "INSERT INTO items VALUES (5, 'e', 'ok')"],
        ["ALTER TABLE items ADD COLUMN price int"],
        ["ALTER TABLE items ALTER price SET DEFAULT 5"],
        ["ALTER TABLE items ADD COLUMN twice int GENERATED ALWAYS AS (id * 2) STORED"],
        ["ALTER TYPE mood ADD VALUE 'glad'", "INSERT INTO items VALUES (6, 'f', 'glad')"],
        ["ALTER TABLE items ADD COLUMN note varchar(5)", "ALTER TABLE items ALTER note TYPE varchar(9)"],
        ["ALTER TABLE items ADD COLUMN passing int", "ALTER TABLE items DROP COLUMN passing"],
    ]
    sent = "id, name, mood"
    begun(here, shop).close()
    for number, statements in enumerate(changes):
        shop.run(*statements)
        sent += ", price" if "price" in statements[0] and "ADD" in statements[0] else ""
        sent += ", note" if "note" in statements[0] else ""
        shop.run(f"INSERT INTO items (id, name) VALUES ({number + 100}, 'n')")
        shop.run("UPDATE items SET id = id + 1000 WHERE id > 50")
        with Pipeline(here, "shop", options=OPTIONS) as pipeline:
            pipeline.step()
            shop.run("UPDATE items SET name = name || '.' WHERE id > 50")
            pipeline.step()
        assert contents(here, "shop", EXPORT) == Counter(shop.select(f"SELECT {sent} FROM items")), statements


def test_a_default_from_before_the_source_may_be_written_into_the_rows(here: Location, shop: Any) -> None:
    """VACUUM FULL changes file and catalog then, as a rewrite by ALTER TABLE does: older rows distinguish them."""
    shop.run("CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items SELECT generate_series(1, 9)")
    shop.run("ALTER TABLE items ADD COLUMN name text DEFAULT 'x'", "ALTER TABLE items REPLICA IDENTITY FULL")
    create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": EXPORT}, interval_ms=1)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        shop.run("VACUUM FULL items", f"{MOVED} WHERE id > 5")
        pipeline.step()
        assert follows(here, shop)
        shop.run(MOVED)
        pipeline.step()
        # Now every row is newer than the first look, but not than the last one.
        shop.run("ALTER TABLE items ALTER name SET STATISTICS 7", "VACUUM FULL items")
        pipeline.step()
        # And newer than that one: the table of its large values is the same.
        shop.run(MOVED, "ALTER TABLE items ALTER name SET STATISTICS 8", "VACUUM FULL items")
        pipeline.step()
        shop.run(MOVED)
        pipeline.step()
        assert follows(here, shop)
        shop.run("ALTER TABLE items ALTER name TYPE text USING name || '!'")
        with pytest.raises(TableAltered, match="rewritten"):
            pipeline.step()


def test_what_was_learned_of_a_table_outlives_the_pipeline(here: Location, shop: Any) -> None:
    with begun(here, shop) as pipeline:
        shop.run("ALTER TABLE items ALTER name SET NOT NULL")
        pipeline.step()
    shop.run(MOVED, "VACUUM FULL items")
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        assert follows(here, shop)
    records = Records(client(here))
    kept = records.source("shop")
    [table] = kept.definition["tables"]
    [(file,)] = shop.select("SELECT pg_relation_filenode('items')::int8")
    assert table["form"]["file"] == file
    records.revise(dataclasses.replace(kept, generation=7, definition={}))
    assert records.source("shop") == kept, "another life of the source"


def test_a_definition_from_before_forms_goes_on_from_its_first_look(here: Location, shop: Any) -> None:
    begun(here, shop).close()
    records = Records(client(here))
    source = records.source("shop")
    old = json.loads(json.dumps(source.definition))
    old["format"] = 1
    for table in old["tables"]:
        del table["form"]
    records.revise(dataclasses.replace(source, definition=old))
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        shop.run(MOVED)
        pipeline.step()
        assert follows(here, shop)
        shop.run("ALTER TABLE items ALTER name TYPE text USING upper(name)")
        with pytest.raises(SourceFailure):
            pipeline.step()
