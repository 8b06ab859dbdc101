"""What would make rows silently wrong in a source of PostgreSQL: it is seen, and stops it, or is waited for."""

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from ingest.pipeline.conftest import Shop, contents

from persist import PersistError
from persist.sources import UpstreamLost, UpstreamRegressed
from persist.testing import servers
from persist_ingest import Location, Pipeline, PipelineOptions, create, resnapshot, status
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.sources.port import BadRows, HeldUp, SourceFailure, TableAltered
from persist_ingest.sources.postgres import rows, session, snapshot
from persist_ingest.sources.tables import gathering

OPTIONS = PipelineOptions(tick_ms=1, told_ms=0, commit_steps_late=0)
EXPORT = "public.items"
MOVED = "UPDATE items SET id = id + 100"


def begun(here: Location, shop: Any, *more: str, tables: str | None = EXPORT, **options: str) -> Pipeline:
    shop.run("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    shop.run("CREATE TABLE items (id int PRIMARY KEY, name text, mood mood)")
    shop.run("ALTER TABLE items REPLICA IDENTITY FULL", "INSERT INTO items VALUES (1, 'a', 'sad'), (2, 'b', 'ok')")
    shop.run(*more)
    return opened(here, shop, tables, **options)


def opened(here: Location, shop: Any, tables: str | None = EXPORT, **options: str) -> Pipeline:
    named = {"slot": shop.connection.info.dbname, **({"tables": tables} if tables else {})}
    create(here, "shop", "postgres", {"dsn": shop.dsn, **named, **options}, interval_ms=1)
    pipeline = Pipeline(here, "shop", options=OPTIONS)
    pipeline.step()
    return pipeline


def follows(here: Location, shop: Any, export: str = EXPORT, sql: str = "SELECT * FROM items") -> bool:
    return contents(here, "shop", export) == Counter(shop.select(sql))


@pytest.fixture
def role(shop: Any) -> Any:
    """One who may replicate, and nothing more."""
    name = f"role_{shop.connection.info.dbname}"
    shop.run(f"CREATE ROLE {name} LOGIN REPLICATION")
    yield name
    shop.run(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_a_table_whose_rows_a_policy_hides_is_refused(here: Location, shop: Any, role: str) -> None:
    shop.dsn = shop.dsn.replace("user=postgres", f"user={role}")
    policy = ["ALTER TABLE items ENABLE ROW LEVEL SECURITY", f"CREATE POLICY p ON items TO {role} USING (id < 2)"]
    published = ["CREATE PUBLICATION p FOR TABLE items", f"GRANT SELECT ON items TO {role}"]
    with pytest.raises(SourceFailure, match="row security") as refused:
        begun(here, shop, *published, *policy, publication="p")
    assert "BYPASSRLS" in refused.value.hint
    assert shop.select("SELECT * FROM pg_replication_slots WHERE database = current_database() AND NOT temporary") == []


@pytest.mark.parametrize("other", ['public."items"', 'public."Items"'])
def test_two_tables_of_one_export_are_refused(here: Location, shop: Any, other: str) -> None:
    if "Items" in other:
        names = f"{EXPORT}, {other}"
        shop.run(f"CREATE TABLE {other} (id int PRIMARY KEY)", f"ALTER TABLE {other} REPLICA IDENTITY FULL")
    else:
        names = '"a.b".c, a."b.c"'
        shop.run('CREATE SCHEMA "a.b"', "CREATE SCHEMA a")
        for name in names.split(", "):
            shop.run(f"CREATE TABLE {name} (id int PRIMARY KEY)", f"ALTER TABLE {name} REPLICA IDENTITY FULL")
    with pytest.raises(SourceFailure, match="one name"):
        begun(here, shop, tables=names)


@pytest.mark.parametrize("adbc", [True, False])
def test_a_snapshot_says_what_changes_say_whatever_casts_there_are(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch, adbc: bool
) -> None:
    monkeypatch.setattr(snapshot, "has_adbc", lambda: adbc)
    cast = "CREATE FUNCTION f(mood) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'X' $$"
    with begun(here, shop, cast, "CREATE CAST (mood AS text) WITH FUNCTION f(mood)") as pipeline:
        assert follows(here, shop)
        shop.run(MOVED)
        pipeline.step()
        assert follows(here, shop)


def test_timeouts_of_sessions_do_not_hold_for_a_source(here: Location, shop: Any) -> None:
    name = shop.connection.info.dbname
    with begun(here, shop, f"ALTER DATABASE {name} SET idle_session_timeout = '400ms'") as pipeline:
        # Longer than a session of this database may rest.
        shop.run("SELECT pg_sleep(0.8)", MOVED)
        pipeline.step()
        assert follows(here, shop)


def test_large_values_are_read_in_bounded_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = [b"PGCOPY".ljust(19, b".") + b"r" * 9, *[b"r" * (5 << 20)] * 8, b"\xff\xff"]
    chunks = list(rows._chunks(iter(copied)))
    assert [len(chunk) for chunk in chunks] == [5, 4]
    monkeypatch.setattr(gathering, "OFFSETS_END", 10)
    places = np.array([4, 0]), np.array([6, 6]), np.array([True, True])
    with pytest.raises(BadRows, match="2 GiB"):
        gathering.gather(np.zeros(10, np.uint8), *places)


BACK = {
    "kinds of changes": ["ALTER PUBLICATION p SET (publish = 'insert')", "ALTER PUBLICATION p SET (publish = '{ALL}')"],
    "a persistence": ["ALTER TABLE items SET UNLOGGED", "ALTER TABLE items SET LOGGED"],
    "a persistence, of a table without large values": [
        "ALTER TABLE numbers SET UNLOGGED", "ALTER TABLE numbers SET LOGGED",
    ],
    "a name": ["ALTER TABLE items RENAME TO old", "CREATE TABLE items (LIKE old INCLUDING ALL)"],
    "a schema": ["ALTER TABLE items SET SCHEMA other", "ALTER TABLE other.items SET SCHEMA public"],
    "rows sent as another table's": [
        "ALTER PUBLICATION p SET (publish_via_partition_root = true)",
        "ALTER PUBLICATION p SET (publish_via_partition_root = false)",
    ],
    "a partition": ["ALTER TABLE root DETACH PARTITION part", "ALTER TABLE root ATTACH PARTITION part DEFAULT"],
}  # fmt: skip


@pytest.mark.parametrize("kind", BACK)
def test_what_lets_changes_through_may_not_change_even_when_it_is_put_back(
    here: Location, shop: Any, kind: str
) -> None:
    away, back = (each.replace("{ALL}", "insert, update, delete, truncate") for each in BACK[kind])
    publication = "CREATE PUBLICATION p FOR ALL TABLES"
    if kind == "a schema":
        publication = "CREATE PUBLICATION p FOR TABLES IN SCHEMA public"
    if kind == "a partition":
        publication = "CREATE PUBLICATION p FOR TABLE root"
    tables = ["CREATE TABLE root (id int) PARTITION BY LIST (id)", "CREATE TABLE part PARTITION OF root DEFAULT"]
    tables += ["CREATE TABLE numbers (id int)", "CREATE SCHEMA other", "INSERT INTO numbers VALUES (1)"]
    tables += [f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("root", "part", "numbers")]
    named = {"a partition": "public.part", "rows sent as another table's": "public.part"}.get(kind, "public.items")
    named = "public.numbers" if "numbers" in away else named
    with begun(here, shop, *tables, publication, tables=named, publication="p") as pipeline:
        before = contents(here, "shop", named)
        shop.run(away, back, f"INSERT INTO {named} (id) VALUES (7)")
        for _ in range(2):
            with pytest.raises(SourceFailure) as refused:
                pipeline.step()
            assert refused.value.hint
        assert contents(here, "shop", named) == before
    if kind == "a name":
        shop.run("DROP TABLE items", "ALTER TABLE old RENAME TO items", f"{MOVED} WHERE id < 7")
        with Pipeline(here, "shop", options=OPTIONS) as again:
            again.step()
            assert follows(here, shop)


def test_what_only_moves_or_empties_tables_goes_on(here: Location, shop: Any) -> None:
    """Whatever publishes them, and with a new column in between."""
    more = [
        "CREATE TABLE numbers (id int)",
        "ALTER TABLE numbers REPLICA IDENTITY FULL",
        "INSERT INTO numbers VALUES (1)",
    ]
    publication = "CREATE PUBLICATION p FOR ALL TABLES"
    both = f"{EXPORT}, public.numbers"
    with begun(here, shop, *more, publication, tables=both, publication="p") as pipeline:
        for statements in (
            ["VACUUM FULL items", "VACUUM FULL numbers", "GRANT SELECT ON items TO public", "ANALYZE items"],
            ["ALTER PUBLICATION p OWNER TO CURRENT_USER"],
            ["TRUNCATE numbers, items", "INSERT INTO numbers VALUES (2)", "INSERT INTO items VALUES (5, 'e', 'ok')"],
            [MOVED, "ALTER TABLE items ALTER name SET STATISTICS 7", "VACUUM FULL items"],
            ["ALTER TABLE items ADD COLUMN n int", "INSERT INTO items VALUES (8, 'h', 'ok', 1)", "VACUUM FULL items"],
        ):
            shop.run(*statements)
            pipeline.step()
            shop.run(MOVED, "UPDATE numbers SET id = id + 1")
            pipeline.step()
            assert follows(here, shop)
            assert follows(here, shop, "public.numbers", "SELECT * FROM numbers")
        shop.run("ALTER TABLE items ADD COLUMN m int", "TRUNCATE items")
        pipeline.step()
        told = status(here, "shop").exports
        assert told["public.numbers"].state == "running"
        assert "rewritten or truncated" in told[EXPORT].error
        assert "only once a step" in told[EXPORT].hint


RENAMED = {
    "one that was added": [
        "ALTER TYPE mood ADD VALUE 'glad'", "INSERT INTO items VALUES (3, 'c', 'glad')",
        "ALTER TYPE mood RENAME VALUE 'glad' TO 'happy'",
    ],
    "one whose name another has now": [
        "ALTER TYPE mood ADD VALUE 'glad'", "INSERT INTO items VALUES (3, 'c', 'glad')",
        "ALTER TYPE mood RENAME VALUE 'glad' TO 'happy'", "ALTER TYPE mood ADD VALUE 'glad'",
    ],
    "one of a new column": [
        "CREATE TYPE kind AS ENUM ('a', 'b')", "ALTER TABLE items ADD COLUMN kind kind", "UPDATE items SET kind = 'a'",
        "ALTER TYPE kind RENAME VALUE 'a' TO 'z'",
    ],
}  # fmt: skip


@pytest.mark.parametrize("statements", RENAMED.values(), ids=RENAMED)
def test_values_that_were_written_and_then_renamed_stop(here: Location, shop: Any, statements: list[str]) -> None:
    with begun(here, shop) as pipeline:
        shop.run(*statements)
        with pytest.raises(TableAltered, match="renamed after"):
            pipeline.step()
        assert {row[:3]: count for row, count in contents(here, "shop", EXPORT).items()} == {
            (1, "a", "sad"): 1,
            (2, "b", "ok"): 1,
        }


def test_new_values_of_enums_are_read(here: Location, shop: Any) -> None:
    with begun(here, shop) as pipeline:
        shop.run("ALTER TYPE mood ADD VALUE 'glad'", "INSERT INTO items VALUES (3, 'c', 'glad'), (4, 'd', NULL)")
        shop.run(
            "BEGIN", "CREATE TYPE kind AS ENUM ('a', 'b')", "ALTER TABLE items ADD COLUMN kind kind",
            "UPDATE items SET kind = 'a' WHERE id > 1", "COMMIT", "ALTER TYPE kind ADD VALUE 'c' BEFORE 'a'",
        )  # fmt: skip
        shop.run("UPDATE items SET kind = 'c' WHERE id = 2")
        pipeline.step()
        assert follows(here, shop)


def test_a_locked_table_keeps_no_other_waiting(here: Location, shop: Any) -> None:
    more = ["CREATE TABLE numbers (id int)", "ALTER TABLE numbers REPLICA IDENTITY FULL"]
    with (
        begun(here, shop, *more, tables=f"{EXPORT}, public.numbers") as pipeline,
        psycopg.connect(shop.dsn) as other,
    ):
        other.execute("LOCK TABLE items IN ACCESS EXCLUSIVE MODE")
        shop.run("SET lock_timeout = '10s'", "INSERT INTO numbers VALUES (1)")
        pipeline.step()
        assert follows(here, shop, "public.numbers", "SELECT * FROM numbers")


def test_what_has_to_look_into_a_locked_table_waits_and_can_be_stopped(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "LOCK_SECONDS", 0.1)
    monkeypatch.setattr(ingesting, "PATIENCE_SECONDS", 0.0)
    heard: list[PersistError] = []

    def complain(error: PersistError) -> None:
        heard.append(error)
        if len(heard) == 3:
            pipeline.stop()

    begun(here, shop).close()
    shop.run("ALTER TABLE items ADD COLUMN n int", "VACUUM FULL items")
    with psycopg.connect(shop.dsn) as other:
        other.execute("LOCK TABLE items IN ACCESS EXCLUSIVE MODE")
        with Pipeline(here, "shop", options=OPTIONS, complain=complain) as pipeline:
            pipeline.run()
    assert [type(error) for error in heard] == [HeldUp] * 3
    with Pipeline(here, "shop", options=OPTIONS) as again:
        again.step()
        shop.run(MOVED)
        again.step()
        assert follows(here, shop)


@pytest.mark.parametrize("identity", ["full", "key"])
def test_a_slot_that_another_session_consumes_while_it_is_waited_for_is_lost(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch, identity: str
) -> None:
    slot = shop.connection.info.dbname
    more = ["ALTER TABLE items REPLICA IDENTITY DEFAULT"] if identity == "key" else []
    pipeline = begun(here, shop, *more, setReplicaIdentity="false")
    blobs = session.UpstreamConnection.blobs

    def consumed(*given: Any) -> Any:
        # What it says in the moment between the look at the slot and the one in which it is free.
        shop.select(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
        return blobs(*given)

    with pipeline:
        shop.run("INSERT INTO items VALUES (3, 'lost', 'ok')")
        monkeypatch.setattr(session.UpstreamConnection, "blobs", consumed)
        with pytest.raises(UpstreamLost, match="threw away"):
            pipeline.step()
        monkeypatch.undo()
        assert Counter({(3, "lost", "ok"): 1}) == Counter(shop.select("SELECT * FROM items")) - contents(
            here, "shop", EXPORT
        )
        resnapshot(here, "shop", EXPORT)
        pipeline.step()
        assert follows(here, shop)


def test_files_that_were_put_back_are_not_forgotten_once_they_grew(here: Location, tmp_path: Path) -> None:
    with servers.start_postgres({"wal_level": "logical", "fsync": "off"}) as server:
        data, earlier = server.directory / "data", tmp_path / "earlier"

        def killed(then: Callable[[], object]) -> Shop:
            shop.close()
            server.kill()
            then()
            server.start()
            return Shop(server, "own")

        with psycopg.connect(server.uri, autocommit=True) as connection:
            connection.execute("CREATE DATABASE own")
        shop = Shop(server, "own")
        begun(here, shop).close()
        shop.run("CHECKPOINT")
        shop = killed(lambda: subprocess.run(["cp", "-a", data, earlier], check=True))
        shop.run("INSERT INTO items SELECT i, 'old', 'ok' FROM generate_series(10, 300) i")
        ingested(here)
        assert follows(here, shop)

        def put_back() -> None:
            shutil.rmtree(data)
            subprocess.run(["cp", "-a", earlier, data], check=True)

        shop = killed(put_back)
        with pytest.raises(UpstreamRegressed):
            ingested(here)
        before = contents(here, "shop", EXPORT)
        shop.run("INSERT INTO items SELECT i, 'new', 'ok' FROM generate_series(200, 1200) i", "CHECKPOINT")
        # The log is past all that was read, and nothing in it says that it is another one.
        with pytest.raises(HeldUp, match="no export"):
            ingested(here)
        assert contents(here, "shop", EXPORT) == before
        (table,) = status(here, "shop").exports.values()
        assert (table.state, "resnapshot" in table.hint) == ("stalled", True)
        resnapshot(here, "shop", EXPORT)
        shop.run(MOVED + " WHERE id < 3")
        ingested(here)
        assert follows(here, shop)
        shop.close()


def ingested(here: Location) -> None:
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
