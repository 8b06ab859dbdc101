"""What a live server and its readers go through: kills, restarts, rotation, purges, resets, and new snapshots."""

import json
import random
import shutil
import signal
import subprocess
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import run_program
from ingest.mysql.conftest import Shop

from persist import LocationError, NotReadable
from persist.sources import UpstreamLost, UpstreamRegressed, UpstreamReplaced
from persist.testing import servers
from persist_ingest import Location, Pace, Pipeline, add_export, create, drop_export, resnapshot, status
from persist_ingest.location import client
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.pipeline.anew import attempt
from persist_ingest.pipeline.records import Records
from persist_ingest.sources.mysql import catalog
from persist_ingest.sources.mysql.column_types import ZeroDates
from persist_ingest.sources.mysql.making import again, pieces, setup
from persist_ingest.sources.mysql.making.defining import defined
from persist_ingest.sources.mysql.making.key_order import KeyOrder
from persist_ingest.sources.mysql.making.options import parse_options
from persist_ingest.sources.mysql.session import MySqlConnection
from persist_ingest.sources.port import HeldUp, SourceFailure


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(attempt, "PAUSE_SECONDS", 0.0)


def state(here: Location, shop: Shop, table: str) -> str:
    return status(here, "shop", ask_upstream=False).exports[shop.export(table)].state


def follows(here: Location, shop: Shop, pipeline: Pipeline, table: str, columns: str = "*") -> None:
    """Within some steps, as what others recorded is seen after one."""
    for _ in range(5):
        pipeline.step()
        if shop.there(here, table) == shop.rows(table, columns):
            return
    assert shop.there(here, table) == shop.rows(table, columns)


def test_rotations_restarts_and_kills_of_the_server(here: Location, shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY AUTO_INCREMENT, a int)")
    pipeline = shop.source(here, "t")
    for number in range(3):
        shop.run(f"INSERT INTO t (a) VALUES ({number}), ({number})", "FLUSH BINARY LOGS", "UPDATE t SET a = a + 1")
        pipeline.step()
        assert shop.there(here, "t") == shop.rows("t")
    pipeline.close()
    # In the middle of the files, of which the next step reads several; and its table's number is another one then.
    shop.run("INSERT INTO t (a) VALUES (7)")
    shop.close()
    shop.server.kill()
    with shop.pipeline(here) as pipeline:
        with pytest.raises(LocationError, match="connect"):
            pipeline.step()
        shop.server.start()
        shop.run("DELETE FROM t WHERE id = 1", "FLUSH BINARY LOGS")
        pipeline.step()
        assert shop.there(here, "t") == shop.rows("t")
        shop.close()
        # While it is connected.
        shop.server.kill()
        shop.server.start()
        with pytest.raises(LocationError, match="away"):
            pipeline.step()
        shop.run("UPDATE t SET a = 99")
        pipeline.step()
        assert shop.there(here, "t") == shop.rows("t")


PROGRAM = """
import json, sys
from ingest.pipeline.anew.killing import killed_at
from persist_ingest import Location, Pipeline, PipelineOptions

directory, place, number, log = json.loads(sys.argv[1])
killed_at(place, number, log)
with Pipeline(Location(directory=directory), "shop", options=PipelineOptions(tick_ms=1)) as pipeline:
    for _ in range(9):
        pipeline.step()
"""


@pytest.mark.parametrize(
    "place", ["WriteHandle.compare_and_append_batches", "WriteHandle.compare_and_append_batches.after"]
)
def test_an_ingester_is_killed_around_its_append(here: Location, shop: Shop, tmp_path: Path, place: str) -> None:
    shop.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    shop.source(here, "a", "b").close()
    for number in range(2):
        shop.run("BEGIN", f"INSERT INTO a VALUES ({number})", f"INSERT INTO b VALUES ({number})", "COMMIT")
        given = json.dumps([here.directory, place, number + 1, str(tmp_path / "log")])
        done = run_program(textwrap.dedent(PROGRAM), given)
        assert done.returncode == -signal.SIGKILL, done.stderr
    with shop.pipeline(here) as pipeline:
        pipeline.step()
        assert shop.there(here, "a") == shop.rows("a")
        assert shop.there(here, "b") == shop.rows("b")


def test_two_ingesters_write_the_same_once(here: Location, shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY AUTO_INCREMENT, a int)")
    with shop.source(here, "t") as one, shop.pipeline(here) as other:
        for number in range(6):
            shop.run(f"INSERT INTO t (a) VALUES ({number})", "UPDATE t SET a = a + 1")
            (one, other)[number % 2].step()
        other.step()
        one.step()
        assert shop.there(here, "t") == shop.rows("t")


