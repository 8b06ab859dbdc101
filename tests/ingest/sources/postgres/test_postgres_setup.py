"""Setting a source up: what is refused and why, and that nothing is left behind when it fails."""

import json
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from persist import Determinate, InvalidArgument, LocationError
from persist.testing import servers
from persist_ingest.sources.port import SourceFailure, UpstreamNotOurs
from persist_ingest.sources.postgres import POSTGRES, snapshot
from persist_ingest.sources.postgres.making import slots
from persist_ingest.sources.postgres.making.options import default_name, parse_options
from persist_ingest.sources.postgres.session import UpstreamConnection

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text)"
FULL = "ALTER TABLE items REPLICA IDENTITY FULL"
LEFT = """
SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND NOT temporary), count(*)
FROM pg_publication
"""


class Stop(Exception):
    pass


def stop_after(condition: bool) -> None:
    assert condition
    raise Stop


def identity(upstream: Any, table: str = "items") -> str:
    ((found,),) = upstream.select(f"SELECT relreplident FROM pg_class WHERE relname = '{table}'")
    return str(found.decode() if isinstance(found, bytes) else found)


def test_unknown_options_are_refused_with_a_suggestion() -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_options({"dsn": "host=x", "replaceslots": "true"}, "shop", "0a")
    # Options of SQL come in lower case.
    given = {"DSN": "host=x", "replaceslot": "true", "setreplicaidentity": "TRUE", "excludecolumns": "a.b.c"}
    found = parse_options(given, "shop", "0a")
    assert (found.dsn, found.replace_slot, found.set_replica_identity) == ("host=x", True, True)
    assert found.exclude_columns == (("a", "b", "c"),)
    assert "replaceSlot" in refused.value.hint
    for raw in ({}, {"dsn": "host=x", "tables": "orders"}, {"dsn": "host=x", "badRows": "divert"}):
        with pytest.raises(InvalidArgument):
            parse_options(raw, "shop", "0a")
    with pytest.raises(InvalidArgument):
        parse_options({"dsn": "host=x", "slot": "My-Slot"}, "shop", "0a")


def test_names_of_tables_may_be_quoted() -> None:
    options = parse_options({"dsn": "host=x", "tables": 'Public.Orders, "My ""S""".Items'}, "shop", "0a")
    assert options.tables == (("public", "orders"), ('My "S"', "items"))


def test_default_names_are_what_a_slot_may_be_called() -> None:
    assert default_name("Shop-1.eu") == "persist_shop_1_eu"
    assert len(default_name("x" * 100)) == 63
    long = parse_options({"dsn": "host=x"}, "x" * 100, "0123abcd").slot
    assert len(long) == 63
    assert long.endswith("_0123abcd")


@pytest.mark.parametrize("dsn", ["host=x password=hidden", "postgresql://me:hidden@x/db", "host=x sslpassword=hidden"])
def test_a_password_in_the_dsn_is_refused_and_not_repeated(dsn: str) -> None:
    with pytest.raises(InvalidArgument) as refused, POSTGRES.create({"dsn": dsn}, source="shop"):
        pass
    assert "PGPASSWORD" in refused.value.hint
    assert "hidden" not in str(refused.value)


def test_a_malformed_dsn_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidArgument) as refused, POSTGRES.create({"dsn": "hots=x password=hidden"}, source="shop"):
        pass
    assert "hidden" not in str(refused.value)


def test_an_absent_server_is_a_matter_of_time() -> None:
    dsn = f"host=127.0.0.1 port={servers.free_port()}"
    with pytest.raises(LocationError), POSTGRES.create({"dsn": dsn, "tables": "public.x"}, source="shop"):
        pass


