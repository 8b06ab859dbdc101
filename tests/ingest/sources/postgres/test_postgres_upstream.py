"""An upstream that is altered, exchanged, restarted or made to forget: definite answers, and nothing lost."""

import pickle
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from persist import Determinate, LocationError
from persist.sources import Lsn, SourceFrontier, SourceKind, UpstreamLost, UpstreamReplaced
from persist.testing import servers
from persist_ingest.sources.port import Changes, HeldUp, SchemaGrew, SourceFailure, TableAltered
from persist_ingest.sources.postgres import POSTGRES, checks
from persist_ingest.sources.postgres import reader as reading
from persist_ingest.sources.postgres.checks import check_tables
from persist_ingest.sources.postgres.definition import PostgresDefinition

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text)"
FULL = "ALTER TABLE items REPLICA IDENTITY FULL"
SELECT = "SELECT * FROM items"


def begun(upstream: Any) -> Any:
    upstream.run(ITEMS, FULL, "INSERT INTO items VALUES (1, 'a')")
    with upstream.create("public.items") as beginning:
        reader = upstream.begin(beginning)
    upstream.definition = beginning.definition
    return reader


def until(condition: Callable[[], Any]) -> None:
    give_up = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def starts(server: servers.Server) -> bool:
    """It does not while processes of the killed one are still ending."""
    try:
        server.start()
    except servers.ServerFailed:
        return False
    return True


def confirmed(upstream: Any) -> int:
    ((position,),) = upstream.select("SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots "
                                     "WHERE database = current_database() AND NOT temporary")  # fmt: skip
    return int(position)


def test_a_probe_covers_what_was_acknowledged(upstream: Any) -> None:
    reader = begun(upstream)
    for number in range(2, 20):
        upstream.run(f"INSERT INTO items VALUES ({number}, 'x')")
        probe = reader.probe()
        assert probe.incarnation == reader.incarnation
        assert probe.low[0].position <= probe.high[0].position
        upstream.follow(reader)
        assert upstream.holds("public.items", SELECT)