def test_a_purged_log_is_lost_and_says_what_to_do(here: Location, shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)")
    with shop.source(here, "t") as pipeline:
        pipeline.step()
        before = shop.there(here, "t")
        shop.run("INSERT INTO t VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS")
        # A file that the server still reads for a connection that is gone stays, until it has noticed that.
        while len(shop.select("SHOW BINARY LOGS")) > 1:
            shop.run(f"PURGE BINARY LOGS TO '{shop.select('SHOW MASTER STATUS')[0][0]}'")
        for again in (pipeline, shop.pipeline(here)):
            with pytest.raises(UpstreamLost, match="threw away") as raised:
                again.step()
            assert "new source" in str(raised.value.hint)
        assert shop.there(here, "t") == before


def test_what_was_read_may_be_purged(here: Location, shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)")
    with shop.source(here, "t") as pipeline:
        for number in range(3):
            shop.run(f"INSERT INTO t VALUES ({number})", "FLUSH BINARY LOGS")
            pipeline.step()
            shop.run(f"PURGE BINARY LOGS TO '{shop.select('SHOW MASTER STATUS')[0][0]}'")
        with shop.pipeline(here) as again:
            shop.run("INSERT INTO t VALUES (9)")
            again.step()
        assert shop.there(here, "t") == shop.rows("t")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Shop]:
    """A server that is reset, and exchanged for another."""
    with servers.start_mariadb() as server:
        made = Shop(server, "mysql")
        made.run("CREATE DATABASE own")
        made.close()
        made.name = "own"
        yield made
        made.close()


def test_another_log_is_never_taken_for_the_one_that_was_read(here: Location, own: Shop) -> None:
    own.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with own.source(here, "t") as pipeline:
        own.run("INSERT INTO t VALUES (2)")
        pipeline.step()
    # A replica that was promoted, at the same address; and the server comes back.
    own.run("SET GLOBAL server_id = 8")
    with own.pipeline(here) as again, pytest.raises(UpstreamReplaced, match="another server") as raised:
        again.step()
    assert "new source" in str(raised.value.hint)
    own.run("SET GLOBAL server_id = 7")
    with own.pipeline(here) as pipeline:
        follows(here, own, pipeline, "t")
        before = own.there(here, "t")
        own.run("RESET MASTER", "INSERT INTO t VALUES (3)")
        with pytest.raises((UpstreamReplaced, UpstreamRegressed)):
            pipeline.step()
        # Beyond all that was read, at other transactions.
        own.run("BEGIN", *(f"INSERT INTO t VALUES ({number})" for number in range(10, 60)), "COMMIT")
        with own.pipeline(here) as again, pytest.raises(HeldUp, match="no export"):
            again.step()
        assert own.there(here, "t") == before
    with pytest.raises(UpstreamReplaced, match="reset") as raised:
        resnapshot(here, "shop", own.export("t"))
    assert "new source" in str(raised.value.hint)
    assert own.there(here, "t") == before


def test_numbers_of_transactions_that_go_down_are_no_lost_log(here: Location, own: Shop) -> None:
    own.run("CREATE TABLE t (id int PRIMARY KEY)")
    with own.source(here, "t") as pipeline:
        own.run("SET gtid_domain_id = 5", "INSERT INTO t VALUES (1)", "SET gtid_domain_id = 0, gtid_seq_no = 1000")
        own.run("INSERT INTO t VALUES (2)")
        follows(here, own, pipeline, "t")
        own.run("SET gtid_seq_no = 500", "INSERT INTO t VALUES (3)")
        follows(here, own, pipeline, "t")
        own.run("FLUSH BINARY LOGS")
        follows(here, own, pipeline, "t")
        # A file that the server still reads for a connection that is gone stays, until it has noticed that.
        while len(own.select("SHOW BINARY LOGS")) > 1:
            own.run(f"PURGE BINARY LOGS TO '{own.select('SHOW MASTER STATUS')[0][0]}'")
        own.run("FLUSH BINARY LOGS DELETE_DOMAIN_ID = (5)", "INSERT INTO t VALUES (4)")
        assert [str(row[0]).split("-")[0] for row in own.select("SELECT @@gtid_binlog_pos")] == ["0"]
        follows(here, own, pipeline, "t")
    with own.pipeline(here) as again:
        own.run("INSERT INTO t VALUES (5)")
        follows(here, own, again, "t")
        before = own.there(here, "t")
        own.run(
            "RESET MASTER", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (6)"
        )
        with pytest.raises((UpstreamReplaced, UpstreamRegressed)):
            again.step()
        assert own.there(here, "t") == before