@pytest.mark.parametrize(
    ("done", "undone", "says"),
    [
        ("ALTER ROLE {role} NOLOGIN", "ALTER ROLE {role} LOGIN", "ALTER ROLE ... LOGIN"),
        ("ALTER ROLE {role} RENAME TO {role}x", "ALTER ROLE {role}x RENAME TO {role}", "CREATE ROLE"),
        ("REVOKE CONNECT ON DATABASE {db} FROM PUBLIC", "GRANT CONNECT ON DATABASE {db} TO PUBLIC", "GRANT CONNECT"),
        ("ALTER ROLE {role} CONNECTION LIMIT 0", "ALTER ROLE {role} CONNECTION LIMIT -1", "max_connections"),
    ],
    ids=["no login", "no such role", "no connect", "full"],
)
def test_who_is_not_let_in_is_told_what_lets_it_in(upstream: Any, done: str, undone: str, says: str) -> None:
    ((db,),) = upstream.select("SELECT current_database()")
    role = f"ing_{db}"
    upstream.run(f"CREATE ROLE {role} LOGIN")
    dsn = make_conninfo(upstream.dsn, user=role)
    UpstreamConnection(dsn).close()
    try:
        upstream.run(done.format(role=role, db=db))
        with pytest.raises(Determinate, match="cannot connect") as refused:
            UpstreamConnection(dsn)
        assert says in refused.value.hint
        assert "PGPASSWORD" not in refused.value.hint
    finally:
        upstream.run(undone.format(role=role, db=db), f"DROP ROLE {role}")


def test_a_database_that_is_not_there_is_not_a_matter_of_passwords(upstream: Any) -> None:
    with pytest.raises(Determinate, match="cannot connect") as refused:
        UpstreamConnection(make_conninfo(upstream.dsn, dbname="shp"))
    assert "dbname" in refused.value.hint
    assert "PGPASSWORD" not in refused.value.hint


def test_tables_need_a_primary_key_or_their_whole_old_rows(upstream: Any) -> None:
    upstream.run(ITEMS, "CREATE TABLE keyless (id int)")
    with pytest.raises(SourceFailure) as refused, upstream.create("public.items,public.keyless"):
        pass
    assert 'ALTER TABLE "public"."keyless" REPLICA IDENTITY FULL' in refused.value.hint
    assert upstream.select(LEFT) == [(0, 0)]
    with upstream.create("public.items"):
        assert identity(upstream) == "d"
    with upstream.create("public.items", setReplicaIdentity="true"):
        assert identity(upstream) == "f"
    assert identity(upstream) == "f"


@pytest.mark.every_version
def test_a_table_that_could_not_be_updated_any_more_is_refused(upstream: Any) -> None:
    upstream.run("CREATE TABLE items (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)")
    upstream.run("INSERT INTO items VALUES (1)")
    if upstream.connection.info.server_version >= 180000:
        with pytest.raises(SourceFailure) as refused, upstream.create("public.items", setReplicaIdentity="true"):
            pass
        assert refused.value.details["columns"] == "twice"
        assert upstream.select(LEFT) == [(0, 0)]
        assert identity(upstream) == "d"
    else:
        with upstream.create("public.items", setReplicaIdentity="true") as beginning:
            reader = upstream.begin(beginning)
        upstream.run("UPDATE items SET id = 3")
        upstream.follow(reader)
        assert upstream.holds("public.items", "SELECT id FROM items")
    upstream.run("UPDATE items SET id = 2")


def test_tables_that_are_only_inserted_into_need_none(upstream: Any) -> None:
    upstream.run(ITEMS, "CREATE PUBLICATION adds FOR TABLE items WITH (publish = 'insert')")
    with upstream.create(publication="adds") as beginning:
        reader = upstream.begin(beginning)
    upstream.run("INSERT INTO items VALUES (1, 'a')", "UPDATE items SET name = 'b'", "DELETE FROM items")
    (event,) = upstream.follow(reader)
    assert event.rows.to_pylist() == [{"id": 1, "name": "a"}]


@pytest.mark.parametrize("before", ["DEFAULT", "NOTHING", "USING INDEX named"])
def test_a_failure_inside_takes_everything_back(upstream: Any, before: str) -> None:
    upstream.run("CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL)")
    upstream.run("CREATE UNIQUE INDEX named ON items (name)", f"ALTER TABLE items REPLICA IDENTITY {before}")
    kind = identity(upstream)
    with pytest.raises(Stop), upstream.create("public.items", setReplicaIdentity="true"):
        stop_after(upstream.select(LEFT) == [(1, 1)])
    assert upstream.select(LEFT) == [(0, 0)]
    assert identity(upstream) == kind != "f"


