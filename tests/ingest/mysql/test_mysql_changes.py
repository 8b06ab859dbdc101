"""What happens to tables while a source follows them: rows, transactions, statements, and changes of their form."""

import os
import random
from typing import Any

import pytest
from ingest.mysql.conftest import Shop

from persist_ingest import Location, Pipeline, drop
from persist_ingest.location import client
from persist_ingest.pipeline.records import Records
from persist_ingest.pipeline.reporting.status import status
from persist_ingest.sources.mysql.statements import Effect, effects
from persist_ingest.sources.port import TableAltered

ROUNDS = int(os.environ.get("PERSIST_FORM_ROUNDS", "14"))
ITEMS = "CREATE TABLE items (id int PRIMARY KEY AUTO_INCREMENT, name varchar(200), mood enum('sad','ok'))"
ROWS = [
    "INSERT INTO items (name) VALUES ('new'), (NULL), ('ü')",
    "UPDATE items SET id = id + 100000",
    "UPDATE items SET name = CONCAT(name, '.') WHERE id % 2 = 0",
    "DELETE FROM items ORDER BY id LIMIT 1",
    "INSERT INTO items (name, mood) VALUES ('m', 'ok')",
    "REPLACE INTO items (id, name) VALUES (1, 'replaced')",
    "BEGIN; INSERT INTO items (name) VALUES ('gone'); ROLLBACK",
    "BEGIN; UPDATE items SET mood = 'sad'; SAVEPOINT a; DELETE FROM items; ROLLBACK TO a; COMMIT",
]
HARMLESS = [
    "TRUNCATE items",
    "TRUNCATE TABLE items",
    "OPTIMIZE TABLE items",
    "ANALYZE TABLE items",
    "FLUSH BINARY LOGS",
    "ALTER TABLE items ADD COLUMN c{number} int",
    "ALTER TABLE items ADD COLUMN f{number} varchar(9) NULL DEFAULT NULL COMMENT 'a, b' FIRST",
    "ALTER TABLE items ADD COLUMN (d{number} decimal(5,2)), ADD INDEX i{number} (name)",
    "CREATE INDEX j{number} ON items (name)",
    "ALTER TABLE items ENGINE=InnoDB, COMMENT='c{number}'",
    "CREATE TABLE IF NOT EXISTS items (id int)",
    "CREATE OR REPLACE TABLE others AS SELECT * FROM items",
    "CREATE TEMPORARY TABLE t{number} AS SELECT * FROM items",
]
SILENT = [
    "ALTER TABLE {table} ADD COLUMN c{number} int DEFAULT 7",
    "ALTER TABLE {table} ADD COLUMN c{number} int NOT NULL",
    "ALTER TABLE {table} DROP COLUMN name, ADD COLUMN name varchar(200)",
    "ALTER TABLE {table} MODIFY name varchar(100)",
    "ALTER TABLE {table} MODIFY mood enum('ok','sad')",
    "ALTER TABLE {table} CHANGE mood mode{number} enum('sad','ok')",
    "DROP TABLE {table}; CREATE TABLE {table} (id int PRIMARY KEY AUTO_INCREMENT, name varchar(200))",
    "CREATE TABLE other LIKE {table}; RENAME TABLE {table} TO old, other TO {table}; DROP TABLE old",
    "CREATE OR REPLACE TABLE {table} (id int PRIMARY KEY AUTO_INCREMENT, name varchar(200), n int)",
    "SET binlog_row_image = MINIMAL; UPDATE {table} SET name = 'x'; DELETE FROM {table}; SET binlog_row_image = FULL",
]
STATED = "SET binlog_format = STATEMENT; INSERT INTO {table} (name) VALUES ('stated'); SET binlog_format = ROW"


def several(shop: Shop, text: str) -> None:
    shop.run(*(each.strip() for each in text.split(";")))


def columns(shop: Shop, pipeline: Pipeline) -> str:
    schema = pipeline._open().exports()[shop.export("items")]
    return ", ".join(f"`{name}`" for name in (*schema.key.names, *schema.val.names))