def test_files_that_were_put_back_are_not_forgotten_once_they_grew(here: Location, own: Shop, tmp_path: Path) -> None:
    data, earlier = own.server.directory / "data", tmp_path / "earlier"

    def killed(then: Callable[[], object]) -> None:
        own.close()
        own.server.kill()
        then()
        own.server.start()

    def put_back() -> None:
        shutil.rmtree(data)
        subprocess.run(["cp", "-a", earlier, data], check=True)

    own.run("CREATE TABLE t (id int PRIMARY KEY, a varchar(9))", "INSERT INTO t VALUES (1, 'first')")
    own.source(here, "t").close()
    killed(lambda: subprocess.run(["cp", "-a", data, earlier], check=True))
    own.run(*(f"INSERT INTO t VALUES ({number}, 'old')" for number in range(100, 120)))
    with own.pipeline(here) as pipeline:
        pipeline.step()
    before = own.there(here, "t")
    killed(put_back)
    with own.pipeline(here) as pipeline, pytest.raises(UpstreamReplaced, match="lost its end"):
        pipeline.step()
    # As many transactions, of as many bytes each: the log says of itself what it said before.
    own.run(*(f"INSERT INTO t VALUES ({number}, 'new')" for number in range(100, 160)))
    with own.pipeline(here) as pipeline, pytest.raises(HeldUp, match="no export"):
        pipeline.step()
    assert own.there(here, "t") == before
    resnapshot(here, "shop", own.export("t"))
    with own.pipeline(here) as pipeline:
        follows(here, own, pipeline, "t")


def test_an_altered_table_is_mended_by_one_command_and_by_itself(here: Location, shop: Shop) -> None:
    shop.run(
        "CREATE TABLE t (id int PRIMARY KEY, a int)",
        "CREATE TABLE u (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1, 2)",
    )
    with shop.source(here, "t", "u") as pipeline:
        shop.run("ALTER TABLE t DROP COLUMN a, ADD COLUMN b varchar(9) DEFAULT 'x'", "INSERT INTO u VALUES (1)")
        shop.run("INSERT INTO t VALUES (2, 'y')")
        pipeline.step()
        assert state(here, shop, "t") == "stalled"
        assert shop.there(here, "u") == shop.rows("u")
        resnapshot(here, "shop", shop.export("t"))
        shop.run("INSERT INTO t VALUES (3, 'z')", "UPDATE t SET b = 'w' WHERE id = 1")
        follows(here, shop, pipeline, "t", "id, NULL, b")
        assert state(here, shop, "t") == "running"
        shop.run("ALTER TABLE t DROP PRIMARY KEY, DROP COLUMN id")
        with pytest.raises(SourceFailure, match="key column"):
            resnapshot(here, "shop", shop.export("t"))


def test_an_altered_table_is_taken_over_by_itself(here: Location, shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 2)")
    with shop.source(here, "t", onAltered="resnapshot") as pipeline:
        shop.run(
            "ALTER TABLE t MODIFY a bigint NOT NULL DEFAULT 0, ADD b int DEFAULT 7", "INSERT INTO t VALUES (2, 3, 4)"
        )

        def runs(step: Any) -> bool:
            return state(here, shop, "t") == "running" and pipeline.source.troubles == {}

        pipeline.run(until=runs)
        shop.run("DELETE FROM t WHERE id = 1")
        pipeline.step()
        assert shop.there(here, "t") == shop.rows("t", "id, NULL, a, b")


def test_tables_come_and_go(here: Location, shop: Shop) -> None:
    shop.run(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE u (id int PRIMARY KEY, a int)",
        "INSERT INTO u VALUES (1, 1)",
    )
    with shop.source(here, "t") as pipeline:
        pipeline.step()
        with pytest.raises(SourceFailure, match="no such table"):
            add_export(here, "shop", shop.export("gone"))
        add_export(here, "shop", shop.export("u"))
        shop.run("INSERT INTO u VALUES (2, 2)", "INSERT INTO t VALUES (1)")
        follows(here, shop, pipeline, "u")
        assert shop.there(here, "t") == shop.rows("t")
        shards = Records(client(here)).source("shop").shards
        with client(here).open_reader(shards[shop.export("u")]) as reader, pytest.raises(NotReadable):
            reader.snapshot(1)
        drop_export(here, "shop", shop.export("t"))
        shop.run("INSERT INTO u VALUES (3, 3)", "DROP TABLE t")
        follows(here, shop, pipeline, "u")
        assert list(pipeline.source.exports) == [shop.export("u")]