def test_a_publication_that_was_there_before_stays(upstream: Any) -> None:
    upstream.run(ITEMS, FULL, "CREATE PUBLICATION mine FOR TABLE items")
    with pytest.raises(Stop), upstream.create(publication="mine"):
        raise Stop
    assert upstream.select(LEFT) == [(0, 1)]
    with upstream.create(publication="mine") as beginning:
        pass
    POSTGRES.drop(beginning.definition)
    assert upstream.select(LEFT) == [(0, 1)]


def test_dropping_removes_slot_and_publication_once_or_twice(upstream: Any) -> None:
    upstream.run(ITEMS, FULL)
    with upstream.create("public.items") as beginning:
        definition = json.loads(json.dumps(beginning.definition))
    assert upstream.select(LEFT) == [(1, 1)]
    POSTGRES.drop(definition)
    POSTGRES.drop(definition)
    assert upstream.select(LEFT) == [(0, 0)]


def test_a_slot_that_is_there_is_replaced_only_when_told(upstream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "WATCH_SECONDS", 0.2)
    upstream.run(ITEMS, FULL)
    ((name,),) = upstream.select("SELECT current_database()")
    with upstream.create("public.items", slot=name):
        pass
    with pytest.raises(SourceFailure) as refused, upstream.create("public.items", slot=name):
        pass
    assert "replaceSlot" in refused.value.hint
    with upstream.create("public.items", slot=name, replaceSlot="true") as beginning:
        upstream.begin(beginning)


@pytest.mark.parametrize(
    ("made", "options", "said"),
    [
        ((), {"tables": "public.absent"}, "no such tables"),
        ((), {}, "no such publication"),
        (("CREATE VIEW v AS SELECT 1 AS a",), {"tables": "public.v"}, "only tables"),
        (
            (ITEMS, FULL, "CREATE PUBLICATION part"),
            {"tables": "public.items", "publication": "part"},
            "does not have all",
        ),
        (
            (ITEMS, FULL, "CREATE PUBLICATION part FOR TABLE items WITH (publish = 'insert, update')"),
            {"publication": "part"},
            "leaves changes out",
        ),
    ],
)
def test_what_cannot_be_read_whole_is_refused(
    upstream: Any, made: tuple[str, ...], options: dict[str, str], said: str
) -> None:
    upstream.run(*made)
    before = upstream.select(LEFT)
    with pytest.raises((SourceFailure, InvalidArgument)) as refused, upstream.create(**options):
        pass
    assert said in refused.value.message
    assert refused.value.hint
    assert upstream.select(LEFT) == before


def test_open_writers_are_named_when_they_are_in_the_way(upstream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "SLOT_SECONDS", 1)
    upstream.run(ITEMS, FULL, "CREATE TABLE other (id int)")
    with psycopg.connect(upstream.dsn) as writer:
        writer.execute("INSERT INTO other VALUES (1)")
        pid = writer.info.backend_pid
        with pytest.raises(Determinate) as refused, upstream.create("public.items"):
            pass
        assert str(pid) in refused.value.details["transactions"]
    assert upstream.select(LEFT) == [(0, 0)]
    with upstream.create("public.items"):
        pass


@pytest.mark.parametrize("way", ["adbc", "copy"])
@pytest.mark.parametrize(
    "statements",
    [
        ("TRUNCATE items",),
        ("ALTER TABLE items ALTER id TYPE bigint",),
        ("ALTER TABLE items RENAME TO gone", ITEMS),
        ("DROP TABLE items",),
        ("ALTER TABLE items DROP COLUMN name",),
    ],
)
def test_a_table_that_changes_before_its_snapshot_is_read_is_refused(
    upstream: Any, way: str, statements: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "has_adbc", lambda: way == "adbc")
    upstream.run(ITEMS, FULL, "INSERT INTO items SELECT n, 'x' FROM generate_series(1, 10) n")
    with upstream.create("public.items") as beginning:
        upstream.run(*statements)
        with pytest.raises(SourceFailure):
            upstream.begin(beginning)


