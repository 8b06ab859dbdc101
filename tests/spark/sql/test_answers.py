"""Queries that Spark runs answer as on DuckDB, over the same rows: values, types, names and order; or are refused."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from client.sql.reading.test_tpch import QUERIES as TPCH
from client.sql.reading.test_tpch import TABLES, made

import persist
import pyspark_persist

VALUES = """
CREATE TABLE v (
    id int PRIMARY KEY, small smallint, big bigint, n numeric(12, 2), fine numeric(30, 10), f double precision,
    s text, d date, at timestamp, zoned timestamptz, yes boolean, bytes bytea, unsigned uint8
);
INSERT INTO v VALUES
    (1, 1, 9223372036854775807, 1.25, 0.0000000001, 0.5, 'a', DATE '2020-01-31', TIMESTAMP '2020-01-31 23:59:59.5',
     TIMESTAMPTZ '2020-06-01 12:00:00+00', true, '\\x00ff', 18446744073709551615),
    (2, -3, -7, -1.25, 12345678901234567890.0123456789, -0.5, 'A', DATE '2019-02-28', TIMESTAMP '1969-12-31 00:00:00',
     TIMESTAMPTZ '1969-12-31 23:00:00+00', false, '\\x', 0),
    (3, 2, 7, 99.99, 1, 1e300, 'é''ü\\ 100%', DATE '2024-02-29', TIMESTAMP '2024-02-29 12:34:56.789123',
     TIMESTAMPTZ '2024-02-29 00:00:00+00', NULL, NULL, 7),
    (4, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (5, 2, 7, 0.01, -1, 0, '', DATE '1970-01-01', TIMESTAMP '1970-01-01 00:00:00',
     TIMESTAMPTZ '1970-01-01 00:00:00+00', true, '\\x61', 1);
CREATE VIEW w AS SELECT s, count(*) AS c, sum(n) AS total FROM v GROUP BY s;
CREATE TABLE twice (x int, y text);
INSERT INTO twice VALUES (1, 'b'), (1, 'b'), (2, NULL), (3, 'c');
"""

QUERIES = [
    "SELECT * FROM v ORDER BY id",
    "SELECT x, y FROM twice ORDER BY x, y",
    'SELECT y AS "a\\b `c`", x AS "Y" FROM twice WHERE y = \'b\'',
    "SELECT id, n / 2, n * 0.5, n + 1, n - fine, id / 2, -id / 2, small % 2, big / 3, f / 3, n / n FROM v WHERE n <> 0 "
    "ORDER BY id",
    "SELECT sum(small), sum(big), sum(n), sum(fine), avg(n), avg(id), avg(f), count(*), count(s), "
    "count(DISTINCT small), sum(unsigned) FROM v",
    "SELECT sum(id) / 2, sum(small) / count(*), avg(id) / 2, sum(n) / 7, sum(fine) * 3 FROM v",
    "SELECT small, count(*), sum(n) FROM v GROUP BY small ORDER BY small DESC",
    "SELECT small, sum(n) AS total FROM v GROUP BY 1 HAVING sum(n) > 1 ORDER BY total",
    "SELECT id, d + INTERVAL '1' MONTH, d - INTERVAL '3' DAY, d + 2, at - INTERVAL '36' HOUR, "
    "zoned + INTERVAL '1' YEAR FROM v ORDER BY id",
    "SELECT id, extract(year FROM d), extract(month FROM at), extract(day FROM d), extract(quarter FROM d), "
    "extract(hour FROM at) FROM v ORDER BY id",
    "SELECT id FROM v WHERE d < DATE '2020-01-01' OR at >= TIMESTAMP '2024-01-01 00:00:00' ORDER BY id",
    "SELECT id FROM v WHERE zoned > '2000-01-01 00:00:00' AND yes IS NOT FALSE ORDER BY id",
    "SELECT s FROM v ORDER BY s",
    "SELECT s FROM v ORDER BY s DESC, id",
    "SELECT min(s), max(s), min(d), max(at), bool_and(yes), max(zoned), min(n) FROM v",
    "SELECT id, s || '-' || 'x', length(s), substring(s FROM 2 FOR 3), s LIKE '%a%', s LIKE 'A_' FROM v ORDER BY id",
    "SELECT id FROM v WHERE s LIKE '%100_' OR s = 'é''ü\\ 100%'",
    "SELECT coalesce(n, 0), nullif(id, 2), CASE WHEN id > 2 THEN n ELSE 0 END, CASE small WHEN 2 THEN 'two' END FROM v "
    "ORDER BY id",
    "SELECT id::text, d::text, id::numeric(20, 3), n::double precision, d::timestamp, at::date, n::numeric(20, 1) "
    "FROM v ORDER BY id",
    "SELECT round(n, 1), round(fine, 3), abs(n), abs(id) FROM v ORDER BY id",
    "SELECT id, f > 0.25, n > 1, fine < 1, big = 7, n = 1.25, unsigned > 5 FROM v ORDER BY id",
    "SELECT * FROM w ORDER BY s",
    "SELECT a.id, b.id FROM v AS a LEFT JOIN v AS b ON a.small = b.id ORDER BY 1, 2",
    "SELECT a.id, b.id FROM v AS a FULL JOIN v AS b ON a.id = b.small ORDER BY 1, 2",
    "SELECT id, t.y FROM v JOIN twice AS t ON t.x = v.id ORDER BY 1, 2",
    "SELECT id FROM v WHERE small IN (1, 2) AND id NOT IN (SELECT x FROM twice) ORDER BY id",
    "SELECT id FROM v WHERE small NOT IN (SELECT small FROM v WHERE id > 3)",
    "SELECT id FROM v WHERE EXISTS (SELECT 1 FROM twice WHERE x = v.id AND y IS NOT NULL) ORDER BY id",
    "SELECT (SELECT max(n) FROM v), (SELECT count(*) FROM twice WHERE x > 100)",
    "WITH a AS (SELECT small, n FROM v), b AS (SELECT small, sum(n) AS n FROM a GROUP BY small) "
    "SELECT a.small, b.n FROM a JOIN b ON a.small = b.small ORDER BY 1, 2",
    "SELECT x FROM twice UNION SELECT id FROM v ORDER BY x",
    "SELECT x FROM twice UNION ALL SELECT id FROM v ORDER BY x",
    "SELECT x FROM twice EXCEPT SELECT id FROM v WHERE id < 3 ORDER BY x",
    "SELECT x FROM twice INTERSECT ALL SELECT id FROM v ORDER BY x",
    "SELECT DISTINCT small, yes FROM v ORDER BY small, yes",
    "SELECT id, row_number() OVER (PARTITION BY small ORDER BY id), sum(n) OVER (PARTITION BY small), "
    "rank() OVER (ORDER BY small), lag(n) OVER (ORDER BY id) FROM v ORDER BY id",
    "SELECT count(*) FILTER (WHERE n > 1), bool_and(yes), bool_or(yes) FROM v",
    "SELECT id FROM v ORDER BY n DESC NULLS LAST LIMIT 2 OFFSET 1",
    "SELECT 1, 'x', 1.50, true, NULL::date",
    "SELECT name FROM persist_catalog.tables ORDER BY name",
    "SELECT mz_now() > 0 AS begun, count(*) FROM twice",
]
"""Each is run by both."""

REFUSED = [
    "SELECT upper(s) FROM v",
    "SELECT f::int FROM v WHERE id = 5",
    "SELECT f::text FROM v",
    "SELECT s::int FROM v WHERE id = 4",
    "SELECT round(f, 1) FROM v",
    "SELECT d - d FROM v",
    "SELECT f % 2 FROM v",
    "SELECT unsigned + 1 FROM v WHERE id = 5",
    "SELECT DISTINCT ON (small) id FROM v",
    "SELECT generate_series(1, 3)",
    "SELECT string_agg(s, ',') FROM v",
    "SELECT id FROM v GROUP BY ROLLUP (id)",
    "SELECT s ~ 'a' FROM v",
    "SELECT s ILIKE 'a' FROM v",
    "SELECT s LIKE '%100\\%' FROM v",
    "SELECT extract(dow FROM d) FROM v",
    "SELECT now()",
    "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM r WHERE x < 3) SELECT * FROM r",
]
"""Those that Spark might answer otherwise, or not at all."""


@pytest.fixture(scope="module")
def engines(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any, str]]:
    """A session on DuckDB and one on Spark, of one environment, and where it is."""
    where = str(tmp_path_factory.mktemp("answers"))
    with (
        persist.embedded(where) as client,
        client.session() as here,
        client.session(runner=pyspark_persist.SparkRunner(spark)) as there,
    ):
        here.execute(VALUES)
        yield here, there, where


def same(here: Any, there: Any, text: str) -> None:
    one, other = here.execute(text)[-1], there.execute(text)[-1]
    assert other.table.schema == one.table.schema, text
    assert len(other.rows) == len(one.rows), text
    for row, expected in zip(other.rows, one.rows, strict=True):
        assert list(row) == [
            pytest.approx(each, rel=1e-12) if isinstance(each, float) else each for each in expected
        ], text


@pytest.mark.timeout(900)
def test_answers_are_those_of_duckdb(engines: tuple[Any, Any, str]) -> None:
    here, there, _ = engines
    for text in QUERIES:
        same(here, there, text)


@pytest.mark.parametrize("text", REFUSED)
def test_what_spark_might_answer_otherwise_is_refused_before_anything_is_read(
    engines: tuple[Any, Any, str], text: str
) -> None:
    _, there, _ = engines
    there.execute("SET runner = 'spark'")
    with pytest.raises(persist.PersistError) as refused:
        there.execute(text)
    assert type(refused.value).__name__ == "SqlNotSupported"
    assert "duckdb" in refused.value.hint or "CAST" in refused.value.hint, refused.value
    there.execute("SET runner = 'duckdb'")
    assert there.execute(text)[-1].rows is not None
    there.execute("SET runner = 'spark'")


def test_what_is_wrong_is_said_alike(engines: tuple[Any, Any, str]) -> None:
    here, there, _ = engines
    for text, error in (
        ("SELECT 1 / (id - 1) FROM v", "SqlFailed"),
        ("SELECT big + 1 FROM v WHERE id = 1", "SqlFailed"),
        ("SELECT nothing FROM v", "SqlError"),
        ("SELECT yes = 1 FROM v", "SqlError"),
        ("SELECT id FROM nowhere", "UnknownObject"),
        ("SELECT id FROM v AS OF 1", "NotReadable"),
    ):
        for session in (here, there):
            with pytest.raises(persist.PersistError) as raised:
                session.execute(text)
            assert type(raised.value).__name__ == error, (text, raised.value)


def test_a_time_is_that_of_every_query_and_what_came_later_is_not_in_it(
    spark: Any, engines: tuple[Any, Any, str]
) -> None:
    here, there, where = engines
    here.execute("CREATE TABLE t (id int PRIMARY KEY) WITH (RETAIN HISTORY FOREVER)")
    first = here.execute("INSERT INTO t VALUES (1)")[0].ts
    frame = pyspark_persist.sql(spark, "SELECT id FROM t WHERE id < ?", [100], location=where)
    here.execute("INSERT INTO t VALUES (2)")
    # Strict: what was there when it was asked is in the answer.
    assert [tuple(row) for row in there.execute("SELECT id FROM t ORDER BY id")[0].rows] == [(1,), (2,)]
    assert there.execute(f"SELECT id FROM t AS OF {first}")[0].rows == [(1,)]
    assert [row.id for row in frame.collect()] == [1]
    assert frame.count() == 1
    later = pyspark_persist.sql(spark, "SELECT id FROM t", as_of=first, location=where)
    assert [row.id for row in later.collect()] == [1]
    assert later.join(frame, "id").count() == 1
    with pytest.raises(persist.PersistError, match="one time"):
        pyspark_persist.sql(spark, f"SELECT id FROM t AS OF {first}", as_of=first, location=where)
    # Its settings and views are its own.
    assert spark.conf.get("spark.sql.decimalOperations.allowPrecisionLoss") == "true"
    assert not [each.name for each in spark.catalog.listTables() if each.name.startswith("persist_relation")]


def test_leases_end_with_the_query_and_with_the_frame(spark: Any, engines: tuple[Any, Any, str]) -> None:
    _, there, where = engines
    with persist.embedded(where) as client, client.environment() as environment:
        shard = str(environment.resolve("v").data)

        def leases() -> int:
            readers = client.inspect(shard)["leased_readers"].values()
            return sum(each["purpose"] == "query" for each in readers)

        there.execute("SELECT count(*) FROM v")
        assert not leases()
        frame = pyspark_persist.sql(spark, "SELECT id FROM v", location=where)
        assert leases() == 1
        assert frame.count() == 5
        del frame


def test_sessions_choose_their_engine(engines: tuple[Any, Any, str]) -> None:
    here, there, _ = engines
    assert there.execute("SHOW runner")[0].rows == [("spark",)]
    assert here.execute("SHOW runner")[0].rows == [("duckdb",)]
    with pytest.raises(persist.PersistError, match="no such engine"):
        here.execute("SET runner = 'spark'; SELECT 1")
    here.execute("RESET runner")
    with pytest.raises(persist.PersistError, match="no such engine"):
        here.execute("SET runner = 'flink'")
    assert "HashAggregate" in str(there.execute("EXPLAIN SELECT count(*) FROM v")[0].rows)
    assert dict(there.execute("EXPLAIN TIMESTAMP FOR SELECT * FROM v")[0].rows)["timeline"] == "M"
    there.execute("BEGIN; INSERT INTO twice VALUES (9, 'z')")
    with pytest.raises(persist.PersistError, match="in a transaction"):
        there.execute("SELECT * FROM twice")
    there.execute("ROLLBACK")


@pytest.mark.timeout(600)
def test_queries_of_tpch_answer_as_on_duckdb(engines: tuple[Any, Any, str]) -> None:
    here, there, _ = engines
    here.execute(TABLES)
    for name, rows in made(7).items():
        columns = list(zip(*rows, strict=True))
        schema = here.execute(f"SELECT * FROM {name}")[0].table.schema
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        here.insert(name, pa.table(arrays, names=schema.names))
    for text in TPCH.values():
        same(here, there, text)
        assert here.execute(text)[-1].rows
