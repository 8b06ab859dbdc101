"""What a server or a user lacks is said when a source is made, with what to do; and who asks is proved."""

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest
from ingest.kafka.conftest import Certificates
from ingest.mysql.conftest import Shop

from persist import Determinate, InvalidArgument, PersistError
from persist.testing import servers
from persist_ingest import Location, create
from persist_ingest.pipeline.creation import drop
from persist_ingest.sources.port import HeldUp, SourceFailure

SETTINGS = {
    "binlog_format": ("STATEMENT", "ROW"),
    "binlog_row_image": ("MINIMAL", "FULL"),
    "binlog_row_metadata": ("NO_LOG", "FULL"),
    "sync_binlog": ("0", "1"),
    "innodb_flush_log_at_trx_commit": ("2", "1"),
    "binlog_expire_logs_seconds": ("60", "0"),
}


def made(here: Location, shop: Shop, **options: str) -> None:
    create(here, "shop", "mysql", {**shop.options, **options}, interval_ms=1)


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_server(here: Location, shop: Shop, name: str) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)")
    bad, good = SETTINGS[name]
    shop.run(f"SET GLOBAL {name} = {bad}")
    try:
        with pytest.raises(SourceFailure) as raised:
            made(here, shop, tables=shop.export("t"))
    finally:
        shop.run(f"SET GLOBAL {name} = {good}")
    assert f"SET GLOBAL {name}" in str(raised.value.hint)
    assert name in raised.value.details


TABLES = {
    "ENGINE=MyISAM": "InnoDB",
    "WITH SYSTEM VERSIONING": "history",
    ", FOREIGN KEY (id) REFERENCES parent (id) ON DELETE CASCADE": "foreign key",
}


@pytest.mark.parametrize("text", TABLES)
def test_tables_whose_changes_are_not_logged(here: Location, shop: Shop, text: str) -> None:
    inside, outside = (text, "") if text.startswith(",") else ("", text)
    shop.run("CREATE TABLE parent (id int PRIMARY KEY)", f"CREATE TABLE t (id int PRIMARY KEY{inside}) {outside}")
    with pytest.raises(SourceFailure, match=TABLES[text]):
        made(here, shop, tables=shop.export("t"))


