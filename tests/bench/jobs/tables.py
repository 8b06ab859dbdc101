"""A table of one system in Python, without Spark or servers: `python -m bench.jobs.tables REQUEST`.

Says when it is there, then does what each line asks and says what that took, by the clock and of the processor, and
what it found. Tables lie in a folder of this machine, six columns of which the first is the key.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.jobs.merging import KEY, total

NAME = "six"


class Persist:
    """A table of ours, in a location without a server."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        import persist

        self._client = persist.embedded(folder)
        fields = {field.name: field.type for field in schema}
        self._table = self._client.table(NAME, schema=persist.Schema(key={KEY: fields.pop(KEY)}, val=fields))

    def write(self, rows: pa.Table) -> None:
        self._table.insert(rows)

    def read(self, columns: Sequence[str] | None, keys: tuple[int, int] | None) -> pa.Table:
        where = None if keys is None else f"{KEY} >= {keys[0]} and {KEY} < {keys[1]}"
        return self._table.snapshot().to_arrow(columns=columns, where=where)

    def upsert(self, rows: pa.Table) -> None:
        self._table.upsert(rows)

    def delete(self, keys: pa.Table) -> None:
        self._table.delete(keys)


class Delta:
    """deltalake."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        from deltalake import DeltaTable

        self._table = DeltaTable.create(str(folder), schema=schema)

    def write(self, rows: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(self._table, rows, mode="append")

    def read(self, columns: Sequence[str] | None, keys: tuple[int, int] | None) -> pa.Table:
        filters = None if keys is None else [(KEY, ">=", keys[0]), (KEY, "<", keys[1])]
        return self._table.to_pyarrow_table(columns=None if columns is None else list(columns), filters=filters)

    def upsert(self, rows: pa.Table) -> None:
        merger = self._table.merge(rows, f"t.{KEY} = s.{KEY}", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def delete(self, keys: pa.Table) -> None:
        merger = self._table.merge(keys, f"t.{KEY} = s.{KEY}", source_alias="s", target_alias="t")
        merger.when_matched_delete().execute()


class Iceberg:
    """pyiceberg, its catalog in SQLite."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        logging.getLogger("pyiceberg").setLevel(logging.ERROR)
        folder.mkdir(parents=True, exist_ok=True)
        catalog: Any = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
        catalog.create_namespace("bench")
        self._table: Any = catalog.create_table(f"bench.{NAME}", schema)

    def write(self, rows: pa.Table) -> None:
        self._table.append(rows)

    def read(self, columns: Sequence[str] | None, keys: tuple[int, int] | None) -> pa.Table:
        from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, LessThan

        chosen: Any = AlwaysTrue() if keys is None else And(GreaterThanOrEqual(KEY, keys[0]), LessThan(KEY, keys[1]))
        found: pa.Table = self._table.scan(chosen, selected_fields=tuple(columns or ("*",))).to_arrow()
        return found

    def upsert(self, rows: pa.Table) -> None:
        self._table.upsert(rows, join_cols=[KEY])

    def delete(self, keys: pa.Table) -> None:
        from pyiceberg.expressions import In

        self._table.delete(In(KEY, keys.column(KEY).to_pylist()))


System = Persist | Delta | Iceberg
SYSTEMS: dict[str, Callable[[Path, pa.Schema], System]] = {
    "persist": Persist,
    "deltalake": Delta,
    "pyiceberg": Iceberg,
}


def work(system: System, asked: dict[str, Any]) -> Callable[[], pa.Table | None]:
    """What a line asks for, with everything at hand that it does not count."""
    what = asked["do"]
    if what == "read":
        keys = tuple(asked["keys"]) if "keys" in asked else None
        return lambda: system.read(asked.get("columns"), keys)
    rows = pq.read_table(asked["rows"])
    given = rows.select([KEY]) if what == "delete" else rows
    return lambda: getattr(system, what)(given)


def main(request: dict[str, Any]) -> None:
    schema = pq.read_schema(request["like"]).remove_metadata()
    system = SYSTEMS[request["system"]](Path(request["folder"]), schema)
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        doing = work(system, asked)
        began, cpu = time.perf_counter(), time.process_time()
        try:
            found = doing()
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"[:400]}), flush=True)
            continue
        told: dict[str, Any] = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
        if found is not None:
            told["found"] = total(found)
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
