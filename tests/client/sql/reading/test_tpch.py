"""Five queries of TPC-H over tables of persist equal DuckDB's answers over the same rows.

The rows are made here, in the shapes and with the words that the queries ask for.
"""

import datetime
import random
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from client.sql.support import last, rows, sessions
from sure import sure

ORDERS = 400

TABLES = """
create table nation (n_nationkey int primary key, n_name text not null, n_regionkey int not null);
create table region (r_regionkey int primary key, r_name text not null);
create table supplier (s_suppkey int primary key, s_nationkey int not null);
create table customer (c_custkey int primary key, c_mktsegment text not null, c_nationkey int not null);
create table part (p_partkey int primary key, p_type text not null);
create table orders (
    o_orderkey bigint primary key, o_custkey int not null, o_orderdate date not null, o_shippriority int not null
);
create table lineitem (
    l_orderkey bigint, l_linenumber int, l_partkey int not null, l_suppkey int not null,
    l_quantity numeric(15, 2) not null, l_extendedprice numeric(15, 2) not null, l_discount numeric(15, 2) not null,
    l_tax numeric(15, 2) not null, l_returnflag text not null, l_linestatus text not null, l_shipdate date not null,
    primary key (l_orderkey, l_linenumber)
);
"""

QUERIES = {
    "Q1": """
        select l_returnflag, l_linestatus, sum(l_quantity) as sum_qty, sum(l_extendedprice) as sum_base_price,
            sum(l_extendedprice * (1 - l_discount)) as sum_disc_price,
            sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as sum_charge, count(*) as count_order
        from lineitem where l_shipdate <= date '1998-12-01' - interval '90' day
        group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus""",
    "Q3": """
        select l_orderkey, sum(l_extendedprice * (1 - l_discount)) as revenue, o_orderdate, o_shippriority
        from customer, orders, lineitem
        where c_mktsegment = 'BUILDING' and c_custkey = o_custkey and l_orderkey = o_orderkey
            and o_orderdate < date '1995-03-15' and l_shipdate > date '1995-03-15'
        group by l_orderkey, o_orderdate, o_shippriority order by revenue desc, o_orderdate, l_orderkey limit 10""",
    "Q5": """
        select n_name, sum(l_extendedprice * (1 - l_discount)) as revenue
        from customer, orders, lineitem, supplier, nation, region
        where c_custkey = o_custkey and l_orderkey = o_orderkey and l_suppkey = s_suppkey
            and c_nationkey = s_nationkey and s_nationkey = n_nationkey and n_regionkey = r_regionkey
            and r_name = 'ASIA' and o_orderdate >= date '1994-01-01' and o_orderdate < date '1996-01-01'
        group by n_name order by revenue desc, n_name""",
    "Q6": """
        select sum(l_extendedprice * l_discount) as revenue from lineitem
        where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'
            and l_discount between 0.05 and 0.07 and l_quantity < 24""",
    "Q14": """
        select 100.00 * sum(case when p_type like 'PROMO%' then l_extendedprice * (1 - l_discount) else 0 end)
            / sum(l_extendedprice * (1 - l_discount)) as promo_revenue
        from lineitem, part where l_partkey = p_partkey
            and l_shipdate >= date '1995-09-01' and l_shipdate < date '1996-09-01'""",
}


def made(seed: int) -> dict[str, list[tuple]]:
    """Rows by table."""
    chance = random.Random(seed)
    day = datetime.date(1992, 1, 1)

    def money(most: int) -> Decimal:
        return Decimal(chance.randrange(100, most)) / 100

    found: dict[str, list[tuple]] = {
        "region": [(n, name) for n, name in enumerate(["AFRICA", "AMERICA", "ASIA", "EUROPE"])],
        "nation": [(n, f"NATION {n}", n % 4) for n in range(8)],
        "supplier": [(n, chance.randrange(8)) for n in range(20)],
        "customer": [(n, chance.choice(["BUILDING", "MACHINERY"]), chance.randrange(8)) for n in range(60)],
        "part": [(n, chance.choice(["PROMO TIN", "SMALL BRASS", "PROMO STEEL"])) for n in range(40)],
        "orders": [],
        "lineitem": [],
    }
    for key in range(ORDERS):
        ordered = day + datetime.timedelta(days=chance.randrange(2400))
        found["orders"].append((key, chance.randrange(60), ordered, 0))
        for line in range(chance.randrange(1, 7)):
            found["lineitem"].append(
                (
                    key, line, chance.randrange(40), chance.randrange(20), Decimal(chance.randrange(1, 51)),
                    money(9_000_000), Decimal(chance.randrange(11)) / 100, Decimal(chance.randrange(9)) / 100,
                    chance.choice("RAN"),
                    chance.choice("OF"), ordered + datetime.timedelta(days=chance.randrange(1, 122)),
                )
            )  # fmt: skip
    return found


@pytest.fixture(scope="module")
def data() -> dict[str, list[tuple]]:
    return made(7)


async def test_answers_are_those_of_duckdb_over_the_same_rows_now_and_then(data):
    async with sessions() as (session,):
        await session.execute(TABLES.replace(");", ") with (retain history forever);"))
        reference = duckdb.connect()
        reference.execute("SET integer_division = true")
        reference.execute(TABLES)
        ts = 0
        for name, each in data.items():
            columns = list(zip(*each, strict=True))
            schema = sure((await session.environment.resolve(name)).schema)
            fields = [*schema.key, *schema.val]
            arrays = [pa.array(values, field.type) for values, field in zip(columns, fields, strict=True)]
            table = pa.table(arrays, names=[field.name for field in fields])
            ts = sure((await session.insert(name, table)).ts)
            reference.register("given", table)
            reference.execute(f"insert into {name} select * from given")
        before = {name: reference.execute(text).fetchall() for name, text in QUERIES.items()}
        for name, text in QUERIES.items():
            assert await rows(session, text) == before[name], name
            assert before[name], name
        change = (
            "update lineitem set l_discount = 0.06, l_quantity = 1 where l_orderkey < 200;"
            "delete from orders where o_orderkey > 300"
        )
        assert (await last(session, change)).tag.startswith("DELETE")
        for each in change.split(";"):
            reference.execute(each)
        for name, text in QUERIES.items():
            assert await rows(session, text) == reference.execute(text).fetchall(), name
            assert await rows(session, f"{text} as of {ts}") == before[name], name