def test_commit_moves_the_slot_and_never_beyond_what_was_told(upstream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ADVANCE_SECONDS", 0.0)
    reader = begun(upstream)
    start = confirmed(upstream)
    told = start
    for number in range(2, 30):
        upstream.run(f"INSERT INTO items VALUES ({number}, 'x')")
        upstream.follow(reader)
        told = upstream.at.bound(0)
        reader.commit(upstream.at)
        assert start <= confirmed(upstream) <= told
    assert confirmed(upstream) > start
    before = confirmed(upstream)
    reader.commit(SourceFrontier.at(SourceKind.LSN, {0: start}))
    assert confirmed(upstream) == before
    status = reader.status()
    assert status.committed == SourceFrontier.at(SourceKind.LSN, {0: before})
    assert status.bytes_behind is not None
    assert status.details["wal_status"] == "reserved"
    assert upstream.holds("public.items", SELECT)


def test_a_slot_that_another_ingester_moved_further_meanwhile_is_where_it_should_be(
    upstream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = begun(upstream)
    upstream.run("INSERT INTO items VALUES (2, 'b')")
    reader.probe()
    upstream.follow(reader)
    looked = check_tables

    def then_moved(session: Any, definition: PostgresDefinition) -> Any:
        found = looked(session, definition)
        upstream.run("INSERT INTO items VALUES (3, 'c')")
        upstream.select(
            "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_flush_lsn()) FROM pg_replication_slots "
            "WHERE database = current_database() AND NOT temporary"
        )
        return found

    monkeypatch.setattr(reading, "check_tables", then_moved)
    reader.commit(upstream.at)
    assert confirmed(upstream) > (upstream.at.bound(0) or 0)


def test_commits_come_through_at_most_once_a_second(upstream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ADVANCE_SECONDS", 3600.0)
    reader = begun(upstream)

    def moved() -> bool:
        upstream.follow(reader)
        reader.commit(upstream.at)
        return confirmed(upstream) > start

    start = confirmed(upstream)
    upstream.run("INSERT INTO items VALUES (2, 'b')")
    until(moved)
    before = confirmed(upstream)
    upstream.run("INSERT INTO items VALUES (3, 'c')")
    upstream.follow(reader)
    upstream.follow(reader)
    reader.commit(upstream.at)
    assert confirmed(upstream) == before


def test_the_slot_moves_only_to_places_between_records(upstream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is flushed may end inside a commit's record: a slot moved there would never show that commit."""
    monkeypatch.setattr(reading, "ADVANCE_SECONDS", 0.0)
    reader = begun(upstream)
    upstream.run("INSERT INTO items VALUES (2, 'b')")
    (event,) = upstream.follow(reader)
    inside = event.offsets[0].as_py()
    reader.commit(SourceFrontier.at(SourceKind.LSN, {0: inside}))
    assert confirmed(upstream) < inside
    begin, end = (SourceFrontier.at(SourceKind.LSN, {0: at}) for at in (inside, inside + 1))
    (task,) = reader.plan(begin, end, 1)
    assert list(task.read()) == [event]


def test_what_was_let_go_cannot_be_read_again(upstream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ADVANCE_SECONDS", 0.0)
    reader = begun(upstream)
    begin = upstream.at

    def moved() -> bool:
        upstream.run("UPDATE items SET name = name || '.'")
        upstream.follow(reader)
        reader.commit(upstream.at)
        return confirmed(upstream) > begin.bound(0)

    until(moved)
    (task,) = reader.plan(begin, upstream.at, 1)
    with pytest.raises(UpstreamLost):
        list(task.read())
    assert reader.probe().low[0].position > begin.bound(0)


def test_tasks_are_read_elsewhere(upstream: Any) -> None:
    reader = begun(upstream)
    upstream.run("INSERT INTO items VALUES (2, 'b')")
    begin, end = upstream.at, SourceFrontier.of(SourceKind.LSN, reader.probe().high)
    (task,) = reader.plan(begin, end, 4)
    assert task.ordered
    assert task.weight > 0
    assert list(pickle.loads(pickle.dumps(task)).read()) == list(task.read())
    assert reader.plan(end, end, 4) == ()


def test_a_new_column_is_adopted_and_earlier_rows_have_none(upstream: Any) -> None:
    reader = begun(upstream)
    upstream.run("INSERT INTO items VALUES (2, 'b')", "ALTER TABLE items ADD COLUMN price numeric(8, 2)")
    upstream.run("INSERT INTO items VALUES (3, 'c', 1.25)", "UPDATE items SET price = 9 WHERE id = 1")
    kept = upstream.at, {name: rows.copy() for name, rows in upstream.rows.items()}
    with pytest.raises(SchemaGrew) as grew:
        upstream.follow(reader)
    assert grew.value.export == "public.items"
    assert grew.value.schema.val.names == ["name", "price"]
    reader.exports()["public.items"].check_evolution(grew.value.schema)
    reader.adopt("public.items", grew.value.schema)
    upstream.at, upstream.rows = kept
    upstream.rows["public.items"] = type(upstream.rows["public.items"])({(1, "a", None): 1})
    upstream.follow(reader)
    assert upstream.holds("public.items", SELECT)
    again = POSTGRES.open(upstream.definition, {"public.items": grew.value.schema})
    upstream.run("INSERT INTO items VALUES (4, 'd', 2)")
    upstream.follow(again)
    assert upstream.holds("public.items", SELECT)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE items DROP COLUMN name",
        "ALTER TABLE items RENAME COLUMN name TO title",
        "ALTER TABLE items ALTER COLUMN name TYPE char(20)",
        "ALTER TABLE items ALTER COLUMN id TYPE bigint",
        "ALTER TABLE items ADD COLUMN stock int DEFAULT 5",
        "ALTER TABLE items ADD COLUMN nonce uuid DEFAULT gen_random_uuid()",
        'ALTER TABLE items ADD COLUMN "Name" int',
    ],
)
def test_any_other_alteration_is_refused_and_names_the_column(upstream: Any, statement: str) -> None:
    reader = begun(upstream)
    upstream.run("INSERT INTO items VALUES (2, 'b')")
    upstream.follow(reader)
    upstream.run(statement, "INSERT INTO items (id) VALUES (3)")
    with pytest.raises(SourceFailure) as refused:
        upstream.follow(reader)
    assert not isinstance(refused.value, SchemaGrew)
    assert refused.value.details["export"] == "public.items"
    assert refused.value.details["column"].strip("'\"") in statement
    assert refused.value.hint


def test_a_column_that_was_adopted_and_then_dropped_is_refused(upstream: Any) -> None:
    reader = begun(upstream)
    upstream.run("ALTER TABLE items ADD COLUMN extra int", "INSERT INTO items VALUES (2, 'b', 1)")
    with pytest.raises(SchemaGrew) as grew:
        upstream.follow(reader)
    reader.adopt("public.items", grew.value.schema)
    upstream.follow(reader)
    upstream.run("ALTER TABLE items DROP COLUMN extra", "INSERT INTO items VALUES (3, 'c')")
    with pytest.raises(SourceFailure) as refused:
        upstream.follow(reader)
    assert refused.value.details["column"] == "extra"


def test_text_may_become_longer(upstream: Any) -> None:
    upstream.run("CREATE TABLE items (id int PRIMARY KEY, name varchar(5))", FULL)
    with upstream.create("public.items") as beginning:
        reader = upstream.begin(beginning)
    upstream.run("ALTER TABLE items ALTER name TYPE varchar(50)", "INSERT INTO items VALUES (1, 'longer than 5')")
    upstream.run("ALTER TABLE items ALTER name TYPE text", "INSERT INTO items VALUES (2, 'x')")
    upstream.follow(reader)
    assert upstream.holds("public.items", SELECT)


def test_a_transaction_may_alter_and_write(upstream: Any) -> None:
    reader = begun(upstream)
    upstream.run(
        "BEGIN", "INSERT INTO items VALUES (2, 'b')", "ALTER TABLE items ADD COLUMN more int",
        "INSERT INTO items VALUES (3, 'c', 3)", "COMMIT",
    )  # fmt: skip
    with pytest.raises(SchemaGrew) as grew:
        upstream.follow(reader)
    reader.adopt("public.items", grew.value.schema)
    events = upstream.follow(reader)
    rows = [row for event in events if isinstance(event, Changes) for row in event.rows.to_pylist()]
    assert rows == [{"id": 2, "name": "b", "more": None}, {"id": 3, "name": "c", "more": 3}]


@pytest.mark.parametrize(
    ("statements", "error", "said"),
    [
        (("DROP TABLE items",), SourceFailure, "dropped"),
        (("ALTER PUBLICATION persist_shop DROP TABLE items",), SourceFailure, "out of the publication"),
        (
            (
                "CREATE TABLE other (id int)",
                "ALTER PUBLICATION persist_shop SET TABLE other",
                "ALTER PUBLICATION persist_shop SET TABLE items",
            ),
            SourceFailure,
            "out of the publication",
        ),
        (("ALTER PUBLICATION persist_shop SET TABLE items WHERE (id > 5)",), SourceFailure, "row filter"),
        (("ALTER PUBLICATION persist_shop SET (publish = 'insert')",), SourceFailure, "other changes"),
        (("ALTER TABLE items REPLICA IDENTITY DEFAULT",), SourceFailure, "replica identity"),
        (("DROP PUBLICATION persist_shop",), UpstreamReplaced, "publication"),
        (
            ("DROP PUBLICATION persist_shop", "CREATE PUBLICATION persist_shop FOR TABLE items"),
            UpstreamReplaced,
            "publication",
        ),
        (("SELECT pg_drop_replication_slot('persist_shop')",), UpstreamLost, "slot"),
    ],
)
def test_an_upstream_that_was_taken_apart_is_told(
    upstream: Any, statements: tuple[str, ...], error: type[Exception], said: str
) -> None:
    ((name,),) = upstream.select("SELECT current_database()")
    upstream.run(ITEMS, FULL)
    with upstream.create("public.items", slot=name) as beginning:
        reader = upstream.begin(beginning)
    # persist_shop is the publication's name; slots are named for the whole server.
    upstream.run("INSERT INTO items VALUES (7, 'g')")
    end = SourceFrontier.of(SourceKind.LSN, reader.probe().high)
    (task,) = reader.plan(upstream.at, end, 1)
    upstream.run(*(each.replace("slot('persist_shop')", f"slot('{name}')") for each in statements))
    for ask in (reader.probe, reader.status, lambda: reader.commit(end), lambda: list(task.read())):
        with pytest.raises(error) as refused:
            ask()
        assert said in str(refused.value)
        assert refused.value.hint  # type: ignore[attr-defined] # all of them are ours


def test_rows_written_without_their_old_row_are_refused(upstream: Any) -> None:
    reader = begun(upstream)
    for statement in ("UPDATE items SET name = 'z'", "UPDATE items SET id = 4", "DELETE FROM items"):
        upstream.run("ALTER TABLE items REPLICA IDENTITY DEFAULT", statement, FULL)
        with pytest.raises(SourceFailure, match="whole old row"):
            upstream.follow(reader)
        upstream.at = SourceFrontier.of(SourceKind.LSN, reader.probe().high)


def test_another_database_is_not_this_one(upstream: Any) -> None:
    begun(upstream).close()
    for field, value in (("system", "1"), ("timeline", 77), ("database", 1)):
        with pytest.raises(UpstreamReplaced):
            POSTGRES.open({**upstream.definition, field: value}, initial(upstream)).probe()


def initial(upstream: Any) -> Any:
    return {table.export: table.initial() for table in PostgresDefinition.from_json(upstream.definition).tables}


def test_a_slot_in_use_is_waited_for(upstream: Any) -> None:
    reader = begun(upstream)
    upstream.run("INSERT INTO items SELECT n, 'x' FROM generate_series(2, 200000) n")
    end = SourceFrontier.of(SourceKind.LSN, reader.probe().high)
    (task,) = reader.plan(upstream.at, end, 1)
    slot = upstream.definition["slot"]
    with psycopg.connect(upstream.dsn, autocommit=True) as other, other.cursor() as cursor:
        sql = f"SELECT count(*) FROM pg_logical_slot_peek_binary_changes('{slot}', NULL, NULL, 'proto_version', '1', 'publication_names', 'persist_shop')"  # noqa: E501 - one statement
        other.pgconn.send_query(sql.encode())
        until(lambda: upstream.select(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"))
        assert sum(event.rows.num_rows for event in task.read()) == 199_999
        cursor.connection.pgconn.finish()


def test_a_restarted_server_goes_on() -> None:
    config = {"wal_level": "logical"}
    with servers.start_postgres(config) as server:
        dsn = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres"
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(ITEMS)
            connection.execute(FULL)
            with POSTGRES.create({"dsn": dsn, "tables": "public.items"}, source="shop") as beginning:
                reader = POSTGRES.open(beginning.definition, beginning.reader.exports())
            connection.execute("INSERT INTO items VALUES (1, 'a')")
        before = reader.probe()
        (task,) = reader.plan(beginning.bound, SourceFrontier.of(SourceKind.LSN, before.high), 1)
        events = list(task.read())
        server.kill()
        for ask in (reader.probe, lambda: list(task.read())):
            with pytest.raises(LocationError):
                ask()
        until(lambda: starts(server))
        after = reader.probe()
        assert isinstance(after.high[0], Lsn)
        assert after.high[0].position >= before.high[0].position  # type: ignore[attr-defined] # a log's are Lsn
        # What was planned with the run of the server before is planned again with this one.
        with pytest.raises(Determinate, match="started anew"):
            list(task.read())
        (again,) = reader.plan(beginning.bound, SourceFrontier.of(SourceKind.LSN, before.high), 1)
        assert list(again.read()) == events
        reader.close()


def test_an_alteration_that_nobody_sees_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commit is in the log already, and so are positions behind it."""
    monkeypatch.setattr(checks, "SETTLE_SECONDS", 0.2)
    config = {"wal_level": "logical", "fsync": "off", "max_prepared_transactions": "1"}
    with servers.start_postgres(config) as server:
        dsn = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres"
        with psycopg.connect(dsn, autocommit=True) as connection, psycopg.connect(dsn, autocommit=True) as other:
            connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
            connection.execute("CREATE TABLE items (id int PRIMARY KEY, mood mood)")
            connection.execute(FULL)
            with POSTGRES.create({"dsn": dsn, "tables": "public.items"}, source="shop") as beginning:
                reader = POSTGRES.open(beginning.definition, beginning.reader.exports())
            for statement in (
                "BEGIN",
                "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
                "INSERT INTO items VALUES (1, 'ok')",
            ):
                connection.execute(statement)
            connection.execute("PREPARE TRANSACTION 'renamed'")
            connection.execute("SET synchronous_commit = local")
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
            connection.execute("SELECT pg_reload_conf()")
            until(lambda: other.execute("SHOW synchronous_standby_names").fetchall() == [("absent",)])
            # Commits wait once the checkpointer has read the setting, too.
            connection.execute("CHECKPOINT")
            other.pgconn.send_query(b"COMMIT PREPARED 'renamed'")
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            try:
                until(lambda: connection.execute(waiting).fetchall())
                end = SourceFrontier.of(SourceKind.LSN, reader.probe().high)
                (task,) = reader.plan(beginning.bound, end, 1)
                with pytest.raises(HeldUp, match="standby"):
                    list(task.read())
            finally:
                connection.execute("SELECT pg_cancel_backend(%s)", [other.info.backend_pid])
            until(lambda: other.pgconn.get_result() is None)
            with pytest.raises(TableAltered):
                list(task.read())
            reader.close()


def test_a_slot_that_fell_too_far_behind_is_lost() -> None:
    config = {"wal_level": "logical", "fsync": "off", "max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"}
    with servers.start_postgres(config) as server:
        dsn = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres"
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(ITEMS)
            connection.execute(FULL)
            with POSTGRES.create({"dsn": dsn, "tables": "public.items"}, source="shop") as beginning:
                reader = POSTGRES.open(beginning.definition, beginning.reader.exports())
            end = SourceFrontier.of(SourceKind.LSN, reader.probe().high)
            (task,) = reader.plan(SourceFrontier.at(SourceKind.LSN, {0: 1}), end, 1)
            for number in range(4):
                connection.execute(b"INSERT INTO items VALUES (%s, 'x')", [number])
                connection.execute(b"SELECT pg_switch_wal()")
            connection.execute(b"CHECKPOINT")
        for ask in (reader.probe, lambda: list(task.read())):
            with pytest.raises(UpstreamLost, match="threw away WAL"):
                ask()
        POSTGRES.drop(beginning.definition)
        reader.close()
