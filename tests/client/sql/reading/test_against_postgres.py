"""The same statements asked of a real PostgreSQL: what both answer is the same, and what would differ is refused."""

import datetime
import decimal

import psycopg
import pytest
from client.sql.support import rows, sessions

from persist.client.sql.errors import SqlError

ROWS = r"""
CREATE TABLE t (id INT PRIMARY KEY, a INT, b BIGINT, f DOUBLE PRECISION, n NUMERIC(20,4), s TEXT, at TIMESTAMP);
CREATE TABLE u (id INT PRIMARY KEY, tid INT, v TEXT, w INT);
CREATE TABLE k (id INT PRIMARY KEY, x INT);
INSERT INTO t VALUES (1, 7, 100, 1.5, 10.25, 'ab_c', '2024-01-31 10:11:12.5'),
    (2, -7, 9000000000, 2.25, -3.5, 'abxc', '2024-02-29 00:00:00'), (3, NULL, NULL, NULL, NULL, NULL, NULL),
    (4, 3, 0, -0.75, 0, '', '1999-12-31 23:59:59'), (5, 2, 5, 3.25, 1, 'a%\z', '2024-03-10 12:00:00');
INSERT INTO u VALUES (1, 1, 'one', 5), (2, 1, 'uno', NULL), (3, 2, 'two', 7), (4, 9, 'nine', 7),
    (5, NULL, NULL, 1);
INSERT INTO k VALUES (1, 1), (2, NULL), (9, 3);
"""

