"""What steps and upserts of ingestion cost: `python -m bench.jobs.ingesting REQUEST`, one JSON line.

``steps``: of a pipeline over some tables, idle, with one row, and with a row in each. ``upserts``: of rows by key,
where many keys were there before.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

import persist
from bench.processes import SAID
from persist_ingest import Location, Pipeline, PipelineOptions, create
from persist_ingest.location import client
from persist_ingest.pipeline.newest.upserts import PLACES, appended, gather, let_go, upserted
from persist_ingest.pipeline.state import Contents

WARM = 5
"""Steps before those that count."""
PIECE = 1_000_000


def main() -> None:
    request = json.loads(sys.argv[1])
    asked: dict[str, Callable[..., Any]] = {"steps": _steps, "upserts": _upserts}
    print(json.dumps(asked[request.pop("what")](**request)), flush=True)


# ---- steps -------------------------------------------------------------------------------------------------------


def _steps(dsn: str, location: dict[str, str], tables: int, rounds: int) -> Any:
    """Milliseconds of CPU and by the clock of each step, by what is in it."""
    place = Location(**location)
    names = [f"public.t{number}" for number in range(tables)]
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name in names:
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, name text)".encode())
            connection.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL".encode())
        create(place, "shop", "postgres", {"dsn": dsn, "tables": ",".join(names)}, interval_ms=1)
        numbers = iter(range(10**9))

        def insert(count: int) -> None:
            with connection.transaction():
                for name in names[:count]:
                    connection.execute(f"INSERT INTO {name} VALUES ({next(numbers)}, 'a name')".encode())

        found: dict[str, dict[str, list[float]]] = {}
        with Pipeline(place, "shop", options=PipelineOptions(recount_ms=0)) as pipeline:
            for kind, count in (("idle", 0), ("one row", 1), ("a row in each", tables)):
                found[kind] = _timed(pipeline.step, lambda count=count: insert(count), rounds)  # type: ignore[misc]
    return found


def _timed(step: Callable[[], object], before: Callable[[], None], rounds: int) -> dict[str, list[float]]:
    cpu, wall = list[float](), list[float]()
    for number in range(WARM + rounds):
        before()
        spent, began = time.process_time(), time.perf_counter()
        step()
        if number >= WARM:
            cpu.append((time.process_time() - spent) * 1e3)
            wall.append((time.perf_counter() - began) * 1e3)
    return {"cpu_ms": cpu, "ms": wall}


# ---- upserts -----------------------------------------------------------------------------------------------------


class Keyed:
    """A shard of keys 0, 1, … with a value each, that upserts go to."""

    def __init__(self, directory: Path) -> None:
        self._here = Location(directory=str(directory / "data"))
        schema = persist.Schema(key={"id": pa.int64()}, val={"v": pa.int64(), "name": pa.string()})
        types: dict[str, pa.DataType] = {"id": pa.int64(), "v": pa.int64(), "name": pa.string()}
        self._fields = pa.schema(types)
        self._writer = client(self._here).open_writer("keyed", schema=schema)
        self._contents = Contents(
            location=self._here, shard=str(self._writer.shard), state_dir=str(directory / "state")
        )
        self._upper = 0

    def upsert(self, ids: Any) -> tuple[float, int]:
        """CPU seconds of what upserts are beyond decoding and appending, and updates made."""
        count, upper = len(ids), self._upper + 1
        rows = pa.table(
            {
                "id": ids,
                "v": np.full(count, self._upper),
                "name": pa.array(np.char.mod("n%d", ids % 1_000)),
                **dict(zip(PLACES, _places(count, self._upper), strict=True)),
            }
        )
        began = time.process_time()
        gathered = gather(["id"])
        gathered.add(rows)
        mark = str(upper)
        made = list(upserted(gathered, self._contents, self._upper, upper, self._fields, ["id"], mark))
        spent = time.process_time() - began
        gathered.close()
        schema = pa.schema([*self._fields, ("ts", pa.uint64()), ("diff", pa.int64())])
        outcome = self._writer.compare_and_append(pa.Table.from_batches(made, schema), [self._upper], [upper])
        assert not isinstance(outcome, persist.UpperMismatch)
        self._upper = upper
        began = time.process_time()
        appended(self._contents, mark)
        return spent + time.process_time() - began, sum(batch.num_rows for batch in made)

    def restart(self) -> None:
        """What this process knows of it is left to the next one."""
        let_go(self._contents)


def _upserts(directory: str, keys: int, sizes: list[int], rounds: int) -> Any:
    """Microseconds of CPU an upsert and an update, by rows a step; seconds of the first step of a restart; memory."""
    keyed, rng = Keyed(Path(directory)), np.random.default_rng(7)
    for start in range(0, keys, PIECE):
        keyed.upsert(np.arange(start, min(keys, start + PIECE)))
        if start % (10 * PIECE) == 0:
            print(f"{SAID}{start:,} of {keys:,} keys", flush=True)
    before = _anonymous()
    found: dict[str, Any] = {}
    peak = 0
    for size in sizes:
        of_upsert, of_update = list[float](), list[float]()
        for _ in range(rounds):
            ids = rng.choice(keys, size, replace=False) if size < 1_000 else np.unique(rng.integers(0, keys, size))
            spent, updates = keyed.upsert(ids)
            of_upsert.append(spent / len(ids) * 1e6)
            of_update.append(spent / updates * 1e6)
            peak = max(peak, _anonymous())
        found[f"{size}"] = {"us_upsert": of_upsert, "us_update": of_update}
    keyed.restart()
    began = time.perf_counter()
    keyed.upsert(np.array([keys // 2]))
    found["restart_s"] = time.perf_counter() - began
    found |= {"anonymous_before": before, "anonymous": peak, "rss_max": _rss_max()}
    return found


def _places(count: int, time: int) -> list[Any]:
    """When, and in what order, so many upserts count, all of which are there."""
    offsets = np.arange(count, dtype=np.uint64)
    return [np.full(count, time, np.uint64), pa.nulls(count, pa.int64()), offsets, np.ones(count, np.bool_)]


def _anonymous() -> int:
    """Bytes of this process that no file stands behind. Linux only; 0 elsewhere."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def _rss_max() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


if __name__ == "__main__":
    main()
