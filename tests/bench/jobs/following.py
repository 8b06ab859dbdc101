"""A database that works, and how far what is ingested is behind it: `python -m bench.jobs.following REQUEST`.

Its pipeline is another process, the command line's. One JSON line: ``lag_ms`` of each transaction, from just before it
was begun until a listener had all of it; ``changes_per_second`` that the database took; ``behind_s`` from the last one
until all was there; whether it ``agrees`` with the database.
"""

import json
import sys
import threading
import time
from typing import Any

import psycopg

import persist
from persist_ingest import Location
from persist_ingest import location as places

TABLE = "public.worked"
COLUMNS = ("id", "tx", "name")


def main(request: dict[str, Any]) -> None:
    """``rate``: transactions a second, of ``rows`` inserts each and, where ``updates``, as many updates of others."""
    client = places.client(Location(directory=request["location"]))
    lags = list[float]()
    begun = {0: 0.0}
    wanted = request["rate"] * request["seconds"]

    def work() -> None:
        with psycopg.connect(request["dsn"], autocommit=True) as connection:
            start = time.monotonic()
            for number in range(1, wanted + 1):
                time.sleep(max(0.0, start + number / request["rate"] - time.monotonic()))
                begun[number] = time.monotonic()
                _transaction(connection, number, request["rows"], updates=request["updates"])
            begun[-1] = time.monotonic() - start

    with client.open_reader(request["shard"]) as reader:
        upper = client.recent_upper(request["shard"]).time or 0
        with reader.listen(upper - 1) as events:
            worker = threading.Thread(target=work)
            worker.start()
            given, complete = set[int](), set[int]()
            for event in events:
                if isinstance(event, persist.Updates):
                    given.update(map(int, event.table.column("tx").to_numpy()))
                    continue
                now = time.monotonic()
                lags += [(now - begun[number]) * 1e3 for number in given - complete]
                complete |= given
                if len(complete) == wanted:
                    break
        ended = time.monotonic()
        worker.join()
        held = reader.snapshot().to_arrow()
    changes = wanted * request["rows"] * (2 if request["updates"] else 1)
    found = {"lag_ms": lags, "changes_per_second": changes / begun[-1], "behind_s": ended - begun[wanted]}
    found["agrees"] = _rows_of(request["dsn"]) == sorted(
        zip(*(held[name].to_pylist() for name in COLUMNS), strict=True)
    )
    print(json.dumps(found), flush=True)


def _transaction(connection: Any, number: int, rows: int, *, updates: bool) -> None:
    first = number * rows
    inserted = f"INSERT INTO {TABLE} SELECT i, {number}, 'a name' FROM generate_series({first}, {first + rows - 1}) i"
    if not updates:
        connection.execute(inserted.encode())
        return
    with connection.transaction():
        connection.execute(inserted.encode())
        at = f"id >= {first - rows} AND id < {first}"
        connection.execute(f"UPDATE {TABLE} SET name = 'another' WHERE {at}".encode())


def _rows_of(dsn: str) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        return sorted(connection.execute(f"SELECT {', '.join(COLUMNS)} FROM {TABLE}".encode()).fetchall())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