def test_an_export_is_what_its_table_is_or_ends_before(here: Location, shop: Shop) -> None:
    seed = random.randrange(10**6) if "PERSIST_FORM_ROUNDS" in os.environ else 7
    print("seed", seed)
    chance = random.Random(seed)
    shop.run(ITEMS, "INSERT INTO items (name) VALUES ('a'), ('b'), ('c')")
    pipeline, number, stopped, went_on = None, 0, 0, 0
    for _ in range(ROUNDS):
        if pipeline is None:
            pipeline = shop.source(here, "items")
        elif chance.random() < 0.3:
            pipeline.close()
            pipeline = shop.pipeline(here)
        pipeline.step()
        before, told = shop.there(here, "items"), []
        for _ in range(chance.randint(1, 6)):
            number += 1
            kind = chance.choices([ROWS, HARMLESS, [*SILENT, STATED]], [6, 3, 1])[0]
            told.append(chance.choice(kind).format(table="items", number=number))
            several(shop, told[-1])
        several(shop, "INSERT INTO items (name) VALUES ('last'); UPDATE items SET id = id + 1 ORDER BY id DESC")
        try:
            pipeline.step()
        except TableAltered as error:
            print(told, error)
            stopped += 1
            assert shop.there(here, "items") == before, (seed, told)
            pipeline.close()
            pipeline = None
            drop(here, "shop")
            shop.run("DROP TABLE IF EXISTS items, other, old", ITEMS, "INSERT INTO items (name) VALUES ('again')")
            continue
        went_on += 1
        assert shop.there(here, "items") == shop.rows("items", columns(shop, pipeline)), (seed, told)
        assert not status(here, "shop", ask_upstream=False, count_rows=True).counts[shop.export("items")].negative
    assert stopped
    assert went_on > stopped
    if pipeline is not None:
        pipeline.close()


def test_what_rows_do_not_say_stops_the_table_alone(here: Location, shop: Shop) -> None:
    tables = [f"items{number}" for number in range(len(SILENT))]
    shop.run(*(ITEMS.replace("items", table) for table in tables), "CREATE TABLE bystander (id int PRIMARY KEY)")
    shop.run(*(f"INSERT INTO {table} (name) VALUES ('a')" for table in tables))
    with shop.source(here, *tables, "bystander") as pipeline:
        before = {table: shop.there(here, table) for table in tables}
        for number, (table, text) in enumerate(zip(tables, SILENT, strict=True)):
            shop.run(f"INSERT INTO bystander VALUES ({number})")
            several(shop, text.format(table=table, number=number))
        pipeline.step()
        assert shop.there(here, "bystander") == shop.rows("bystander")
        found = Records(client(here)).source("shop").troubles
        for table in tables:
            assert shop.there(here, table) == before[table]
            assert found[shop.export(table)]["state"] == "stalled"
            assert "resnapshot" in found[shop.export(table)]["hint"]


def test_rows_that_a_statement_changes_elsewhere_stop_every_table(here: Location, shop: Shop) -> None:
    shop.run(ITEMS, "CREATE TABLE outside (id int PRIMARY KEY)")
    shop.run("CREATE TRIGGER t AFTER INSERT ON outside FOR EACH ROW INSERT INTO items (name) VALUES ('by trigger')")
    with shop.source(here, "items") as pipeline:
        shop.run("INSERT INTO outside VALUES (1)")
        pipeline.step()
        assert shop.there(here, "items") == shop.rows("items")
        several(shop, "SET binlog_format = STATEMENT; INSERT INTO outside VALUES (2); SET binlog_format = ROW")
        with pytest.raises(TableAltered, match="not logged"):
            pipeline.step()


def test_transactions_are_at_one_time(here: Location, shop: Shop) -> None:
    """Two accounts, between which money goes: their sum is the same at each time, and what was noted agrees."""
    shop.run("CREATE TABLE accounts (id int PRIMARY KEY, sum int)", "CREATE TABLE noted (id int PRIMARY KEY)")
    shop.run("INSERT INTO accounts VALUES (1, 50), (2, 50)", "INSERT INTO noted VALUES (0)")
    with shop.source(here, "accounts", "noted") as pipeline:
        times: list[int] = []
        for number in range(1, 7):
            shop.run("BEGIN", f"UPDATE accounts SET sum = sum - {number} WHERE id = 1")
            shop.run(f"INSERT INTO noted VALUES ({number})")
            if number % 2:
                # Before it ends nothing of it is there.
                times.append((pipeline.step().upper.time or 1) - 1)
            shop.run(f"UPDATE accounts SET sum = sum + {number} WHERE id = 2", "COMMIT")
        times.append((pipeline.step().upper.time or 1) - 1)
        the_client = client(here)
        shards = Records(the_client).source("shop").shards
        with (
            the_client.open_reader(shards[shop.export("accounts")]) as reader,
            the_client.open_reader(shards[shop.export("noted")]) as other,
        ):
            seen = []
            for time in times:
                table, notes = reader.snapshot(time).to_arrow(), other.snapshot(time).to_arrow()
                sums = dict(zip(table["id"].to_pylist(), table["sum"].to_pylist(), strict=True))
                noted: list[Any] = notes["id"].to_pylist()
                seen.append(max(noted))
                assert sums == {1: 50 - sum(noted), 2: 50 + sum(noted)}
            assert seen == [0, 2, 4, 6]