FIRST = """
import json, sys
from ingest.pipeline.anew import killing
from persist_ingest import Location, Pace, create
from persist_ingest.pipeline.anew import again, watching
from persist_ingest.sources.mysql.making import pieces
from persist_ingest.sources.mysql.making import setup

killing.pieces, killing.HOLDERS["TablePiece"] = pieces, pieces.MomentPiece
directory, options, place, number, rows, log = json.loads(sys.argv[1])
setup.AT_ONCE_BYTES, again.SILENT_MS, watching.SILENT_MS = 0, -1, -1
killing.killed_at(place, number, log)
create(Location(directory=directory), "shop", "mysql", options, interval_ms=1, pace=Pace(rows=rows))
"""


def test_the_first_snapshot_of_a_large_table_is_killed_and_goes_on(
    here: Location, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("CREATE TABLE large (a smallint unsigned, b bigint, v varchar(20), PRIMARY KEY (a, b))")
    shop.run("INSERT INTO large SELECT seq % 7, seq, CONCAT('v', seq) FROM seq_1_to_1500", "ANALYZE TABLE large")
    options = {**shop.options, "tables": shop.export("large")}
    for number, place in enumerate(["TablePiece.rows", "Attempt._save", "WriteHandle.compare_and_append_batches"]):
        given = json.dumps([here.directory, options, place, number + 3, 200, str(tmp_path / "log")])
        done = run_program(textwrap.dedent(FIRST), given)
        assert done.returncode == -signal.SIGKILL, done.stderr
        shop.run(
            f"UPDATE large SET v = CONCAT(v, '{number}') WHERE b % 50 = 0",
            f"UPDATE large SET a = (a + 3) % 7 WHERE b % 100 = {number}",
            f"INSERT INTO large VALUES ({number}, -{number}, 'k')",
            f"DELETE FROM large WHERE b BETWEEN {number} * 100 AND {number} * 100 + 9",
        )
        assert state(here, shop, "large") == "snapshotting"
    monkeypatch.setattr(setup, "AT_ONCE_BYTES", 0)
    create(here, "shop", "mysql", options, interval_ms=1, pace=Pace(rows=200))
    with shop.pipeline(here) as pipeline:
        shop.run("DELETE FROM large WHERE b % 10 = 3")
        pipeline.step()
        assert shop.there(here, "large") == shop.rows("large")


@pytest.mark.parametrize("key", ["id int", "id varchar(9) COLLATE utf8mb4_unicode_ci", "id float"])
def test_a_table_is_read_anew_while_it_changes(
    here: Location, shop: Shop, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each piece something happens, before and behind it; one that is emptied is read from its begin."""
    shop.run(f"CREATE TABLE t ({key} PRIMARY KEY, a int)", "INSERT INTO t SELECT seq * 10, seq FROM seq_1_to_60")
    rows, piece, done = pieces.MomentPiece.rows, again.MySqlTableAnew.piece, list[int]()

    def before(self: again.MySqlTableAnew, after: Any, count: int) -> Any:
        if len(done) == 2:
            shop.run("TRUNCATE t", "INSERT INTO t SELECT seq * 10, seq FROM seq_1_to_20")
        return piece(self, after, count)

    def amid(self: pieces.MomentPiece) -> Any:
        number = len(done)
        done.append(number)
        shop.run(f"INSERT INTO t VALUES ({number + 1}, 0), ({9000 + number}, 0)", "UPDATE t SET a = a + 1")
        yield from rows(self)
        moved = f"id % 10 = 0 AND a % 2 = {number % 2}"
        shop.run(f"DELETE FROM t WHERE a % 7 = {number % 7}", f"UPDATE t SET id = id + 1 WHERE {moved}")

    with shop.source(here, "t") as pipeline:
        pipeline.step()
        with monkeypatch.context() as patched:
            patched.setattr(pieces.MomentPiece, "rows", amid)
            patched.setattr(again.MySqlTableAnew, "piece", before)
            resnapshot(here, "shop", shop.export("t"), pace=Pace(rows=7))
        shop.run("INSERT INTO t VALUES (7777, 5)")
        follows(here, shop, pipeline, "t")
        assert not status(here, "shop", ask_upstream=False, count_rows=True).counts[shop.export("t")].negative
    assert len(done) > 4 or key == "id float"


def test_status_says_where_the_log_is(here: Location, shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)")
    with shop.source(here, "t") as pipeline:
        pipeline.step()
        file, position = shop.select("SHOW MASTER STATUS")[0][:2]
        told = status(here, "shop").upstream
        assert (told["current_file"], told["current_position"]) == (file, position)
        assert told["retained_bytes"] > 0


KEYS = {
    "k varchar(20) COLLATE utf8mb4_unicode_ci": "CONCAT(ELT(seq % 6 + 1, 'a', 'B', 'ä', 'ß', 'z', '😀'), ' ', seq)",
    "k varchar(20) COLLATE latin1_german2_ci": "CONCAT(ELT(seq % 4 + 1, 'Ä', 'ae', 'O', 'ö'), seq)",
    "k char(12) COLLATE utf8mb3_bin": "CONCAT(ELT(seq % 3 + 1, 'a', 'B', 'é'), ' ', seq, ' ')",
    "k varbinary(20)": "CONCAT(UNHEX(LPAD(HEX(seq % 256), 2, '0')), '\\\\', seq)",
    "k binary(16)": "UNHEX(MD5(seq))",
    "k datetime(3)": "'2020-01-01' + INTERVAL seq * 1000 MICROSECOND",
    "k timestamp(6)": "'2020-01-01' + INTERVAL seq MICROSECOND",
    "k decimal(12, 4)": "seq / 1000 - 0.2",
    "k date": "'1999-12-31' + INTERVAL seq DAY",
}


@pytest.mark.parametrize("key", KEYS)
def test_tables_with_keys_of_all_kinds_are_read_in_pieces(
    here: Location, shop: Shop, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is of two columns, and changes: rows move between what was read and what was not."""
    shop.run(
        "SET NAMES utf8mb4",
        f"CREATE TABLE t (g smallint, {key}, a int, PRIMARY KEY (g, k))",
        f"INSERT INTO t SELECT seq % 3, {KEYS[key]}, seq FROM seq_1_to_160",
        "ANALYZE TABLE t",
    )
    rows, done = pieces.MomentPiece.rows, list[int]()
    chance = random.Random(5)
    shown = "g, k, a" if "timestamp" not in key else "g, CAST(k AS CHAR), a"

    def amid(self: pieces.MomentPiece) -> Any:
        done.append(len(done))
        shop.run(f"UPDATE t SET a = a + 1 WHERE a % 5 = {len(done) % 5}")
        yield from rows(self)
        shop.run(
            f"UPDATE IGNORE t SET g = {chance.randint(0, 3)} WHERE a % 7 = {len(done) % 7}",
            f"DELETE FROM t WHERE a % 53 = {len(done)}",
            f"INSERT IGNORE INTO t SELECT {chance.randint(0, 3)}, {KEYS[key]}, seq FROM seq_1_to_{len(done)}",
        )

    monkeypatch.setattr(setup, "AT_ONCE_BYTES", 0)
    monkeypatch.setattr(pieces.MomentPiece, "rows", amid)
    create(here, "shop", "mysql", {**shop.options, "tables": shop.export("t")}, interval_ms=1, pace=Pace(rows=25))
    assert len(done) > 5
    with shop.pipeline(here) as pipeline:
        pipeline.step()
        found = shop.there(here, "t")
        if "timestamp" in key:
            found = Counter({(g, f"{k:%Y-%m-%d %H:%M:%S.%f}", a): n for (g, k, a), n in found.items()})
        assert found == shop.rows("t", shown)


def test_what_has_no_order_that_is_known_is_read_at_once(shop: Shop) -> None:
    server = parse_options({**shop.options, "tables": shop.export("a")}).server
    keys = {
        "a": "k text, PRIMARY KEY (k(5))",
        "b": "k float PRIMARY KEY",
        "c": "k enum('x') PRIMARY KEY",
        "d": "k int",
    }
    with MySqlConnection(server) as session:
        for name, columns in keys.items():
            shop.run(f"CREATE TABLE {name} ({columns})")
            (listed,) = [each for each in catalog.tables(session, shop.name) if each.name == name]
            assert KeyOrder.of(session, defined(session, listed, (), ZeroDates.FAIL)) is None