QUERIES = {
    "conditions": r"""
SELECT id FROM t WHERE a IS NOT NULL;
SELECT id FROM t WHERE a NOTNULL AND id > 1;
SELECT id FROM t WHERE a ISNULL;
SELECT id FROM t WHERE NOT a IS NULL;
SELECT id FROM t WHERE a NOT IN (7, 3);
SELECT id FROM t WHERE a NOT BETWEEN 3 AND 7;
SELECT id FROM t WHERE a BETWEEN SYMMETRIC 7 AND 2;
SELECT id FROM t WHERE NOT (a = 7);
SELECT id FROM t WHERE a <> 7;
SELECT id FROM t WHERE a IS DISTINCT FROM 7;
SELECT id FROM t WHERE (a = 7) IS NOT TRUE;
SELECT id FROM t WHERE 3 < a;
SELECT id FROM t WHERE a > ALL (SELECT w FROM u WHERE w IS NOT NULL AND w < 7);
SELECT id FROM t WHERE a = -7;
SELECT id FROM t WHERE a = ANY (SELECT w FROM u WHERE w IS NOT NULL);
SELECT count(*) FROM u WHERE w IS NOT NULL AND w = 7;
SELECT id FROM t WHERE a NOT IN (SELECT w FROM u);
SELECT id FROM t WHERE a NOT IN (SELECT w FROM u WHERE w IS NOT NULL)
""",
    "outer joins": r"""
SELECT t.id, u.id FROM t LEFT JOIN u ON u.tid = t.id WHERE u.id IS NULL;
SELECT t.id, u.id, k.id FROM t LEFT JOIN (u JOIN k ON u.tid = k.id) ON u.tid = t.id WHERE k.x IS NULL;
SELECT t.id, u.id, k.id FROM t LEFT JOIN (u JOIN k ON u.tid = k.id) ON u.tid = t.id WHERE u.v IS NULL;
SELECT t.id, u.id FROM (t LEFT JOIN u ON u.tid = t.id) WHERE u.w IS NULL;
SELECT t.id, u.id FROM (t LEFT JOIN u ON u.tid = t.id) JOIN k ON k.id = t.id WHERE u.w IS NULL;
SELECT j.s, j.v FROM (t LEFT JOIN u ON u.tid = t.id) AS j (id, a, b, f, n, s, at, uid, tid, v, w) WHERE j.w IS
    NULL;
SELECT t.id, u.id FROM k LEFT JOIN (t LEFT JOIN u ON u.tid = t.id) ON k.id = t.id WHERE u.w IS NULL;
SELECT t.id FROM u RIGHT JOIN (t LEFT JOIN k ON k.id = t.id) ON u.tid = t.id WHERE t.a = 7 AND u.w IS NOT NULL;
SELECT t.id, k.id FROM u RIGHT JOIN t ON u.tid = t.id LEFT JOIN k ON k.id = t.id WHERE u.w IS NULL;
SELECT x.id, y.id FROM t x LEFT JOIN t y ON x.id = y.a WHERE x.a > 2 AND y.id IS NULL
""",
    "renamed columns": r"""
SELECT y.id FROM k AS y(x, id) WHERE y.x = 2;
SELECT x FROM k AS y(x, id) WHERE x = 9;
SELECT x FROM k AS y(x, id);
SELECT q.d FROM (SELECT id, a FROM t) AS q(c, d) WHERE q.c = 1;
WITH q(a, id) AS (SELECT id, a FROM t) SELECT a FROM q WHERE id = 7
""",
    "division": r"""
SELECT a / 2, a % 2, -a / 2, b / 3, (a + 1) / 2 FROM t;
SELECT 1 / 0;
SELECT a / 0 FROM t;
SELECT f / 0 FROM t;
SELECT n / 0 FROM t;
SELECT a % 0 FROM t;
SELECT sqrt(-1);
SELECT ln(0);
SELECT count(*) / 2, sum(a) / 2 FROM t;
SELECT 7 / 2.0
""",
    "patterns": r"""
SELECT id FROM t WHERE s LIKE 'ab\_c';
SELECT id FROM t WHERE s LIKE 'ab_c';
SELECT id FROM t WHERE s NOT LIKE 'ab\_c';
SELECT id FROM t WHERE s ILIKE 'AB\_C';
SELECT id FROM t WHERE s LIKE '%\%%';
SELECT id FROM t WHERE s LIKE 'ab!_c' ESCAPE '!';
SELECT id FROM t WHERE s LIKE s;
SELECT 'a\b' LIKE 'a\\b', 'a%' NOT LIKE 'a\%', 'a' LIKE NULL;
SELECT 'abc' SIMILAR TO 'a%';
SELECT id FROM t WHERE s ~ 'B';
SELECT id FROM t WHERE s ~* 'B';
SELECT id FROM t WHERE s !~ 'x'
""",
    "rows": r"""
SELECT id FROM t WHERE (a, id) > (2, 3);
SELECT id FROM t WHERE (a, b) <> (7, 100);
SELECT id FROM t WHERE (a, b) >= (3, 0);
SELECT id FROM t WHERE (a, b, id) < (3, 0, 9);
SELECT id FROM t WHERE (a, b) IN ((7, 100), (NULL, NULL));
SELECT id FROM t WHERE (a, b) NOT IN ((7, 100), (2, 5));
SELECT id FROM t WHERE ROW(a, b) = ROW(7, 100);
SELECT (NULL, 1) = (NULL, 1), (NULL, 1) < (NULL, 2), (1, NULL) < (2, NULL), (1, NULL) = (2, NULL), (NULL, 1) IS
    DISTINCT FROM (NULL, 1);
SELECT (1, 2) BETWEEN (1, 1) AND (1, 3);
SELECT id FROM t WHERE (id, a) IN (SELECT tid, w FROM u);
SELECT (1, 2) = (1, 2, 3);
SELECT id FROM t WHERE NOT (a, id) > (2, 3);
SELECT id FROM t WHERE (a, id) <= (3, 4) AND id <> 2
""",
    "times": r"""
SELECT extract(second FROM at), date_part('second', at), extract(milliseconds FROM at), extract(epoch FROM at)
    FROM t;
SELECT extract(hour FROM at), extract(dow FROM at), extract(isodow FROM at), extract(doy FROM at), extract(week
    FROM at) FROM t;
SELECT to_char(at, 'YYYY-MM-DD HH24:MI:SS') FROM t;
SELECT to_char(at, 'Mon DD, YYYY') FROM t;
SELECT to_char(at, 'Day') FROM t;
SELECT to_char(at, 'HH12:MI AM') FROM t;
SELECT to_char(at, 'HH:MI') FROM t;
SELECT to_char(at, 'D WW') FROM t;
SELECT to_char(at, s) FROM t;
SELECT to_timestamp('2024-01-02 03', 'YYYY-MM-DD HH24');
SELECT to_date('31 Jan 2024', 'DD Mon YYYY');
SELECT to_date('20240131', 'YYYYMMDD');
SELECT at + interval '1 month', date_trunc('week', at), at::date + 1, at::date - DATE '2024-01-01' FROM t;
SELECT at::timestamptz::date, at::timestamptz AT TIME ZONE 'Asia/Tokyo' FROM t
""",
    "texts and bytes": r"""
SELECT 'abcdef'::varchar(3), 'abcdef'::char(3), s::varchar(2), 123456::varchar(2), 'abc'::varchar FROM t;
SELECT 'ab  '::char(4) = 'ab';
SELECT '\x616263'::bytea, 'abc'::bytea, 'a\\b'::bytea, 'a\001b'::bytea;
SELECT '\xzz'::bytea;
SELECT to_hex(255);
SELECT substring('abc' from -1 for 3);
SELECT substring('abc', 0);
SELECT substring('abcdef' from 2 for 3);
SELECT to_number('1,2', '9G9');
SELECT encode('abc'::bytea, 'hex');
SELECT 'a' || NULL, concat('a', NULL, 'b'), lpad('7', 3, '0'), split_part('a,b', ',', 2)
""",
    "whole numbers": r"""
SELECT s::int FROM t;
SELECT v::int FROM u;
SELECT x::int FROM (VALUES ('1.5')) AS q(x);
SELECT x::int FROM (VALUES ('1e2')) AS q(x);
SELECT x::int, x::bigint + 1 FROM (VALUES (' 15 '), ('-3'), ('+4'), (NULL)) AS q(x);
SELECT (id || '.5')::int FROM t;
SELECT (id || '5')::int, (a::text)::int FROM t;
SELECT ((id || '5')::int || '1')::bigint FROM t;
SELECT ((id || '.5')::int || '1')::bigint FROM t;
SELECT ((((id || '5')::int || '1')::bigint || '2')::bigint || '3')::bigint FROM t;
SELECT n::int, f::int, (n / 3)::bigint, (a + 0.5)::int FROM t;
SELECT coalesce(a, 0)::bigint, (CASE WHEN a > 2 THEN n ELSE 0.4 END)::int, (id > 2)::int FROM t;
SELECT coalesce(n, 0)::bigint, greatest(n, f)::int, (SELECT max(n) FROM t)::int, (SELECT f)::int FROM t;
SELECT (id || '0')::int, count(*) FROM t GROUP BY (id || '0')::int ORDER BY (id || '0')::int;
SELECT cast(q.id AS int) FROM (SELECT s AS id FROM t) AS q;
SELECT cast(q.id AS int) FROM (SELECT n AS id FROM t) AS q;
SELECT t.id FROM t WHERE (id || '')::int = 2 AND split_part('1,7', ',', 2)::int = 7;
SELECT max(id || '1')::int, (SELECT min(v) FROM u)::int FROM t;
SELECT max(id || '1')::int, (SELECT min(id || '2') FROM u)::int FROM t;
SELECT sum((id || '1')::int) OVER (PARTITION BY (a || '2')::int ORDER BY id) FROM t ORDER BY id;
SELECT (max(id || '1') OVER (PARTITION BY (a || '2')::int))::int FROM t;
SELECT (a.id || '1')::smallint FROM t a LEFT JOIN u given ON given.tid = a.id AND (given.id || '')::int = 1;
SELECT id FROM t WHERE a = '7';
SELECT id FROM t WHERE a = '6.6';
SELECT id FROM t WHERE a IN ('7', '1.6');
SELECT id FROM t WHERE '1.4' < id;
SELECT id FROM t WHERE a BETWEEN '2' AND '6.6';
SELECT id FROM t WHERE n > '9.5' AND f = '1.5' AND s <> '1.5';
SELECT id FROM t WHERE id = (s || '.4');
SELECT id FROM t WHERE id IN (SELECT (tid || '')::int FROM u) ORDER BY (id || '1')::int DESC;
SELECT count(*) FILTER (WHERE (id || '')::int > 2), CASE WHEN true THEN '1' ELSE '1.5' END::int FROM t
""",
    "order": r"""
SELECT id FROM t ORDER BY a DESC, id;
SELECT id FROM t ORDER BY a NULLS FIRST, id;
SELECT id FROM t ORDER BY s DESC;
SELECT -id AS id FROM t ORDER BY id;
SELECT tid AS w, w AS tid FROM u ORDER BY w, tid;
SELECT upper(v) AS v FROM u GROUP BY v ORDER BY v;
SELECT DISTINCT ON (w) w, id FROM u ORDER BY w, id DESC;
SELECT id, row_number() OVER (ORDER BY a DESC) FROM t ORDER BY id
""",
}


def plain(value: object) -> object:
    """A value as both say it, but for the types of numbers."""
    if isinstance(value, decimal.Decimal | float):
        return round(float(value), 6)
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC)
    return value


def shown(found: list[tuple], text: str) -> list[tuple]:
    values = [tuple(map(plain, row)) for row in found]
    return values if "ORDER BY" in text else sorted(values, key=repr)


@pytest.mark.parametrize("group", QUERIES)
async def test_an_answer_is_that_of_postgresql_or_none(group, fresh_postgres_uri, monkeypatch):
    # What the machine is set to has no part in it.
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    texts = QUERIES[group].strip().split(";\n")
    answers = 0
    with psycopg.connect(fresh_postgres_uri(), autocommit=True) as peer:
        peer.execute("SET TimeZone = 'UTC'")
        peer.execute(ROWS.encode())
        async with sessions() as (session,):
            await session.execute(ROWS)
            for text in texts:
                try:
                    wanted = shown(peer.execute(text.encode()).fetchall(), text)
                except psycopg.Error as error:
                    wanted = error
                try:
                    found = shown(await rows(session, text), text)
                except SqlError:
                    continue
                assert found == wanted, text
                answers += 1
    assert answers > len(texts) / 4
