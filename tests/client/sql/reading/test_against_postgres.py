"""The same statements asked of a real PostgreSQL: what both answer is the same, and what would differ is refused."""

import datetime
import decimal
from typing import Any

import psycopg
import pytest
from client.sql.support import rows, sessions

from persist.client.sql.errors import SqlError

ROWS = r"""
CREATE TABLE t (id INT PRIMARY KEY, a INT, b BIGINT, f DOUBLE PRECISION, n NUMERIC(20,4), s TEXT, at TIMESTAMP);
CREATE TABLE u (id INT PRIMARY KEY, tid INT, v TEXT, w INT);
CREATE TABLE k (id INT PRIMARY KEY, x INT);
CREATE TABLE b (id INT PRIMARY KEY, x BOOLEAN, y BOOLEAN, z BYTEA);
INSERT INTO t VALUES (1, 7, 100, 1.5, 10.25, 'ab_c', '2024-01-31 10:11:12.5'),
    (2, -7, 9000000000, 2.25, -3.5, 'abxc', '2024-02-29 00:00:00'), (3, NULL, NULL, NULL, NULL, NULL, NULL),
    (4, 3, 0, -0.75, 0, '', '1999-12-31 23:59:59'), (5, 2, 5, 3.25, 1, 'a%\z', '2024-03-10 12:00:00');
INSERT INTO u VALUES (1, 1, 'one', 5), (2, 1, 'uno', NULL), (3, 2, 'two', 7), (4, 9, 'nine', 7),
    (5, NULL, NULL, 1);
INSERT INTO k VALUES (1, 1), (2, NULL), (9, 3);
INSERT INTO b VALUES (1, true, false, '\x00ff'), (2, false, false, ''), (3, NULL, true, NULL), (4, true, NULL, 'a');
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
    "times as texts": r"""
SELECT '2024-01-31 10:11:12.1234567'::timestamp, timestamp '2024-01-31 10:11:12.9999999', '10:11:12.1234565'::time;
SELECT s::timestamp, s::timestamptz, s::time, s::date FROM (VALUES ('2024-01-31 10:11:12.1234567'), (NULL),
    ('2024-01-31 23:59:59.9999994+02')) AS q(s);
