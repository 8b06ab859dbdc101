"""Sessions that hold a table: what the second one knows of the server from the first, and what not."""

import threading
from typing import Any

import psycopg
import pytest

from persist import PersistError
from persist_ingest.sources.port import AlteredMeanwhile, SourceFailure
from persist_ingest.sources.postgres import rows
from persist_ingest.sources.postgres.column_types import ENUM, column_type

INT4 = 23
ITEMS = "public.items"
WHOLE_CATALOG = "pg_catalog.pg_attribute"


def column(holder: rows.Holder, name: str, kind: Any) -> list[Any]:
    [[made]] = list(holder.columns([name], [kind], f"FROM {ITEMS} ORDER BY i"))
    found: list[Any] = made().to_pylist()
    return found


@pytest.fixture
def logged(upstream: Any) -> Any:
    """What is said to the server is in its log."""
    upstream.run("CREATE TABLE items (i int)", "INSERT INTO items VALUES (7)")
    upstream.run(f"ALTER DATABASE {upstream.connection.info.dbname} SET log_statement = 'all'")
    return upstream


def test_only_the_first_session_reads_the_catalogs_whole(logged: Any) -> None:
    before = logged.server.log().count(WHOLE_CATALOG)
    for _ in range(3):
        with rows.held(logged.dsn, ITEMS, adbc=True) as holder:
            assert holder.rows("SELECT i FROM public.items") == [(7,)]
    assert logged.server.log().count(WHOLE_CATALOG) == before + 1


def test_later_sessions_read_types_made_after_the_first(logged: Any) -> None:
    with rows.held(logged.dsn, ITEMS, adbc=True) as holder:
        assert column(holder, "i", column_type(INT4, -1)) == [7]
    logged.run("CREATE TYPE mood AS ENUM ('sad', 'ok')", "ALTER TABLE items ADD COLUMN mood mood DEFAULT 'ok'")
    with rows.held(logged.dsn, ITEMS, adbc=True) as holder:
        assert column(holder, "mood", column_type(0, -1, ENUM)) == ["ok"]


def test_sessions_at_once_are_apart(logged: Any) -> None:
    found: list[Any] = []
    both = threading.Barrier(2)

    def hold() -> None:
        with rows.held(logged.dsn, ITEMS, adbc=True) as holder:
            both.wait(60)
            found.extend(holder.rows("SELECT pg_backend_pid()"))
            both.wait(60)

    threads = [threading.Thread(target=hold) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 2


def test_a_session_that_failed_leaves_the_next_one_whole(logged: Any) -> None:
    for broken in ("SELECT 1 / 0", "SELECT i FROM public.nowhere"):
        with rows.held(logged.dsn, ITEMS, adbc=True) as holder, pytest.raises((SourceFailure, AlteredMeanwhile)):
            holder.rows(broken)
        with pytest.raises(PersistError), rows.held(logged.dsn, "public.nowhere", adbc=True):
            pass
        with rows.held(logged.dsn, ITEMS, adbc=True) as holder:
            assert holder.rows("SELECT i FROM public.items") == [(7,)]


def test_a_session_that_is_left_amid_rows_holds_the_table_no_longer(logged: Any) -> None:
    with rows.held(logged.dsn, ITEMS, adbc=True) as holder:
        groups = holder.columns(["i"], [column_type(INT4, -1)], "FROM (SELECT generate_series(1, 4000000) i) s")
        assert next(groups)
    with psycopg.connect(logged.dsn, autocommit=True) as other:
        other.execute("SET lock_timeout = '60s'")
        other.execute("DROP TABLE items")