def test_a_large_transaction_and_large_values(here: Location, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    from persist_ingest.sources.mysql import decoding, log

    monkeypatch.setattr(log, "KEPT_BYTES", 200_000)
    monkeypatch.setattr(decoding, "PENDING_BYTES", 100_000)
    shop.run("CREATE TABLE large (id int PRIMARY KEY AUTO_INCREMENT, b longblob, v varchar(300))")
    with shop.source(here, "large") as pipeline:
        shop.run("BEGIN", "INSERT INTO large (b, v) SELECT REPEAT(X'00ff', 50), seq FROM seq_1_to_5000")
        shop.run("UPDATE large SET v = CONCAT(v, '!') WHERE id % 3 = 0", "COMMIT")
        shop.run("INSERT INTO large (b) VALUES (REPEAT('x', 17000000))", "INSERT INTO large (v) VALUES ('behind')")
        pipeline.step()
        assert shop.there(here, "large") == shop.rows("large")
        shop.run("DELETE FROM large WHERE id % 2 = 0")
        pipeline.step()
        assert shop.there(here, "large") == shop.rows("large")


def test_compressed_events(here: Location, shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, x text)")
    with shop.source(here, "t") as pipeline:
        shop.run("SET GLOBAL log_bin_compress = ON, GLOBAL log_bin_compress_min_len = 10")
        try:
            shop.run("INSERT INTO t VALUES (1, REPEAT('a', 5000)), (2, 'b')", "UPDATE t SET x = REPEAT('c', 900)")
            shop.run("ALTER TABLE t ADD COLUMN y int NULL COMMENT '" + "long " * 50 + "'", "DELETE FROM t WHERE id = 1")
        finally:
            shop.run("SET GLOBAL log_bin_compress = OFF")
        pipeline.step()
        assert shop.there(here, "t") == shop.rows("t")


def test_a_log_with_and_without_checksums(here: Location, shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)")
    try:
        with shop.source(here, "t") as pipeline:
            for number, kind in enumerate(["NONE", "CRC32", "NONE"]):
                shop.run(f"INSERT INTO t VALUES ({number})", f"SET GLOBAL binlog_checksum = {kind}")
                if number:
                    pipeline.step()
                shop.run(f"INSERT INTO t VALUES ({number + 10})")
            pipeline.step()
            assert shop.there(here, "t") == shop.rows("t")
    finally:
        shop.run("SET GLOBAL binlog_checksum = CRC32")


def test_a_table_without_a_key_and_rows_that_are_equal(here: Location, shop: Shop) -> None:
    shop.run("CREATE TABLE t (a int, b varchar(9))", "INSERT INTO t VALUES (1, 'x'), (1, 'x'), (NULL, NULL)")
    with shop.source(here, "t") as pipeline:
        assert shop.there(here, "t") == shop.rows("t")
        shop.run("DELETE FROM t WHERE a = 1 LIMIT 1", "INSERT INTO t VALUES (NULL, NULL)")
        pipeline.step()
        assert shop.there(here, "t") == shop.rows("t")


NAMES = [("shop", "orders"), ("shop", "Line Items"), ("other", "orders")]
ALL = dict.fromkeys(range(len(NAMES)), Effect.ALTERED)
STATEMENTS: dict[str, dict[int, Effect]] = {
    "TRUNCATE TABLE orders": {0: Effect.EMPTIED},
    "truncate `Line Items`;": {1: Effect.EMPTIED},
    "TRUNCATE other.orders /* generated by server */": {2: Effect.EMPTIED},
    "ALTER TABLE orders_archive ADD orders int DEFAULT 1": {},
    "/*!40000 ALTER TABLE orders */ /*M!100000 DROP COLUMN a */": {0: Effect.ALTERED},
    "ALTER TABLE `shop`.`orders` ADD COLUMN n int NULL AFTER id, ADD KEY k (n, id)": {},
    "ALTER TABLE orders ADD (n int unsigned, m varchar(9) CHARACTER SET latin1), ALGORITHM=INSTANT": {},
    "ALTER TABLE orders ADD COLUMN (n int, m int NOT NULL)": {0: Effect.ALTERED},
    "ALTER TABLE orders ADD n int, ADD m int NOT NULL": {0: Effect.ALTERED},
    "ALTER TABLE orders ADD n serial": {0: Effect.ALTERED},
    "ALTER TABLE orders ADD n timestamp": {0: Effect.ALTERED},
    "ALTER TABLE orders ADD n int AS (id + 1)": {0: Effect.ALTERED},
    "ALTER TABLE orders ADD PRIMARY KEY (n)": {0: Effect.ALTERED},
    "ALTER TABLE orders ADD n int REFERENCES x (id) ON DELETE CASCADE": {0: Effect.ALTERED},
    "ALTER TABLE orders DROP PARTITION p0": {0: Effect.ALTERED},
    "ALTER IGNORE TABLE orders ADD UNIQUE (n)": {0: Effect.ALTERED},
    "ALTER TABLE orders ENGINE = Aria": {0: Effect.ALTERED},
    "ALTER TABLE tmp EXCHANGE PARTITION p0 WITH TABLE orders": {0: Effect.ALTERED},
    "ALTER TABLE tmp RENAME TO `Line Items`": {1: Effect.ALTERED},
    "RENAME TABLE orders TO o2, new TO other.orders": {0: Effect.ALTERED, 2: Effect.ALTERED},
    'DROP TABLE IF EXISTS a, `orders`, "Line Items"': {0: Effect.ALTERED, 1: Effect.ALTERED},
    "DROP DATABASE IF EXISTS shop": {0: Effect.ALTERED, 1: Effect.ALTERED},
    "DROP SCHEMA `other`": {2: Effect.ALTERED},
    "DROP TEMPORARY TABLE IF EXISTS `orders`": {},
    "CREATE TABLE IF NOT EXISTS orders (id int)": {},
    "CREATE OR REPLACE TABLE orders (id int)": {0: Effect.ALTERED},
    "CREATE TABLE t2 LIKE orders": {},
    "CREATE DEFINER=`a`@`%` TRIGGER t AFTER INSERT ON orders FOR EACH ROW DELETE FROM orders": {},
    "CREATE VIEW v AS SELECT * FROM orders": {},
    "GRANT SELECT ON orders TO a": {},
    "INSERT INTO orders SELECT 1": ALL,
    "UPDATE other.orders o, `Line Items` l SET o.a = 1": ALL,
    "SET STATEMENT max_statement_time=1 FOR DELETE FROM orders": ALL,
    "SET STATEMENT max_statement_time=1 FOR TRUNCATE orders": {0: Effect.EMPTIED},
    "SET STATEMENT max_statement_time=1": ALL,
    "SET TIMESTAMP=1": {},
    # A trigger of it, or what a view or function is of, may change any table.
    "INSERT INTO t VALUES (1)": ALL,
    "SELECT shop.f(1)": ALL,
    "-- orders\nDELETE FROM t": ALL,
    "RENAME TABLE t TO t2": {},
    "RENAME TABLE t TO `it's orders`, `back\\` TO `orders`": {0: Effect.ALTERED},
    "ALTER TABLE orders NOWAIT ADD COLUMN n int NOT NULL DEFAULT 7": {0: Effect.ALTERED},
    "ALTER TABLE orders WAIT 5 DROP PARTITION p0": {0: Effect.ALTERED},
    "ALTER TABLE orders NOWAIT ADD n int": {},
    "ALTER TABLE orders WAIT 5 COMMENT='x' ROW_FORMAT=DYNAMIC, FORCE": {},
    "ALTER TABLE orders COMMENT='x' WITH SYSTEM VERSIONING": {0: Effect.ALTERED},
    "ALTER TABLE orders COMMENT 'x' ENGINE Aria": {0: Effect.ALTERED},
    "ALTER TABLE orders FORCE PARTITION BY HASH (id)": {0: Effect.ALTERED},
    "ALTER TABLE orders ADD INDEX i (a, b(10)) USING BTREE COMMENT 'x' IGNORED": {},
    "ALTER TABLE orders ADD UNIQUE u (a) WITH SYSTEM VERSIONING": {0: Effect.ALTERED},
    "ALTER TABLE orders DROP INDEX IF EXISTS i, DROP KEY k": {},
    "ALTER TABLE orders DROP INDEX `primary`": {0: Effect.ALTERED},
    "ALTER TABLE orders DROP INDEX i REMOVE PARTITIONING": {0: Effect.ALTERED},
    "OPTIMIZE TABLE orders": {},
    "ALTER TABLE orders COMMENT 'a\\', ADD b int DEFAULT 7 COMMENT 'x'": {0: Effect.ALTERED},
    "ALTER TABLE orders COMMENT 'it\\'s', ADD b int": {},
}


@pytest.mark.parametrize("text", STATEMENTS)
def test_what_statements_do_to_tables(text: str) -> None:
    expected = {NAMES[number]: effect for number, effect in STATEMENTS[text].items()}
    assert effects(text.encode(), "shop", NAMES) == expected


def test_a_statement_that_cannot_be_read_has_altered_all() -> None:
    assert effects(b"ALTER TABLE \xff\xfe", "shop", NAMES) == dict.fromkeys(NAMES, Effect.ALTERED)
