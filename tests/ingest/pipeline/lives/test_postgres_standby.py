"""A source of a standby: what its snapshots leave unsaid is not guessed, and it goes on when that one is promoted."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from ingest.pipeline.conftest import contents
from ingest.pipeline.lives.standbys import CONFIG, logging, promote, replayed, sql, standby_of, until

from persist import Determinate
from persist.sources import UpstreamLost
from persist.testing import servers
from persist_ingest import Location, Pace, Pipeline, PipelineOptions, Records, create, drop, resnapshot
from persist_ingest.location import client
from persist_ingest.pipeline.anew import attempt
from persist_ingest.sources.port import SourceFailure
from persist_ingest.sources.postgres import pieces
from persist_ingest.sources.postgres.making import again as making
from persist_ingest.sources.postgres.making import slots
from persist_ingest.sources.postgres.session import check_dsn, let_go

ITEMS = "public.items"
FAST = PipelineOptions(tick_ms=1)


class Pair:
    """A primary with one table, and its standby."""

    def __init__(self, primary: servers.Server, standby: servers.Server) -> None:
        self.dsn = f"host=127.0.0.1 port={standby.port} user=postgres dbname=postgres"
        self.first, self.standby = primary, standby
        self.primary = psycopg.connect(primary.uri, autocommit=True)
        self.long = psycopg.connect(primary.uri)

    def __enter__(self) -> "Pair":
        self.run(
            "CREATE TABLE items (id int PRIMARY KEY, name text)",
            "ALTER TABLE items REPLICA IDENTITY FULL",
            "INSERT INTO items SELECT i * 10, 'n' FROM generate_series(1, 30) i",
            "CREATE PUBLICATION everything FOR TABLE items",
        )
        return self

    def __exit__(self, *_: object) -> None:
        let_go(check_dsn(self.dsn))
        self.primary.close()
        self.long.close()

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.primary.execute(statement.encode())

    def replayed(self) -> None:
        """Until the standby shows all that was committed."""
        replayed(self.first, self.standby)

    def made(self, here: Location, **options: str) -> None:
        self.replayed()
        create(here, "shop", "postgres", {"dsn": self.dsn, "publication": "everything", **options}, interval_ms=1)

    def ingest(self, here: Location, steps: int = 1) -> None:
        self.replayed()
        with Pipeline(here, "shop", options=FAST) as pipeline:
            pipeline.run(steps=steps)


@pytest.fixture(params=[16, 18])
def version(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def pair(version: int) -> Iterator[Pair]:
    with (
        servers.start_postgres(CONFIG, version=version) as primary,
        standby_of(primary, version, CONFIG, "standby") as standby,
        Pair(primary, standby) as both,
    ):
        yield both


@pytest.fixture
def logged(pair: Pair) -> Iterator[Pair]:
    """One whose primary logs all the time what slots of a standby begin at, and move to."""
    with logging(pair.first):
        yield pair


def there(server: servers.Server) -> Counter[Any]:
    return Counter(sql(server, "SELECT * FROM items"))


@pytest.mark.parametrize("version", [16], indirect=True)
def test_a_piece_waits_until_no_transaction_is_open_on_the_primary(
    here: Location, logged: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = logged
    monkeypatch.setattr(attempt, "PAUSE_SECONDS", 0.0)
    pair.made(here)
    piece, rows = making.TableAnew.piece, pieces.TablePiece.rows
    count = 0

    def opened(*given: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            pair.long.execute("INSERT INTO items VALUES (125, 'long')")
            pair.long.execute("UPDATE items SET name = 'long' WHERE id IN (20, 120, 130, 280)")
            pair.primary.execute("INSERT INTO items VALUES (256, 'later')")
            pair.replayed()
        elif count == 4:
            committed()
        return piece(*given)

    def committed() -> None:
        pair.long.commit()
        pair.replayed()

    def read(self: pieces.TablePiece) -> Iterator[Any]:
        if count == 3:
            committed()
        yield from rows(self)

    monkeypatch.setattr(making.TableAnew, "piece", opened)
    monkeypatch.setattr(pieces.TablePiece, "rows", read)
    resnapshot(here, "shop", "public.items", pace=Pace(rows=5))
    pair.replayed()
    with Pipeline(here, "shop", options=PipelineOptions(tick_ms=1)) as pipeline:
        pipeline.step()
    wanted = Counter(pair.primary.execute("SELECT * FROM items").fetchall())
    assert contents(here, "shop", "public.items") == wanted
    assert wanted[125, "long"] == 1


def test_a_standby_is_read_through_changes_of_its_primary_and_its_own_promotion(here: Location, logged: Pair) -> None:
    pair = logged
    pair.made(here)
    pair.run("INSERT INTO items VALUES (1, 'one')", "UPDATE items SET name = 'x' WHERE id = 20")
    pair.ingest(here)
    assert contents(here, "shop", ITEMS) == there(pair.first)
    pair.run("ALTER TABLE items ADD COLUMN size int", "INSERT INTO items VALUES (2, 'two', 5)")
    pair.ingest(here)
    assert contents(here, "shop", ITEMS) == there(pair.first)
    pair.run("TRUNCATE items", "INSERT INTO items VALUES (3, 'three', NULL), (4, 'four', 4)")
    pair.ingest(here, 3)
    assert contents(here, "shop", ITEMS) == there(pair.first)
    with Pipeline(here, "shop", options=FAST) as pipeline:
        pipeline.step()
        pair.run("INSERT INTO items VALUES (5, 'five', 5)")
        pair.replayed()
        # Its sessions stay.
        promote(pair.standby)
        sql(pair.standby, "INSERT INTO items VALUES (6, 'six', 6)", "DELETE FROM items WHERE id = 3")
        pipeline.run(steps=2)
        assert contents(here, "shop", ITEMS) == there(pair.standby)
    source = Records(client(here)).source("shop")
    assert [timeline for timeline, _ in source.definition["followed"]] == [2]
    resnapshot(here, "shop", ITEMS)
    sql(pair.standby, "INSERT INTO items VALUES (7, 'seven', 7)")
    with Pipeline(here, "shop", options=FAST) as pipeline:
        pipeline.run(steps=2)
    assert contents(here, "shop", ITEMS) == there(pair.standby)


@pytest.mark.parametrize("version", [18], indirect=True)
def test_a_standby_that_follows_another_primary_is_on_its_timeline_at_once(here: Location, logged: Pair) -> None:
    """What it says in its control file is that of its last restart point."""
    pair = logged
    with standby_of(pair.first, 18, CONFIG, "other") as other:
        pair.made(here)
        pair.run("INSERT INTO items VALUES (1, 'one')")
        pair.ingest(here)
        replayed(pair.first, other)
        pair.first.kill()
        promote(other)
        sql(other, "SELECT pg_create_physical_replication_slot('standby', true)")
        where = f"host=127.0.0.1 port={other.port} user=postgres"
        sql(pair.standby, f"ALTER SYSTEM SET primary_conninfo = '{where}'", "SELECT pg_reload_conf()")
        sql(other, "INSERT INTO items VALUES (2, 'two')")
        replayed(other, pair.standby)
        assert sql(pair.standby, "SELECT timeline_id FROM pg_control_checkpoint()") == [(1,)]
        with Pipeline(here, "shop", options=FAST) as pipeline:
            pipeline.step()
        assert contents(here, "shop", ITEMS) == there(other)
        source = Records(client(here)).source("shop")
        assert [timeline for timeline, _ in source.definition["followed"]] == [2]
        # Once it is in the control file, too.
        sql(other, "INSERT INTO items VALUES (3, 'three')", "CHECKPOINT")
        replayed(other, pair.standby)
        sql(pair.standby, "CHECKPOINT")
        with Pipeline(here, "shop", options=FAST) as pipeline:
            pipeline.step()
        assert contents(here, "shop", ITEMS) == there(other)


@pytest.mark.parametrize("version", [16], indirect=True)
def test_what_a_standby_cannot_do_is_refused_with_what_to_do_and_leaves_nothing(
    here: Location, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "STANDBY_SECONDS", 1.0)
    pair.run("CREATE TABLE plain (id int)", "CREATE PUBLICATION plain FOR TABLE plain")
    create(here, "other", "postgres", {"dsn": pair.first.uri, "tables": ITEMS})
    pair.replayed()
    asked: list[tuple[dict[str, str], str, str]] = [
        ({"publication": "none", "tables": ITEMS}, "cannot make the publication", "on the primary: CREATE PUBLICATION"),
        ({"publication": "persist_other"}, "a source made this publication", "CREATE PUBLICATION on the primary"),
        ({"publication": "plain", "setReplicaIdentity": "true"}, "refused", "do it on the primary"),
        ({"publication": "everything", "failoverSlot": "true"}, "it stays when", "leave failoverSlot out"),
    ]
    for options, message, hint in asked:
        with pytest.raises(SourceFailure, match=message) as raised:
            create(here, "shop", "postgres", {"dsn": pair.dsn, **options})
        assert hint in str(raised.value.hint)
    with pytest.raises(SourceFailure, match="from PostgreSQL 17 on"):
        create(here, "shop", "postgres", {"dsn": pair.first.uri, "tables": ITEMS, "failoverSlot": "true"})
    # Nothing happens on the primary, so that it logs nothing by itself.
    drop(here, "other")
    with pytest.raises(Determinate, match="has logged which transactions run") as late:
        pair.made(here)
    assert "pg_log_standby_snapshot" in str(late.value.hint)
    assert sql(pair.standby, "SELECT slot_name FROM pg_replication_slots") == []
    with logging(pair.first):
        pair.made(here)
    assert contents(here, "shop", ITEMS) == there(pair.first)
    drop(here, "shop")
    assert sql(pair.standby, "SELECT slot_name FROM pg_replication_slots") == []


def test_a_slot_that_the_standby_gave_up_is_named_with_its_cure_and_tables_are_read_anew(
    here: Location, version: int
) -> None:
    with (
        servers.start_postgres(CONFIG, version=version) as primary,
        standby_of(primary, version, CONFIG) as standby,
        Pair(primary, standby) as pair,
        logging(primary),
    ):
        pair.made(here)
        pair.run("INSERT INTO items VALUES (1, 'one')")
        pair.ingest(here)
        pair.run("CREATE TABLE fleeting (id int)", "DROP TABLE fleeting", "VACUUM pg_class", "VACUUM pg_attribute")
        until(lambda: sql(standby, "SELECT wal_status FROM pg_replication_slots") == [("lost",)])
        with pytest.raises(UpstreamLost, match="the primary removed") as raised:
            pair.ingest(here)
        assert "hot_standby_feedback" in str(raised.value.hint)
        slot = Records(client(here)).source("shop").definition["slot"]
        sql(
            standby,
            f"SELECT pg_drop_replication_slot('{slot}')",
            f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
        )
        resnapshot(here, "shop", ITEMS)
        pair.run("INSERT INTO items VALUES (2, 'two')")
        pair.ingest(here, 2)
        assert contents(here, "shop", ITEMS) == there(primary)