def test_names_that_are_not_there(here: Location, shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE VIEW v AS SELECT 1 AS x")
    name = shop.name
    for options, error, word in [
        ({}, InvalidArgument, "tables"),
        ({"tables": "t"}, InvalidArgument, "malformed"),
        ({"tables": f"{name}.gone"}, SourceFailure, f"{name}.gone"),
        ({"tables": f"{name}.v"}, SourceFailure, "only tables"),
        ({"tables": f"{name}.*", "excludeTables": f"{name}.t"}, SourceFailure, "no tables"),
        ({"tables": f"{name}.t", "excludeColumns": f"{name}.t.b"}, SourceFailure, "excludeColumns"),
        ({"tables": f"{name}.t", "excludeColumns": f"{name}.t.id"}, SourceFailure, "primary key"),
        ({"tables": f"{name}.t", "password": "s3cret"}, InvalidArgument, "file:PATH"),
        ({"tables": f"{name}.t", "serverId": "7"}, InvalidArgument, "serverId"),
        ({"tables": f"{name}.t", "zeroDates": "nul"}, InvalidArgument, "null"),
        ({"tables": f"{name}.t", "tlsCa": "x"}, InvalidArgument, "tls"),
        ({"tables": f"{name}.t", "binlog": "x"}, InvalidArgument, "binlog"),
        ({"tables": f"{name}.t", "port": str(servers.free_port())}, Determinate, "cannot connect"),
    ]:
        with pytest.raises(error) as raised:
            made(here, shop, **options)
        assert word in str(raised.value), options


def test_include_and_exclude(here: Location, shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "CREATE TABLE u (id int PRIMARY KEY, a int, b int)")
    shop.run("INSERT INTO t VALUES (1, 2, 3)", "INSERT INTO u VALUES (1, 2, 3)", "CREATE TABLE w (id int PRIMARY KEY)")
    name = shop.name
    made(
        here,
        shop,
        tables=f"{name}.*",
        excludeTables=f"{name}.w",
        includeColumns=f"{name}.t.id, {name}.t.b",
        excludeColumns=f"{name}.u.`b`",
    )
    with shop.pipeline(here) as pipeline:
        shop.run("INSERT INTO t VALUES (2, 3, 4)", "UPDATE u SET b = 9", "INSERT INTO w VALUES (1)")
        pipeline.step()
        assert shop.there(here, "t") == shop.rows("t", "id, b")
        assert shop.there(here, "u") == shop.rows("u", "id, a")
        assert len(pipeline.source.exports) == 2


@pytest.fixture
def asking(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Options of a user that may do nothing yet, whose password is in a variable of the environment."""
    shop.run(f"CREATE USER asker_{shop.name} IDENTIFIED BY 'pa''ss'", "CREATE TABLE t (id int PRIMARY KEY)")
    monkeypatch.setenv("SHOP_PASSWORD", "pa'ss")
    yield {"user": f"asker_{shop.name}", "password": "env:SHOP_PASSWORD", "tables": shop.export("t")}
    shop.run(f"DROP USER asker_{shop.name}")


def test_rights_are_asked_for_one_by_one(here: Location, shop: Shop, asking: dict[str, str]) -> None:
    user = asking["user"]
    with pytest.raises(SourceFailure, match="REPLICATION SLAVE") as raised:
        made(here, shop, **asking)
    assert "GRANT" in str(raised.value.hint)
    shop.run(f"GRANT REPLICATION SLAVE ON *.* TO {user}")
    with pytest.raises(SourceFailure, match="BINLOG MONITOR"):
        made(here, shop, **asking)
    shop.run(f"GRANT BINLOG MONITOR ON *.* TO {user}")
    with pytest.raises(SourceFailure, match="GRANT SELECT"):
        made(here, shop, **asking)
    shop.run(f"GRANT SELECT ON {shop.name}.* TO {user}")
    made(here, shop, **asking)
    with shop.pipeline(here) as pipeline:
        shop.run("INSERT INTO t VALUES (1)")
        pipeline.step()
        assert shop.there(here, "t") == shop.rows("t")
    drop(here, "shop")
    os.environ["SHOP_PASSWORD"] = "another-one-9"
    with pytest.raises(SourceFailure, match="refused this user") as raised:
        made(here, shop, **asking)
    assert "pa'ss" not in str(raised.value)


def test_a_table_that_another_session_has_is_waited_for_and_then_given_up(
    here: Location, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from persist_ingest.sources.mysql.making import setup

    monkeypatch.setattr(setup, "LOCK_SECONDS", 1.0)
    shop.run("CREATE TABLE t (id int PRIMARY KEY)")
    other = shop.connect()
    other.query("LOCK TABLES t WRITE")
    with pytest.raises(HeldUp):
        made(here, shop, tables=shop.export("t"))
    other.close()
    made(here, shop, tables=shop.export("t"))


@pytest.fixture
def certificates() -> Iterator[Certificates]:
    """Where the server's user can read them, too."""
    with tempfile.TemporaryDirectory(prefix="persist-certificates-") as folder:
        Path(folder).chmod(0o755)
        made = Certificates.made(Path(folder))
        for path in Path(folder).iterdir():
            path.chmod(0o644)
        yield made


def test_certificates(here: Location, certificates: Certificates) -> None:
    names = {"ssl_ca": "ca.pem", "ssl_cert": "broker.pem", "ssl_key": "broker.key"}
    with servers.start_mariadb({option: certificates[name] for option, name in names.items()}) as server:
        shop = Shop(server, "safe")
        connection = pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)
        connection.query("CREATE DATABASE safe")
        connection.query("CREATE USER strict REQUIRE SSL")
        connection.query("GRANT ALL ON *.* TO strict")
        connection.close()
        shop.run("CREATE TABLE t (id int PRIMARY KEY)")
        asked = {"tables": "safe.t", "user": "strict"}
        with pytest.raises(SourceFailure, match="refused this user"):
            made(here, shop, **asked, tls="off")
        with pytest.raises(PersistError, match=re.compile("certificate", re.IGNORECASE)):
            made(here, shop, **asked, tls="verify-full", tlsCa=certificates["stranger.pem"])
        ways = [{}, {"tls": "require"}, {"tls": "verify-full", "tlsCa": certificates["ca.pem"]}]
        for number, options in enumerate(ways):
            made(here, shop, **asked, **options)
            with shop.pipeline(here) as pipeline:
                shop.run(f"INSERT INTO t VALUES ({number})")
                pipeline.step()
                assert shop.there(here, "t") == shop.rows("t")
            drop(here, "shop")
        shop.close()


def test_what_is_no_mariadb_is_refused(here: Location) -> None:
    """A server that says that it is another one."""
    with (
        servers.start_mariadb({"version": "8.4.3"}) as server,
        pytest.raises(SourceFailure, match="Debezium"),
    ):
        made(here, Shop(server, ""), tables="a.b")


def test_a_server_that_starts_leaves_temporary_tables_of_others_alone(shop: Shop) -> None:
    """It removes those of its folder, which are gone from under the queries that have them then."""
    ((folder,),) = shop.select("SELECT @@tmpdir")
    shop.run("CREATE TEMPORARY TABLE mine (id int PRIMARY KEY) ENGINE = Aria")
    there = set(Path(folder).glob("#sql-temptable-*"))
    assert there
    with servers.start_mariadb():
        assert set(Path(folder).glob("#sql-temptable-*")) >= there
    shop.run("DROP TABLE mine")
