"""P15: what asking SQL as of a time costs beside reading the same snapshot by the API and asking DuckDB."""

import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from soak.tpch import QUERIES, READS, generate

from bench.measure import Spread, clock, ratios
from bench.outcome import Outcome
from bench.plan import Plan
from bench.stage import Stage
from persist import aio
from persist.client.sql.session import SqlSession

TABLES = {
    "lineitem": """(
        l_orderkey BIGINT, l_partkey BIGINT, l_suppkey BIGINT, l_linenumber INT, l_quantity NUMERIC(15, 2),
        l_extendedprice NUMERIC(15, 2), l_discount NUMERIC(15, 2), l_tax NUMERIC(15, 2), l_returnflag TEXT,
        l_linestatus TEXT, l_shipdate DATE, l_commitdate DATE, l_receiptdate DATE, l_shipinstruct TEXT, l_shipmode TEXT,
        l_comment TEXT)""",
    "orders": """(
        o_orderkey BIGINT, o_custkey BIGINT, o_orderstatus TEXT, o_totalprice NUMERIC(15, 2), o_orderdate DATE,
        o_orderpriority TEXT, o_clerk TEXT, o_shippriority INT, o_comment TEXT)""",
}
COLUMNS = {
    "q1": {"lineitem": ["l_returnflag", "l_linestatus", "l_quantity", "l_extendedprice", "l_discount", "l_tax",
                        "l_shipdate"]},
    "q6": {"lineitem": ["l_extendedprice", "l_discount", "l_shipdate", "l_quantity"]},
    "q12": {"orders": ["o_orderkey", "o_orderpriority"],
            "lineitem": ["l_orderkey", "l_shipmode", "l_commitdate", "l_receiptdate", "l_shipdate"]},
}  # fmt: skip
"""What each query reads: who reads by the API asks for these columns, and for no others."""
PIECES = 4
"""Statements that a table is put in by."""


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder)
        generate(plan.pick(2, 10) / 100, files)
        async with await aio.embedded(blob=stage.blob_uri(), consensus=stage.redis_uri) as client:
            session = SqlSession(await client.environment(), owns=True)
            try:
                await session.execute("SET statement_timeout = '10m'")
                ts = await _filled(session, files, plan)
                for name in COLUMNS:
                    await _query(client, session, name, ts, plan, outcome)
            finally:
                await session.close()


async def _filled(session: SqlSession, files: Path, plan: Plan) -> int:
    """The time at which both tables are whole."""
    ts = 0
    for name, columns in TABLES.items():
        rows = pq.read_table(files / f"{name}.parquet")
        plan.say(f"P15 {rows.num_rows:,} rows of {name}")
        await session.execute(f"CREATE TABLE {name} {columns} WITH (RETAIN HISTORY FOREVER)")
        size = -(-rows.num_rows // PIECES)
        for begin in range(0, rows.num_rows, size):
            ts = (await session.insert(name, rows.slice(begin, size))).ts or ts
    return ts


async def _query(client: aio.Client, session: SqlSession, name: str, ts: int, plan: Plan, outcome: Outcome) -> None:
    text = QUERIES[name].format(**{each: each for each in READS[name]})

    async def by_sql() -> Sequence[tuple[Any, ...]]:
        return (await session.execute(f"{text} AS OF {ts}"))[-1].rows

    async def by_api() -> Sequence[tuple[Any, ...]]:
        with duckdb.connect() as connection:
            for each, columns in COLUMNS[name].items():
                shard = (await session.environment.resolve(each)).data
                assert shard is not None
                async with await client.open_reader(shard) as reader:
                    connection.register(each, await (await reader.snapshot(ts)).to_arrow(columns))
            return connection.sql(text).fetchall()

    laps: dict[str, list[float]] = {"sql": [], "api": [], "sql cpu": [], "api cpu": []}
    answers: dict[str, Counter[tuple[Any, ...]]] = {}
    await by_sql()
    await by_api()
    for number in plan.rounds_of(f"P15 {name}", 20):
        both: list[tuple[str, Callable[[], Awaitable[Sequence[tuple[Any, ...]]]]]] = [("sql", by_sql), ("api", by_api)]
        for who, ask in both if number % 2 else both[::-1]:
            began, cpu = clock(), time.process_time()
            answers[who] = Counter(await ask())
            laps[who].append((clock() - began) * 1e3)
            laps[f"{who} cpu"].append((time.process_time() - cpu) * 1e3)
    outcome.gate("P15", f"answers to {name}", expected=answers["api"], found=answers["sql"])
    outcome.keep(f"sql_{name}", laps)
    for what, unit in (("wall", ""), ("CPU", " cpu")):
        outcome.check("P15", f"{name} AS OF, SQL against snapshot and query, {what}",
                      ratios(laps[f"sql{unit}"], laps[f"api{unit}"]).mid, 1.3,
                      ours=Spread.of(laps[f"sql{unit}"]).show(" ms", 0),
                      against=Spread.of(laps[f"api{unit}"]).show(" ms", 0))  # fmt: skip
