"""A number that a column cannot hold is refused by every door: none is stored, or shown, as another one."""

import decimal

import pytest
from client.sql.support import rows, sessions

from persist.client.sql.errors import SqlFailed

TABLES = """
create table a (k bigint, v numeric(10,2)); create table b (k bigint, v numeric(38,10));
create table c (k bigint, v bigint); create table whole (k bigint, v numeric(38,0));
create table f (k bigint, v double precision); create table r (k bigint, v real); create table s (k bigint, v text);
"""
WRAPPED = [2**128 + 5, 2**256 + 5, 3 * 2**256 - 7, -(2**256) - 1234, 2**64 * 10**20]
BEYOND = [
    *(f"{number}{more}" for number in WRAPPED for more in ("", ".00")),
    *("1e300", "-7e300", "1e309", "1.797e308", "10.0e299", "1e77", "-7e72", "123.456e38"),
]


async def test_a_literal_beyond_its_column_is_refused():
    async with sessions() as (session,):
        await session.execute(TABLES)
        for table in ("a", "b", "c", "whole"):
            for at, number in enumerate(BEYOND):
                for value in (number, f"'{number}'", f"({number})", f"cast('{number}' as text)"):
                    with pytest.raises(SqlFailed):
                        await session.execute(f"insert into {table} values ({at}, {value})")
            for values in ("(92, 1e300), (93, 2.0)", "(92, 2.0), (93, '1e300')", "(92, 1.5), (93, 1e75)"):
                with pytest.raises(SqlFailed):
                    await session.execute(f"insert into {table} values {values}")
            for whole in WRAPPED:
                for given in (whole, decimal.Decimal(whole), str(whole)):
                    with pytest.raises(SqlFailed):
                        await session.execute(f"insert into {table} values (?, ?)", [1, given])
            assert await rows(session, f"select * from {table}") == []


async def test_a_number_of_another_column_is_the_same_or_refused():
    async with sessions() as (session,):
        await session.execute(TABLES)
        await session.execute("insert into whole values (1, -70000000000000000000000000000), (2, 12345)")
        for change in ("insert into b select * from whole", "insert into b values (1, 0); update b set v = -7e28"):
            with pytest.raises(SqlFailed):
                await session.execute(change)
        await session.execute("delete from b; insert into b select * from whole where k = 2")
        assert await rows(session, "select v from b") == [(12345,)]


@pytest.mark.parametrize(("table", "value"), [("f", "'1e400'"), ("f", "1e309"), ("r", "1e300"), ("r", "'-1e300'")])
async def test_a_number_does_not_become_infinite(table, value):
    async with sessions() as (session,):
        await session.execute(TABLES)
        for change in (f"insert into {table} values (1, {value})", f"insert into {table} select 1, {value}"):
            with pytest.raises(SqlFailed):
                await session.execute(change)


async def test_a_text_has_all_digits_of_a_number():
    async with sessions() as (session,):
        await session.execute(TABLES)
        await session.execute(f"insert into s values (1, 1e300), (2, {WRAPPED[1]})")
        assert await rows(session, "select v from s order by k") == [("1" + "0" * 300,), (str(WRAPPED[1]),)]


async def test_a_query_shows_no_number_that_it_cannot_hold():
    async with sessions() as (session,):
        await session.execute(TABLES)
        for query in (f"select {2**128 + 5}", f"select -{10**38}", f"select k from c where v < {2**256}"):
            with pytest.raises(SqlFailed, match="digits"):
                await session.execute(query)
        assert await rows(session, f"select {10**38 - 1}, {2**64 + 5}") == [(10**38 - 1, 2**64 + 5)]


async def test_a_file_with_a_number_beyond_its_column_is_refused(tmp_path):
    async with sessions(files=True) as (session,):
        await session.execute(TABLES)
        for number in ("340282366920938463463374607431768211461", "7" + "0" * 28, "1e-45", "1e300"):
            for form, text in (
                ("csv", f"k,v\n1,{number}\n"),
                ("jsonl", f'{{"k":1,"v":{number}}}\n'),
                ("jsonl", f'{{"k":1,"v":"{number}"}}\n'),
            ):
                path = tmp_path / f"rows.{form}"
                path.write_text(text)
                for table in ("a", "b", "c") if number != "1e300" else ("a", "b", "c", "r"):
                    with pytest.raises(SqlFailed):
                        await session.execute(f"copy {table} from '{path}'")
