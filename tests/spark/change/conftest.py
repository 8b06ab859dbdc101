from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from spark.change.models import Row, Rows, rows_of

import persist
from pyspark_persist import PersistTable
from pyspark_persist.change import running
from pyspark_persist.change import source as sources

COLUMNS = "id long, name string, n long"
SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string(), "n": pa.int64()})


class Held:
    """A shard that tests change through Spark, and look at through the Python client."""

    def __init__(self, spark: Any, client: Any, where: dict[str, str], schema: persist.Schema = SCHEMA) -> None:
        self.spark = spark
        self.client = client
        self.shard = where["shard"]
        self.writer = client.open_writer(self.shard, schema=schema)
        self.table = PersistTable.forShard(spark, self.shard, location=where["location"])

    def put(self, *rows: Row, at: int, diff: int = 1) -> None:
        """Rows at that time, after which the shard ends."""
        names = [*self.writer.schema.key.names, *self.writer.schema.val.names]
        columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
        columns |= {"ts": [at] * len(rows), "diff": [diff] * len(rows)}
        kinds = [*self.writer.schema.key, *self.writer.schema.val]
        fields = [*kinds, pa.field("ts", pa.uint64(), nullable=False), pa.field("diff", pa.int64(), nullable=False)]
        self.writer.append(pa.Table.from_pydict(columns, schema=pa.schema(fields)), new_upper=at + 1)

    def rows(self, as_of: int | None = None) -> Rows:
        """What it holds at that time, or now."""
        if as_of is None:
            as_of = self.upper - 1
        if as_of < 0:
            return rows_of([])
        with self.client.open_reader(self.shard) as reader:
            found = reader.snapshot(as_of).to_pylist()
        return Rows({tuple(list(row.values())[:-1]): row["diff"] for row in found})

    @property
    def upper(self) -> int:
        return int(self.client.recent_upper(self.shard).time)

    def frame(self, *rows: Row, columns: str = COLUMNS) -> Any:
        return self.spark.createDataFrame(list(rows), columns)

    def kept(self) -> dict[str, Any]:
        """All that a refused change must leave as it was."""
        state = self.client.inspect(self.shard)
        return {name: state[name] for name in ("since", "upper", "rows", "spine", "schemas", "transactions")}


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How Spark carries out each change from now on."""
    made, tasks = list[str](), running._tasks

    def planned(write: Any, change: Any) -> Any:
        made.append(str(change.frame._jdf.queryExecution().executedPlan().toString()))
        return tasks(write, change)

    monkeypatch.setattr(running, "_tasks", planned)
    return made


@pytest.fixture
def held(spark: Any, client: Any, where: dict[str, str]) -> Held:
    """An empty shard."""
    return Held(spark, client, where)


@pytest.fixture
def made(spark: Any, client: Any, where: dict[str, str]) -> Callable[[persist.Schema], Held]:
    """An empty shard of that schema."""
    return lambda schema: Held(spark, client, where, schema)


@pytest.fixture(params=["driver", "executors"])
def kept(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who keeps the source."""
    monkeypatch.setattr(sources, "SMALL_BYTES", 1 << 63 if request.param == "driver" else 0)
