"""Data and queries of TPC-H: tables that orders come to, are changed in and go from, and five of its questions."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

import persist

KEYS: Final = {
    "lineitem": ("l_orderkey", "l_linenumber"),
    "orders": ("o_orderkey",),
    "customer": ("c_custkey",),
    "supplier": ("s_suppkey",),
    "nation": ("n_nationkey",),
    "region": ("r_regionkey",),
}
READS: Final = {
    "q1": ("lineitem",),
    "q3": ("customer", "orders", "lineitem"),
    "q5": ("customer", "orders", "lineitem", "supplier", "nation", "region"),
    "q6": ("lineitem",),
    "q12": ("orders", "lineitem"),
}
QUERIES: Final = {
    "q1": """
        SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price,
            sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price,
            sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge,
            avg(l_quantity) AS avg_qty, count(*) AS count_order
        FROM {lineitem} WHERE l_shipdate <= DATE '1998-09-02' GROUP BY l_returnflag, l_linestatus""",
    "q3": """
        SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
        FROM {customer}, {orders}, {lineitem}
        WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
            AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
        GROUP BY l_orderkey, o_orderdate, o_shippriority
        ORDER BY revenue DESC, o_orderdate, l_orderkey LIMIT 10""",
    "q5": """
        SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
        FROM {customer}, {orders}, {lineitem}, {supplier}, {nation}, {region}
        WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey
            AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey
            AND r_name = 'ASIA' AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'
        GROUP BY n_name""",
    "q6": """
        SELECT sum(l_extendedprice * l_discount) AS revenue FROM {lineitem}
        WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
            AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24""",
    "q12": """
        SELECT l_shipmode,
            sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END)::BIGINT AS high_line_count,
            sum(CASE WHEN o_orderpriority NOT IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END)::BIGINT AS low_line_count
        FROM {orders}, {lineitem}
        WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate
            AND l_shipdate < l_commitdate AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1995-01-01'
        GROUP BY l_shipmode""",
}


def generate(scale: float, into: Path) -> None:
    """The tables, as Parquet files."""
    program = Path(sys.executable).parent / "tpchgen-cli"
    tables = ",".join(KEYS)
    command = [str(program), "parquet", "-s", str(scale), f"--tables={tables}", f"--output-dir={into}", "--quiet"]
    subprocess.run(command, check=True, capture_output=True)


class Truth:
    """The tables in a DuckDB of their own, and in ``log_…`` everything that ever happened to them."""

    def __init__(self, files: Path, rng: random.Random) -> None:
        self._rng = rng
        self._duck = duckdb.connect(":memory:")
        self._next = 10_000_000
        self.schemas: dict[str, persist.Schema] = {}
        self.begun: dict[str, pa.Table] = {}
        for name, key in KEYS.items():
            self._duck.execute(f"CREATE TABLE {name} AS FROM '{files / name}.parquet'")
            rows = self._duck.sql(f"FROM {name}").to_arrow_table()
            self.schemas[name] = persist.Schema.from_arrow(rows.schema, key)
            self._duck.execute(f"CREATE TABLE log_{name} AS SELECT *, 1::UBIGINT AS ts, 1::BIGINT AS diff FROM {name}")
            self.begun[name] = self._duck.sql(f"FROM log_{name}").to_arrow_table()

    def schema_of(self, query: str) -> persist.Schema:
        """The columns of an answer, all of them key."""
        fields = self._duck.sql(QUERIES[query].format(**{name: name for name in KEYS})).to_arrow_table().schema
        return persist.Schema(key=pa.schema([pa.field(each.name, each.type) for each in fields]))

    def changed(self, after: int, through: int) -> dict[str, list[pa.Table]]:
        """Orders that go, come and are changed, each at some time in ``(after, through]``; what happened to tables."""
        happened: dict[str, list[pa.Table]] = {"lineitem": [], "orders": []}
        what = [self._gone, self._come, self._turned]
        self._rng.shuffle(what)
        times = sorted(self._rng.randint(after + 1, through) for _ in what)
        for change, time in zip(what, times, strict=True):
            for name, sql in change():
                self._duck.execute(f"CREATE OR REPLACE TABLE now AS {sql}")
                columns = f"SELECT * EXCLUDE (diff), {time}::UBIGINT AS ts, diff::BIGINT AS diff FROM now"
                rows = self._duck.sql(columns).to_arrow_table()
                happened[name].append(rows)
                self._duck.register("rows", rows)
                self._duck.execute(f"INSERT INTO log_{name} FROM rows")
                self._duck.unregister("rows")
                self._apply(name)
        return happened

    def answer(self, query: str, time: int) -> pa.Table:
        """DuckDB's answer over the tables as they were at a time."""
        at = {
            name: f"(SELECT * EXCLUDE (ts, diff) FROM log_{name} WHERE ts <= {time} GROUP BY ALL HAVING sum(diff) > 0)"
            for name in KEYS
        }
        return self._duck.sql(QUERIES[query].format(**at)).to_arrow_table()

    def _apply(self, name: str) -> None:
        key = KEYS[name]
        same = " AND ".join(f"now.{each} = {name}.{each}" for each in key)
        self._duck.execute(f"DELETE FROM {name} USING now WHERE {same} AND now.diff < 0")
        self._duck.execute(f"INSERT INTO {name} SELECT * EXCLUDE (diff) FROM now WHERE diff > 0")

    def _some(self, count: int) -> str:
        orders: list[Any] = self._duck.sql("SELECT o_orderkey FROM orders ORDER BY o_orderkey").fetchall()
        return ", ".join(str(each[0]) for each in self._rng.sample(orders, count))

    def _gone(self) -> list[tuple[str, str]]:
        orders = self._some(40)
        return [
            ("orders", f"SELECT *, -1 AS diff FROM orders WHERE o_orderkey IN ({orders})"),
            ("lineitem", f"SELECT *, -1 AS diff FROM lineitem WHERE l_orderkey IN ({orders})"),
        ]

    def _come(self) -> list[tuple[str, str]]:
        orders, by = self._some(40), self._next
        self._next += 10_000_000
        return [
            ("orders", f"SELECT * REPLACE (o_orderkey + {by} AS o_orderkey), 1 AS diff FROM orders "
                       f"WHERE o_orderkey IN ({orders})"),
            ("lineitem", f"SELECT * REPLACE (l_orderkey + {by} AS l_orderkey), 1 AS diff FROM lineitem "
                         f"WHERE l_orderkey IN ({orders})"),
        ]  # fmt: skip

    def _turned(self) -> list[tuple[str, str]]:
        lines = f"FROM lineitem WHERE l_orderkey IN ({self._some(60)})"
        more = (
            "(l_extendedprice + 1)::DECIMAL(15, 2) AS l_extendedprice, (50 - l_quantity)::DECIMAL(15, 2) AS l_quantity"
        )
        return [("lineitem", f"SELECT *, -1 AS diff {lines} UNION ALL SELECT * REPLACE ({more}), 1 AS diff {lines}")]