SELECT (v || '.1234567')::timestamp FROM (VALUES ('2024-01-31 10:11:12'), ('1969-12-31 23:59:59')) AS q(v);
SELECT (CASE WHEN id > 1 THEN '2024-01-31 10:11:12.5000005' ELSE '1999-01-01' END)::timestamp FROM t;
SELECT ARRAY['2024-01-31 10:11:12.1234567', '0044-03-15 BC']::timestamp[] = ARRAY[timestamp '2024-01-31
    10:11:12.123457', timestamp '0044-03-15 BC'];
SELECT id FROM t WHERE at = '2024-01-31 10:11:12.4999999';
SELECT id FROM t WHERE at > '2024-01-31 10:11:12.4999999' AND at < 'infinity';
SELECT id FROM t WHERE at IN ('2024-01-31 10:11:12.4999997', '0044-03-15 BC');
SELECT id FROM t WHERE at BETWEEN '0044-03-15 10:00:00 BC' AND '2024-01-31 10:11:12.4999999';
SELECT id FROM t WHERE at::date >= '2024-01-31 23:59:59.9999999' OR at::date < '-infinity';
SELECT id FROM t WHERE at = '2024-01-31 10:11:12 PM';
SELECT 'infinity'::timestamp > '294000-01-01'::timestamp, '-infinity'::date < '4000-01-01 BC'::date, '+Infinity'::date =
    'infinity'::date;
SELECT '0044-03-15 BC'::date::text, '0044-03-15 10:00:00.5 BC'::timestamp::text,
    '0044-03-15 10:00+02 bc'::timestamptz::text,
    '12024-01-31'::date::text, 'epoch'::timestamp::text, 'infinity'::timestamp::text;
SELECT s::timestamp::text, s::date::text, s::timestamptz::text FROM (VALUES ('0001-01-01 BC'), ('0044-02-29 10:11 BC'),
    ('4713-12-31 23:59:59.1234567+00 BC')) AS q(s);
SELECT '2024-01-31 10:11:12.1235'::timestamptz(3), '1999-12-31 23:59:58.5'::timestamp(0), at::timestamp(1),
    at::timestamp(5), '1969-06-01 10:11:12.15'::timestamp(1), at::timestamptz(2) FROM t;
SELECT '10:11:12.567'::time(1);
SELECT '2024-01-31 10:11:12+02'::timestamp, '2024-01-31T10:11:12.5Z'::timestamptz,
    '2024-01-31 10:11:12 +02:30'::timestamptz;
SELECT '2024-01-31 10:11:12 XYZ'::timestamp;
SELECT '2024-01-31 1:11:12 PM'::timestamp;
SELECT '24-01-31'::date;
SELECT '0000-01-01'::date;
SELECT '-0044-03-15'::date;
SELECT '23:59:59.9999999'::time = '24:00:00'::time, '10:11:12 PM'::time;
SELECT s::date FROM (VALUES ('2023-02-29')) AS q(s);
SELECT s::time FROM (VALUES ('10:11:12 PM')) AS q(s)
""",
    "what is a condition": r"""
SELECT id FROM t WHERE s;
SELECT id FROM t WHERE upper(s);
SELECT id FROM t WHERE s::text AND true;
SELECT id FROM t WHERE NOT abs(a);
SELECT id FROM t WHERE (SELECT max(a) FROM t);
SELECT id FROM t WHERE coalesce(a, 0) OR id = 1;
SELECT id FROM (SELECT id, a AS x FROM t) AS q WHERE x;
SELECT id FROM (SELECT id, s AS x FROM t WHERE false) AS q WHERE x;
SELECT max(id) FROM t HAVING max(a);
SELECT t.id FROM t JOIN u ON t.id = u.tid AND v;
SELECT CASE WHEN a THEN 1 END FROM t;
SELECT CASE WHEN (CASE WHEN n > 1 THEN length(s) END) THEN 1 END FROM t;
SELECT count(*) FILTER (WHERE length(s)) FROM t;
SELECT a IS TRUE, s IS NOT FALSE FROM t;
SELECT a = true FROM t;
SELECT bool_and(a) FROM t;
SELECT a AND id > 1 FROM t;
SELECT id FROM t WHERE 'true' AND NOT 'f';
SELECT id FROM t WHERE NULL;
SELECT id FROM t WHERE coalesce(a > 2, true) ORDER BY id;
SELECT id FROM t WHERE (SELECT max(a) > 6 FROM t) AND (NOT starts_with(s, 'ab') OR s IS NULL);
SELECT id FROM (SELECT id, a > 2 AS x FROM t) AS q WHERE x;
SELECT id FROM (SELECT id, a > 2 AS x FROM t) AS q WHERE x IS NOT TRUE AND CASE WHEN x THEN x ELSE id > 2 END;
SELECT CASE WHEN x THEN 'y' WHEN NOT x THEN 'n' END, NOT x FROM (SELECT a > 2 AS x FROM t) AS q;
SELECT t.id, u.id FROM t LEFT JOIN u ON t.id = u.tid AND (starts_with(u.v, 'u') OR coalesce(u.w > 6, false));
SELECT bool_or(x), bool_and(x), count(*) FILTER (WHERE x) FROM (SELECT a > 2 AS x FROM t) AS q HAVING bool_or(x);
SELECT id FROM t WHERE (id = 2)::boolean OR a::boolean AND s::varchar = 'ab_c'
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
    "booleans": r"""
SELECT id FROM b WHERE x IS UNKNOWN;
SELECT id, x IS UNKNOWN, x IS NOT UNKNOWN, NOT x IS UNKNOWN FROM b;
SELECT (x AND y) IS UNKNOWN FROM b;
SELECT x AND y IS UNKNOWN FROM b;
SELECT x = 1 FROM b;
SELECT id FROM b WHERE x = 1;
SELECT id FROM b WHERE x = 0;
SELECT id FROM b WHERE 1 = x;
SELECT id FROM b WHERE x <> 1;
SELECT id FROM b WHERE x > 0;
SELECT id FROM b WHERE x = 1.0;
SELECT id FROM b WHERE x = '1';
SELECT id FROM b WHERE x = 't';
SELECT id FROM b WHERE x = 'yes';
SELECT id FROM b WHERE x = 'of';
SELECT id FROM b WHERE x = 'maybe';
SELECT id FROM b WHERE x = NULL;
SELECT id FROM b WHERE x = true;
SELECT id FROM b WHERE x > false;
SELECT id FROM b WHERE x < y;
SELECT id FROM b WHERE x = id;
SELECT id FROM b WHERE id = x;
SELECT id FROM b WHERE x IN (1, 0);
SELECT id FROM b WHERE x IN (true, NULL);
SELECT id FROM b WHERE x IN ('t', 'f');
SELECT id FROM b WHERE x IN (SELECT a FROM t);
SELECT id FROM b WHERE x IN (SELECT y FROM b);
SELECT id FROM b WHERE id IN (true, false);
SELECT id FROM b WHERE x = ANY (ARRAY[1, 0]);
SELECT id FROM b WHERE x BETWEEN 0 AND 1;
SELECT id FROM b WHERE x BETWEEN false AND true;
SELECT id FROM b WHERE id BETWEEN false AND true;
SELECT id FROM b WHERE x IS DISTINCT FROM 1;
SELECT id FROM b WHERE x IS NOT DISTINCT FROM 0;
SELECT sum(x) FROM b;
SELECT avg(x) FROM b;
SELECT sum(x::int) FROM b;
SELECT sum(x = y) FROM b;
SELECT stddev(x) FROM b;
SELECT min(x) FROM b;
SELECT max(x) FROM b;
SELECT count(x) FROM b;
SELECT sum(x) OVER () FROM b;
SELECT x + 1 FROM b;
SELECT x + y FROM b;
SELECT x * 2 FROM b;
SELECT 1 - x FROM b;
SELECT -x FROM b;
SELECT x / 2 FROM b;
SELECT x % 2 FROM b;
SELECT abs(x) FROM b;
SELECT round(x) FROM b;
SELECT x || y FROM b;
SELECT x || 'a' FROM b;
SELECT 'a' || x FROM b;
SELECT 'a' || id FROM b;
SELECT id || id FROM b;
SELECT CASE WHEN id > 1 THEN x ELSE 1 END FROM b;
SELECT CASE WHEN id > 1 THEN 1 ELSE x END FROM b;
SELECT CASE WHEN id > 1 THEN 'a' ELSE 1 END FROM b;
SELECT CASE id WHEN true THEN 1 END FROM b;
SELECT CASE x WHEN 1 THEN 1 END FROM b;
SELECT CASE x WHEN 't' THEN 1 END FROM b;
SELECT CASE id WHEN '1' THEN 1 END FROM b;
SELECT coalesce(x, 1) FROM b;
SELECT coalesce(x, 'f') FROM b;
SELECT nullif(x, 1) FROM b;
SELECT greatest(x, 1) FROM b;
SELECT id FROM b WHERE x LIKE 't';
SELECT length(x) FROM b;
SELECT x::int + 1 FROM b;
SELECT x::text FROM b;
SELECT x::bigint FROM b;
SELECT x::numeric FROM b;
SELECT 1::boolean;
SELECT 2::bigint::boolean;
SELECT 1.5::boolean;
SELECT f::boolean FROM t;
SELECT 'yes'::boolean, 'off'::boolean, 't'::boolean, ' TRUE '::boolean, '0'::boolean;
SELECT 'maybe'::boolean;
SELECT id FROM b ORDER BY x, id;
SELECT x, count(*) FROM b GROUP BY x ORDER BY x;
SELECT array_agg(x ORDER BY id) FROM b;
SELECT string_agg(x, ',') FROM b;
SELECT x FROM b UNION SELECT a FROM t;
SELECT x FROM b EXCEPT SELECT true;
SELECT (id, x) IN ((1, 1)) FROM b;
SELECT bool_and(x = 1) FROM b;
SELECT every(x) FROM b;
SELECT count(*) FILTER (WHERE x = 1) FROM b;
SELECT id FROM b LIMIT true;
SELECT id FROM b WHERE x > 'f' ORDER BY id;
SELECT id FROM b WHERE NOT x = '1';
SELECT x::text || 'a' FROM b;
SELECT x & y FROM b;
SELECT ~x FROM b;
SELECT xx.x FROM (SELECT x = y AS x FROM b) AS xx WHERE xx.x = 1;
WITH q AS (SELECT x, id FROM b) SELECT id FROM q WHERE x = 1;
SELECT id FROM b WHERE (SELECT x) = 1;
SELECT id FROM b WHERE (a1 > 2) = 1;
SELECT id FROM b WHERE (id > 2) = 1;
SELECT id FROM b WHERE (id > 2) = x;
SELECT (id > 2) + 1 FROM b;
SELECT sum(id > 2) FROM b;
SELECT sum(CASE WHEN x THEN 1 ELSE 0 END) FROM b;
SELECT sum(coalesce(x, false)) FROM b;
SELECT greatest(x, y), least(x, y) FROM b
""",
    "kinds that do not match": r"""
SELECT id FROM t WHERE (a > 2) IS UNKNOWN;
SELECT id FROM t WHERE (a > 2) IS NOT UNKNOWN;
SELECT NULL IS UNKNOWN;
SELECT a IS UNKNOWN FROM t;
SELECT s IS UNKNOWN FROM t;
SELECT s IS NOT UNKNOWN FROM t;
SELECT 'unknown' IS UNKNOWN;
SELECT unknown FROM (SELECT 1 AS unknown) AS q;
SELECT sum(s) FROM t;
SELECT avg(s) FROM t;
SELECT sum(at) FROM t;
SELECT id || s FROM t;
SELECT s + 1 FROM t;
SELECT '1' + 1;
SELECT s + s FROM t;
SELECT s * 2 FROM t;
SELECT CASE WHEN id > 1 THEN s ELSE 1 END FROM t;
SELECT CASE WHEN id > 1 THEN s ELSE a END FROM t;
SELECT CASE WHEN id > 1 THEN 1 ELSE 1.5 END FROM t;
SELECT CASE WHEN id > 1 THEN a ELSE n END FROM t;
SELECT CASE WHEN id > 1 THEN at ELSE a END FROM t;
SELECT CASE WHEN id > 1 THEN at ELSE '2024-01-01' END FROM t;
SELECT CASE s WHEN 1 THEN 1 END FROM t;
SELECT coalesce(s, 1) FROM t;
SELECT coalesce(a, s) FROM t;
SELECT coalesce(a, 'x') FROM t;
SELECT coalesce(a, '12') FROM t;
SELECT nullif(s, 1) FROM t;
SELECT greatest(a, s) FROM t;
SELECT greatest(a, '5') FROM t;
SELECT id FROM t WHERE s = 7;
SELECT id FROM t WHERE a IN (7, 2.0);
SELECT id FROM t WHERE f BETWEEN 1 AND n;
SELECT coalesce(a, n), greatest(a, f), nullif(a, 2) FROM t;
SELECT a FROM t UNION SELECT f FROM t;
SELECT s FROM t UNION SELECT 'x' UNION SELECT NULL;
SELECT id FROM t WHERE s = a;
SELECT id FROM t WHERE a = s;
SELECT id FROM t WHERE s IN (1, 2);
SELECT id FROM t WHERE a IN (s);
SELECT id FROM t WHERE a IN ('7', 3);
SELECT id FROM t WHERE s IN (SELECT a FROM t);
SELECT id FROM t WHERE a IN (SELECT s FROM t);
SELECT id FROM t WHERE s BETWEEN 1 AND 7;
SELECT id FROM t WHERE a BETWEEN s AND 7;
SELECT id FROM t WHERE s > 1;
SELECT id FROM t WHERE s <> 1;
SELECT id FROM t WHERE s IS DISTINCT FROM 1;
SELECT id FROM t WHERE a BETWEEN 1.5 AND 7;
SELECT id FROM t WHERE at = 1;
SELECT id FROM t WHERE at > a;
SELECT id FROM t WHERE at = s;
SELECT id FROM t WHERE at::date = at;
SELECT id FROM t WHERE at = true;
SELECT t.id FROM t JOIN u ON t.s = u.w;
SELECT t.id FROM t JOIN b ON t.a = b.x;
SELECT t.id FROM t JOIN b USING (id) WHERE b.x = t.a;
SELECT id FROM t WHERE s LIKE 1;
SELECT id FROM t WHERE a LIKE '7';
SELECT length(a) FROM t;
SELECT upper(a) FROM t;
SELECT substring(a, 1, 1) FROM t;
SELECT at::int FROM t;
SELECT string_agg(a, ',') FROM t;
SELECT s FROM t UNION SELECT a FROM t;
SELECT a FROM t UNION SELECT n FROM t;
SELECT a FROM t UNION SELECT '7';
VALUES (1), ('a');
VALUES (1), (true);
VALUES ('1'), (2);
VALUES (1.5), (2);
SELECT (1, true) = (1, 1);
SELECT mod(a, 2), power(a, 2), a ^ 2 FROM t;
SELECT a & 1, a | 1, a # 1, ~a, a << 1 FROM t;
SELECT round(true);
SELECT true + true;
SELECT true = 1;
SELECT true > 0;
SELECT false IN (0);
SELECT -true;
SELECT 1 WHERE true = 't';
SELECT 1 WHERE 't' = true
""",
    "bytes": r"""
SELECT z::text, (z || z)::text, coalesce(z, 'x')::text, '\x00ff'::bytea::text, ''::bytea::text FROM b;
SELECT z, length(z), z::varchar(3), encode(z, 'hex'), id FROM b WHERE z = '\x00ff' OR z::text = '\x';
SELECT q.t || '!' FROM (SELECT z::text AS t FROM b) AS q;
SELECT count(z)::text FROM b;
SELECT string_agg(z::text, ',' ORDER BY id) FROM b;
SELECT extract(epoch FROM at::timestamptz), extract(hour FROM at::timestamptz), date_part('year', at::timestamptz)
    FROM t;
SELECT length(z), octet_length(z), octet_length('é'), octet_length(z::text), length('é') FROM b;
SELECT extract(epoch FROM '2024-01-31 10:11:12+02'::timestamptz)
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
                wanted: Any
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