def test_a_big_table_is_read_in_parts(upstream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "TASK_BYTES", 64 << 10)
    upstream.run(ITEMS, FULL, "INSERT INTO items SELECT n, repeat('x', 50) FROM generate_series(1, 20000) n")
    upstream.run("CREATE TABLE small (id int PRIMARY KEY)", "ALTER TABLE small REPLICA IDENTITY FULL")
    with upstream.create("public.items, public.small", snapshotTasks="5") as beginning:
        assert len(beginning.snapshot) == 6
        assert sum(task.weight for task in beginning.snapshot) > 20_000 * 50
        upstream.begin(beginning)
        bound = beginning.bound.bound(0)
        (task, *_) = beginning.snapshot
        assert {offset for event in task.read() for offset in event.offsets.to_pylist()} == {bound - 1}
    assert upstream.holds("public.items", "SELECT * FROM items")
    with pytest.raises(SourceFailure):
        next(iter(task.read()))


def test_a_row_filter_holds_for_the_snapshot_too(upstream: Any) -> None:
    if upstream.connection.info.server_version < 150_000:
        pytest.skip("PostgreSQL 14 has no row filters")
    upstream.run(ITEMS, FULL, "INSERT INTO items VALUES (1, 'in'), (2, 'out')")
    upstream.run("CREATE PUBLICATION filtered FOR TABLE items WHERE (name = 'in')")
    with upstream.create(publication="filtered") as beginning:
        reader = upstream.begin(beginning)
    upstream.run("INSERT INTO items VALUES (3, 'in'), (4, 'out')", "UPDATE items SET name = 'in' WHERE id = 2")
    upstream.run("UPDATE items SET name = 'out' WHERE id = 1")
    upstream.follow(reader)
    assert upstream.holds("public.items", "SELECT * FROM items WHERE name = 'in'")


def test_a_server_without_logical_wal_is_told_what_to_set(postgres_uri: str) -> None:
    with pytest.raises(SourceFailure) as refused, POSTGRES.create({"dsn": postgres_uri}, source="shop"):
        pass
    assert "wal_level = logical" in refused.value.hint


def test_a_role_without_rights_is_told_which(upstream: Any) -> None:
    upstream.run(ITEMS, FULL)
    ((name,),) = upstream.select("SELECT current_database()")
    upstream.run(f"CREATE ROLE weak_{name} LOGIN", f"CREATE ROLE able_{name} LOGIN REPLICATION")
    dsn = upstream.dsn.replace("user=postgres", "user={}_" + name)
    try:
        with pytest.raises(SourceFailure, match="may not replicate"):
            POSTGRES.create({"dsn": dsn.format("weak"), "tables": "public.items"}, source="s").__enter__()
        upstream.run("CREATE PUBLICATION given FOR TABLE items")
        options = {"dsn": dsn.format("able"), "publication": "given"}
        with pytest.raises(SourceFailure) as refused:
            POSTGRES.create(options, source="s").__enter__()
        assert refused.value.details["sqlstate"] == "42501"
        upstream.run(f"GRANT SELECT ON items TO able_{name}", "INSERT INTO items VALUES (1, 'a')")
        with POSTGRES.create(options, source="s") as beginning:
            reader = upstream.begin(beginning)
        upstream.run("INSERT INTO items VALUES (2, 'b')")
        upstream.follow(reader)
        reader.commit(upstream.at)
        assert upstream.holds("public.items", "SELECT * FROM items")
        reader.close()
    finally:
        upstream.run(f"DROP OWNED BY able_{name}", f"DROP ROLE weak_{name}", f"DROP ROLE able_{name}")


def test_a_late_undo_or_drop_leaves_the_slot_of_another_alone(upstream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "WATCH_SECONDS", 0.2)
    upstream.run(ITEMS, FULL)
    ((name,),) = upstream.select("SELECT current_database()")
    late = upstream.create("public.items", slot=name)
    first = late.__enter__()
    with upstream.create("public.items", slot=name, replaceSlot="true") as second:
        pass
    assert not late.__exit__(Stop, Stop(), None)
    assert upstream.select(LEFT) == [(1, 1)]
    for bound in (None, first.bound):
        with pytest.raises(UpstreamNotOurs):
            POSTGRES.drop_within(first.definition, bound)
    assert upstream.select(LEFT) == [(1, 1)]
    # A copy of the location, whose slot is another one by now: what the original reads by stays.
    with pytest.raises(UpstreamNotOurs):
        POSTGRES.drop_within({**second.definition, "slot_point": int(second.definition["slot_point"]) + 1}, None)
    assert upstream.select(LEFT) == [(1, 1)]
    POSTGRES.drop_within(second.definition, None)
    assert upstream.select(LEFT) == [(0, 0)]
