"""A log that is safely written up to amid a record, as where a server dies: a source goes on, and reads all of it."""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import psycopg
from ingest.pipeline.conftest import contents
from ingest.pipeline.lives.pairs import ITEMS, Pair, made, pipeline, there
from ingest.pipeline.lives.standbys import promote, sql, until

from persist.testing import servers
from persist_ingest import Location, Records
from persist_ingest.location import client
from persist_ingest.sources.postgres import catalog


def test_a_server_that_died_amid_a_record_is_followed_where_the_record_before_ended(here: Location, pair: Pair) -> None:
    """What is safely written ends with a page then, inside a record, which no server that takes over ever has."""
    sql(pair.primary, "CREATE TABLE junk (t text)", "ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()")
    made(here)
    pair.fill(pair.primary, 1, 10)
    with pipeline(here) as opened:
        pair.synced(opened)
        opened.run(steps=3)
        with (
            contextlib.closing(psycopg.connect(pair.primary.uri)) as writing,
            frozen_amid_a_page(pair.primary, writing) as (flushed, writer),
        ):
            opened._bind(opened._open())
            bound = client(here).minter().bindings(opened.source.remap_source).frontier.bound(0) or 0
            assert bound <= flushed
            until(lambda: sql(pair.standby, f"SELECT pg_last_wal_receive_lsn() - '0/0' >= {flushed}") == [(True,)])
            # It would live on, as it does not notice that the others ended.
            pair.primary.pause()
            os.kill(writer, signal.SIGKILL)
            pair.primary.kill()
        promote(pair.standby)
        assert catalog.position(sql(pair.standby, "SELECT pg_last_wal_replay_lsn()::text")[0][0]) < flushed
        pair.lead(pair.standby)
        pair.fill(pair.standby, 11, 20)
        opened.run(steps=3)
        assert contents(here, "shop", ITEMS) == there(pair.standby)
    source = Records(client(here)).source("shop")
    assert [timeline for timeline, _ in source.definition["followed"]] == [2]


def test_what_was_committed_is_read_although_the_log_rests_amid_a_record(here: Location, pair: Pair) -> None:
    sql(pair.primary, "CREATE TABLE junk (t text)", "ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()")
    made(here)
    with pipeline(here) as opened:
        opened.step()
        pair.fill(pair.primary, 1, 10)
        with (
            contextlib.closing(psycopg.connect(pair.primary.uri)) as writing,
            frozen_amid_a_page(pair.primary, writing),
        ):
            opened.run(steps=3)
            assert contents(here, "shop", ITEMS) == there(pair.primary)


@contextlib.contextmanager
def frozen_amid_a_page(server: servers.Server, writing: Any) -> Iterator[tuple[int, int]]:
    """What is safely written ends inside a record, at this position; the process that would write on stands still."""
    ((pid,),) = sql(server, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")

    def is_amid() -> Any:
        writing.execute("INSERT INTO junk SELECT repeat('x', 1500) FROM generate_series(1, 2000)")
        os.kill(pid, signal.SIGSTOP)
        asked = "SELECT pg_current_wal_flush_lsn() - '0/0', pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn()"
        ((flushed, more),) = sql(server, asked)
        if flushed % 8192 == 0 and more > 100:
            return int(flushed)
        os.kill(pid, signal.SIGCONT)
        return 0

    flushed = until(is_amid)
    try:
        yield flushed, pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
