"""What a step costs whatever is in it, counted: sessions, statements and reads of the log of a real PostgreSQL."""

import re
import threading
from collections import Counter
from typing import Any

import pytest
from ingest.pipeline.conftest import contents

import persist
from persist.client.shard.write import prepared
from persist.testing import servers
from persist_ingest import Location, Pipeline, PipelineOptions, create

OPTIONS = PipelineOptions(tick_ms=1, forget_ms=10**9, told_ms=10**9, commit_steps_late=10**9)
"""Without what is done every few seconds, not at every step."""
SAID = re.compile(r"\[(\d+)\] LOG: +(?:statement|execute [^:]*): ([^\n]*(?:\n\t[^\n]*)*)")
PEEK = "pg_logical_slot_peek_binary_changes"
LOOK = "c.relreplident"
"""In what asks for all tables of a source as they are."""
TABLES = 4


@pytest.fixture
def logged(shop: Any) -> Any:
    """All that is said to the server is in its log, by processes of the server."""
    shop.run(f"ALTER DATABASE {shop.connection.info.dbname} SET log_statement = 'all'")
    return shop


def said(server: servers.Server, shop: Any, after: int) -> list[tuple[str, str]]:
    """Process and statement of each that was said since the log was so long, by all sessions but the test's own."""
    mine = str(shop.connection.info.backend_pid)
    return [(process, text) for process, text in SAID.findall(server.log()[after:]) if process != mine]


def begun(here: Location, shop: Any, tables: int) -> Pipeline:
    names = [f"public.t{number}" for number in range(tables)]
    for name in names:
        shop.run(f"CREATE TABLE {name} (id int PRIMARY KEY)", f"ALTER TABLE {name} REPLICA IDENTITY FULL")
    create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": ",".join(names)}, interval_ms=1)
    pipeline = Pipeline(here, "shop", options=OPTIONS)
    pipeline.step()
    return pipeline


@pytest.mark.parametrize("tables", [1, 12])
def test_a_step_opens_no_session_and_says_as_much_whatever_is_in_it(
    here: Location, logged: Any, shop_server: servers.Server, tables: int
) -> None:
    with begun(here, logged, tables) as pipeline:
        sessions, counts = set[str](), set[int]()
        for number in range(6):
            logged.run(f"INSERT INTO t0 SELECT generate_series({number * 100}, {number * 100 + number * 10})")
            before = len(shop_server.log())
            assert pipeline.step().rows == number * 10 + 1
            statements = said(shop_server, logged, before)
            sessions |= {process for process, _ in statements}
            counts.add(len(statements))
            assert [sum(of in text for _, text in statements) for of in (LOOK, PEEK)] == [2, 1], (
                "tables are looked at before the log is bound and before it is read"
            )
    assert len(sessions) == 1, "the same in all steps"
    assert max(counts) <= 20, counts


def test_exports_are_appended_to_side_by_side(here: Location, logged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with rows and those without: each append ends once all have begun."""
    with begun(here, logged, TABLES) as pipeline:
        all_of_them, append = threading.Barrier(TABLES), persist.WriteHandle.compare_and_append_batches

        def together(*given: Any) -> Any:
            all_of_them.wait(60)
            return append(*given)

        monkeypatch.setattr(persist.WriteHandle, "compare_and_append_batches", together)
        logged.run("INSERT INTO t0 VALUES (1)", "INSERT INTO t1 VALUES (1)")
        step = pipeline.step()
        assert (step.rows, step.appended) == (2, TABLES)


def test_exports_are_written_side_by_side(here: Location, logged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with begun(here, logged, TABLES) as pipeline:
        all_of_them, finish = threading.Barrier(TABLES), prepared.PreparedBuilder.finish

        def together(*given: Any) -> Any:
            all_of_them.wait(60)
            return finish(*given)

        monkeypatch.setattr(prepared.PreparedBuilder, "finish", together)
        logged.run(*(f"INSERT INTO t{number} VALUES (1)" for number in range(TABLES)))
        assert pipeline.step().rows == TABLES


@pytest.mark.parametrize("truncations", [2, 30])
def test_a_step_of_many_truncations_reads_the_log_twice(
    here: Location, logged: Any, shop_server: servers.Server, truncations: int
) -> None:
    with begun(here, logged, 1) as pipeline:
        logged.run("INSERT INTO t0 VALUES (1000)")
        pipeline.step()
        for number in range(truncations):
            numbers = f"generate_series({number * 10}, {number * 10 + 9})"
            logged.run(f"INSERT INTO t0 SELECT {numbers}", f"DELETE FROM t0 WHERE id = {number * 10}", "TRUNCATE t0")
        logged.run("INSERT INTO t0 VALUES (7)")
        before = len(shop_server.log())
        pipeline.step()
        peeks = [text for _, text in said(shop_server, logged, before) if PEEK in text]
        assert len(peeks) <= 2
        assert contents(here, "shop", "public.t0") == Counter({(7,): 1})
