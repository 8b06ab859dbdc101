"""Distributed transactions (XA) of MariaDB: their rows are there from their commit on, never when they are prepared."""

import random
import threading
from collections import OrderedDict
from typing import Any

import pytest
from ingest.mysql.conftest import Shop

from persist_ingest import Location, Pipeline, resnapshot, status
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.sources.mysql import distributed
from persist_ingest.sources.mysql.definition import file_of, place_of
from persist_ingest.sources.mysql.making.options import parse_options
from persist_ingest.sources.mysql.session import MySqlConnection
from persist_ingest.sources.mysql.snapshot import settled
from persist_ingest.sources.port import TableAltered


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)


def prepare(shop: Shop, name: str, *statements: str) -> None:
    """In a session that goes on with something else."""
    shop.run(f"XA START {name}", *statements, f"XA END {name}", f"XA PREPARE {name}")
    shop.close()


def restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process remembers is gone."""
    monkeypatch.setattr(distributed, "_known", OrderedDict())


def follows(here: Location, shop: Shop, pipeline: Pipeline, table: str = "t") -> None:
    pipeline.step()
    assert shop.there(here, table) == shop.rows(table)


def test_rows_are_there_from_their_commit_on(here: Location, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE TABLE other (id int PRIMARY KEY)")
    shop.run("INSERT INTO t VALUES (1, 0), (2, 0), (3, 0)")
    with shop.source(here, "t") as pipeline:
        prepare(shop, "'a'", "INSERT INTO t VALUES (10, 1)", "UPDATE t SET a = 7 WHERE id = 1")
        follows(here, shop, pipeline)
        assert (10, 1) not in shop.there(here, "t")
        # Others go on beside it, in the same table.
        shop.run("UPDATE t SET a = 5 WHERE id = 2", "INSERT INTO t VALUES (11, 0)")
        follows(here, shop, pipeline)
        shop.run("XA COMMIT 'a'", "UPDATE t SET a = 8 WHERE id = 10")
        follows(here, shop, pipeline)
        assert (10, 8) in shop.there(here, "t")
        # All in one step, in another order than they were prepared in; one is taken back, one is of another table.
        prepare(shop, "'b'", "INSERT INTO t VALUES (20, 1)")
        prepare(shop, "'c','branch',9", "INSERT INTO t VALUES (21, 1)")
        prepare(shop, "'d'", "DELETE FROM t WHERE id = 3")
        prepare(shop, "'e'", "INSERT INTO other VALUES (1)")
        prepare(shop, "x'00ff27'", "INSERT INTO t VALUES (22, 1)")
        shop.run("XA COMMIT 'c','branch',9", "XA ROLLBACK 'd'", "XA COMMIT 'e'", "XA COMMIT x'00ff27'", "XA COMMIT 'b'")
        follows(here, shop, pipeline)
        shop.run("XA START 'f'", "INSERT INTO t VALUES (30, 1)", "XA END 'f'", "XA COMMIT 'f' ONE PHASE")
        follows(here, shop, pipeline)
        # The same name once more, and nothing is remembered: what the log says last of it counts.
        prepare(shop, "'a'", "DELETE FROM t WHERE id = 11")
        pipeline.step()
        shop.run("FLUSH BINARY LOGS", "INSERT INTO t VALUES (31, 1)", "FLUSH BINARY LOGS")
        pipeline.step()
    restarted(monkeypatch)
    with shop.pipeline(here) as pipeline:
        shop.run("XA COMMIT 'a'")
        follows(here, shop, pipeline)
        assert (11, 0) not in shop.there(here, "t")


def test_a_server_and_its_source_restart_in_between(
    here: Location, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int)")
    with shop.source(here, "t") as pipeline:
        prepare(shop, "'kept'", "INSERT INTO t SELECT seq, 1 FROM seq_1_to_5000")
        prepare(shop, "'gone'", "INSERT INTO t VALUES (9000, 1)")
        follows(here, shop, pipeline)
    shop.close()
    shop.server.kill()
    shop.server.start()
    restarted(monkeypatch)
    with shop.pipeline(here) as pipeline:
        shop.run("INSERT INTO t VALUES (9001, 1)", "XA ROLLBACK 'gone'", "INSERT INTO t VALUES (9000, 2)")
        follows(here, shop, pipeline)
        shop.run("XA COMMIT 'kept'")
        follows(here, shop, pipeline)
        assert sum(shop.there(here, "t").values()) == 5002


def test_what_another_ingester_read_is_not_taken_for_what_came_later(here: Location, shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)")
    with shop.source(here, "t") as one, shop.pipeline(here) as two:
        prepare(shop, "'a'", "INSERT INTO t VALUES (1)")
        one.step()
        shop.run("XA ROLLBACK 'a'")
        prepare(shop, "'a'", "INSERT INTO t VALUES (2)")
        known = dict(distributed._known)
        two.step()
        two.step()
        # As in a process that read the first one, and not what another one read since.
        distributed._known.update(known)
        shop.run("XA COMMIT 'a'")
        one.step()  # finds out how far the other one is
        follows(here, shop, one)
        assert [*shop.there(here, "t")] == [(2,)]


def test_what_was_prepared_before_a_snapshot_is_committed_behind_it(
    here: Location, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    prepare(shop, "'a'", "INSERT INTO t VALUES (2)")
    with shop.source(here, "t", "u") as pipeline:
        follows(here, shop, pipeline)
        prepare(shop, "'b'", "INSERT INTO t VALUES (3)")
        resnapshot(here, "shop", shop.export("t"))
        shop.run("XA COMMIT 'a'", "XA COMMIT 'b'")
        while shop.there(here, "t") != shop.rows("t"):
            pipeline.step()
        prepare(shop, "'c'", "INSERT INTO t VALUES (4)")
        pipeline.step()
        shop.run("XA COMMIT 'c'")
        resnapshot(here, "shop", shop.export("t"))
        for _ in range(3):
            pipeline.step()
        assert shop.there(here, "t") == shop.rows("t")


def test_one_whose_rows_were_purged_stops_the_table(
    here: Location, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    with shop.source(here, "t") as pipeline:
        prepare(shop, "'a'", "INSERT INTO t VALUES (1)")
        shop.run("FLUSH BINARY LOGS")
        pipeline.step()
        ((file, *_),) = shop.select("SHOW MASTER STATUS")
        shop.run(f"PURGE BINARY LOGS TO '{file}'", "XA COMMIT 'a'")
        restarted(monkeypatch)
        with pytest.raises(TableAltered, match="rows the log has no more"):
            pipeline.step()


def test_a_moment_has_every_commit_that_the_log_has(shop: Shop) -> None:
    """Such a commit is logged before others see it: 2 in 100 moments were between."""
    shop.run("CREATE TABLE t (id int PRIMARY KEY)")
    ends, stop, failed = list[tuple[int, int]](), threading.Event(), list[BaseException]()
    server = parse_options({**shop.options, "tables": shop.export("t")}).server

    def commits() -> None:
        session = shop.connect()
        try:
            while not stop.is_set():
                number = len(ends) + 1
                with session.cursor() as cursor:
                    for each in (
                        f"XA START 'n{number}'",
                        f"INSERT INTO t VALUES ({number})",
                        f"XA END 'n{number}'",
                        f"XA PREPARE 'n{number}'",
                        f"XA COMMIT 'n{number}'",
                        "SHOW MASTER STATUS",
                    ):
                        cursor.execute(each)
                    file, place = cursor.fetchone()[:2]
                    ends.append((int(file.rpartition(".")[2]), place))
        except BaseException as error:
            failed.append(error)
        finally:
            session.close()

    thread = threading.Thread(target=commits)
    thread.start()
    found = list[tuple[tuple[int, int], int]]()
    try:
        with MySqlConnection(server) as session, MySqlConnection(server) as other:
            while len(found) < 300:
                now = settled(session, other)
                (count,) = session.row(f"SELECT COUNT(*) FROM {shop.export('t')}")
                session.run("ROLLBACK")
                found.append(((file_of(now.offset), place_of(now.offset)), int(str(count))))
    finally:
        stop.set()
        thread.join()
    assert not failed
    assert [count for _, count in found] == [sum(end <= place for end in ends) for place, _ in found]


def test_random_transactions_of_all_kinds(here: Location, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(11)
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t SELECT seq, 0 FROM seq_1_to_40")
    open_: dict[str, list[int]] = {}
    pipeline = shop.source(here, "t")
    for number in range(40):
        free = [each for each in range(1, 41) if not any(each in held for held in open_.values())]
        kind = chance.random()
        if kind < 0.35 and len(free) > 5:
            name, rows = f"'r{number % 7}'", chance.sample(free, 3)
            if name not in open_:
                prepare(
                    shop,
                    name,
                    f"UPDATE t SET a = a + {number} WHERE id = {rows[0]}",
                    f"DELETE FROM t WHERE id = {rows[1]}",
                    f"REPLACE INTO t VALUES ({rows[2]}, {number})",
                )
                open_[name] = rows
        elif kind < 0.7 and open_:
            name = chance.choice([*open_])
            shop.run(f"XA {chance.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])} {name}")
            del open_[name]
        elif kind < 0.85 and free:
            shop.run(f"REPLACE INTO t VALUES ({chance.choice(free)}, {number})")
        else:
            shop.run("FLUSH BINARY LOGS")
        if chance.random() < 0.5:
            follows(here, shop, pipeline)
        if chance.random() < 0.1:
            pipeline.close()
            restarted(monkeypatch)
            pipeline = shop.pipeline(here)
    for name in open_:
        shop.run(f"XA COMMIT {name}")
    follows(here, shop, pipeline)
    pipeline.close()
    told: Any = status(here, "shop", ask_upstream=False, count_rows=True).counts[shop.export("t")]
    assert not told.negative
