"""What changes of a table cost without Spark: `python -m bench.jobs.merging REQUEST`, then a line for each.

The floor reads the keys of the table, finds those of the changes among them, and writes the changes with one retraction
for each key that was found; nothing less is a merge that keeps history. The peer is deltalake's own.
"""

import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

KEY = "id"
AGAIN_MAX = 20
"""How often a merge that another one was faster than is computed."""


class Floor:
    """Keys in, diffs out, by files of this machine."""

    def __init__(self, place: Path, table: Path) -> None:
        self._place = place
        self._files = sorted(table.glob("*.parquet"))
        self._number = 0

    def merge(self, changes: pa.Table) -> None:
        keys = np.sort(changes.column(KEY).to_numpy())
        matched = []
        for file in self._files:
            for batch in pq.ParquetFile(file).iter_batches(columns=[KEY]):
                ids = batch.column(0).to_numpy()
                place = np.minimum(np.searchsorted(keys, ids), len(keys) - 1)
                matched.append(ids[keys[place] == ids])
        old = changes.filter(pc.is_in(changes.column(KEY), value_set=pa.array(np.concatenate(matched))))
        diffs = np.concatenate([np.full(old.num_rows, -1), np.ones(changes.num_rows, np.int64)])
        updates = pa.concat_tables([old, changes]).append_column("diff", pa.array(diffs))
        self._number += 1
        pq.write_table(
            updates.sort_by(KEY), self._place / f"{self._number}.parquet", compression="zstd", compression_level=1
        )


class Peer:
    """deltalake."""

    def __init__(self, place: Path, table: Path) -> None:
        from deltalake import DeltaTable, write_deltalake

        self._place = str(place)
        write_deltalake(self._place, pq.read_table(table))
        self._table = DeltaTable(self._place)

    def merge(self, changes: pa.Table) -> None:
        merger = self._table.merge(changes, f"t.{KEY} = s.{KEY}", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def update(self, values: dict[str, str], where: str) -> int:
        """How many rows it changed."""
        return int(self._table.update(updates=values, predicate=where)["num_updated_rows"])

    def delete(self, where: str) -> int:
        """How many rows it took away."""
        return int(self._table.delete(where)["num_deleted_rows"])

    def together(self, sources: Sequence[pa.Table], summed: str) -> dict[str, Any]:
        """Each source is merged by a writer of its own, all at once: ``summed`` is added to, what is new inserted.

        The answer: how often they were computed, and how many failed for good.
        """
        attempts: list[int] = []
        failed: list[str] = []

        def one(source: pa.Table) -> None:
            from deltalake import DeltaTable
            from deltalake.exceptions import CommitFailedError

            for attempt in range(1, AGAIN_MAX + 1):
                merger = DeltaTable(self._place).merge(source, f"t.{KEY} = s.{KEY}", source_alias="s", target_alias="t")
                merger.when_matched_update(updates={summed: f"t.{summed} + s.{summed}"}).when_not_matched_insert_all()
                try:
                    merger.execute()
                except CommitFailedError as error:
                    said = str(error)
                    continue
                attempts.append(attempt)
                return
            failed.append(said)

        threads = [threading.Thread(target=one, args=(source,)) for source in sources]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return {"attempts": sum(attempts) + AGAIN_MAX * len(failed), "failed": len(failed)}

    def total(self) -> dict[str, int]:
        """How many rows there are, and what their ids and counts come to."""
        from deltalake import DeltaTable

        return total(DeltaTable(self._place).to_pyarrow_table(columns=[KEY, "count"]))


def total(table: pa.Table) -> dict[str, int]:
    """Rows by their number, the sum of counts, and that of counts by their ids."""
    ids, counts = (table.column(name).to_numpy() for name in (KEY, "count"))
    return {"rows": len(ids), "counts": int(counts.sum()), "mixed": int((ids % 1009 * counts).sum())}


def _answer(who: "Floor | Peer", asked: dict[str, Any]) -> dict[str, Any]:
    """Does one thing; what it took by the clock and of the processor, and what it found."""
    what = asked.get("what", "merge")
    given: dict[str, Any] = dict(asked.get("with", {}))
    if "changes" in asked:
        given["changes"] = pq.read_table(asked["changes"])
    if "sources" in given:
        given["sources"] = [pq.read_table(source) for source in given["sources"]]
    began, cpu = time.perf_counter(), time.process_time()
    found = getattr(who, what)(**given)
    spent = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    return spent if found is None else {**spent, "found": found}


def main(request: dict[str, Any]) -> None:
    place, table = Path(request["place"]), Path(request["table"])
    (place / "floor").mkdir()
    who: dict[str, Floor | Peer] = {"floor": Floor(place / "floor", table), "deltalake": Peer(place / "delta", table)}
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(_answer(who[asked["do"]], asked)), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
