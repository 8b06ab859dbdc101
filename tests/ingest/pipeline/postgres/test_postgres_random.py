"""Random migrations and rows between steps of pipelines: the export is what SELECT says, or the source has stopped."""

import os
import random
from collections import Counter
from typing import Any

from ingest.pipeline.conftest import contents

from persist_ingest import Location, Pipeline, PipelineOptions, create, drop
from persist_ingest.pipeline.reporting.status import status
from persist_ingest.sources.port import TableAltered

ROUNDS = int(os.environ.get("PERSIST_FORM_ROUNDS", "12"))
OPTIONS = PipelineOptions(tick_ms=1, told_ms=10**9, commit_steps_late=0)
EXPORT = "public.items"

ROWS = [
    "INSERT INTO items (id, name) VALUES (nextval('ids'), 'new')",
    "UPDATE items SET id = nextval('ids')",
    "UPDATE items SET name = name || '.' WHERE id % 2 = 0",
    "DELETE FROM items WHERE id = (SELECT min(id) FROM items)",
    "INSERT INTO items (id, name, mood) VALUES (nextval('ids'), 'm', (enum_range(NULL::mood))[1])",
]
HARMLESS = [
    "VACUUM FULL items",
    "CLUSTER items USING items_pkey",
    "TRUNCATE items",
    "ALTER TABLE items ALTER name SET STATISTICS {number}",
    "ALTER TABLE items ALTER name SET DEFAULT 'd{number}'",
    "ALTER TABLE items ADD COLUMN c{number} int",
    "ALTER TABLE items ADD COLUMN g{number} int GENERATED ALWAYS AS (id + {number}) STORED",
    "ALTER TYPE mood ADD VALUE 'v{number}'",
]
SILENT = [
    "ALTER TABLE items ADD COLUMN c{number} int GENERATED ALWAYS AS IDENTITY",
    "ALTER TABLE items ADD COLUMN c{number} int DEFAULT 7",
    "ALTER TABLE items ADD COLUMN c{number} int DEFAULT random() * 100",
    "ALTER TABLE items ALTER name TYPE text USING upper(name) || '{number}'",
    "ALTER TABLE items DROP COLUMN name, ADD COLUMN name text",
    "DO $$ BEGIN EXECUTE format('ALTER TYPE mood RENAME VALUE %L TO %L', "
    "(enum_range(NULL::mood))[1], 'r{number}'); END $$",
    "BEGIN; ALTER TABLE items ADD COLUMN c{number} int DEFAULT 3; "
    "ALTER TABLE items ALTER c{number} DROP DEFAULT; COMMIT",
]


def sent(shop: Any) -> str:
    """The columns that an export has, once each was seen in a row."""
    [(names,)] = shop.select(
        "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute "
        "WHERE attrelid = 'items'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''"
    )
    return str(names)


def test_an_export_is_what_its_table_is_or_ends_before(here: Location, shop: Any) -> None:
    seed = random.randrange(10**6) if "PERSIST_FORM_ROUNDS" in os.environ else 11
    print("seed", seed)
    chance = random.Random(seed)
    shop.run("CREATE SEQUENCE ids START 10", "CREATE TYPE mood AS ENUM ('sad', 'ok')")
    shop.run("CREATE TABLE items (id int PRIMARY KEY, name text, mood mood)")
    shop.run("ALTER TABLE items REPLICA IDENTITY FULL", "INSERT INTO items SELECT n, 'n' FROM generate_series(1, 9) n")
    pipeline, number, stopped, went_on = None, 0, 0, 0
    for _ in range(ROUNDS):
        if pipeline is None:
            create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": EXPORT}, interval_ms=1)
            pipeline = Pipeline(here, "shop", options=OPTIONS)
        elif chance.random() < 0.3:
            pipeline.close()
            pipeline = Pipeline(here, "shop", options=OPTIONS)
        pipeline.step()
        before, told = contents(here, "shop", EXPORT), []
        for _ in range(chance.randint(1, 6)):
            number += 1
            kind = chance.choices([ROWS, HARMLESS, SILENT], [6, 3, 1])[0]
            told.append(chance.choice(kind).format(number=number))
            shop.run(told[-1])
        shop.run(ROWS[0], ROWS[1])
        try:
            pipeline.step()
        except TableAltered as error:
            print(told, error)
            stopped += 1
            assert contents(here, "shop", EXPORT) == before, (seed, told)
            pipeline.close()
            pipeline = None
            drop(here, "shop")
            continue
        went_on += 1
        assert contents(here, "shop", EXPORT) == Counter(shop.select(f"SELECT {sent(shop)} FROM items")), (seed, told)
        assert not status(here, "shop", ask_upstream=False, count_rows=True).counts[EXPORT].negative
    assert stopped
    assert went_on > stopped
    if pipeline is not None:
        pipeline.close()
