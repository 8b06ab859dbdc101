"""What a merge costs without Spark: `python -m bench.jobs.merging REQUEST`, then a line for each merge.

The floor reads the keys of the table, finds those of the changes among them, and writes the changes with one retraction
for each key that was found; nothing less is a merge that keeps history. The peer is deltalake's own.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

KEY = "id"


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

        write_deltalake(str(place), pq.read_table(table))
        self._table = DeltaTable(str(place))

    def merge(self, changes: pa.Table) -> None:
        merger = self._table.merge(changes, f"t.{KEY} = s.{KEY}", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()


def main(request: dict[str, Any]) -> None:
    place, table = Path(request["place"]), Path(request["table"])
    (place / "floor").mkdir()
    who: dict[str, Floor | Peer] = {"floor": Floor(place / "floor", table), "deltalake": Peer(place / "delta", table)}
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        changes = pq.read_table(asked["changes"])
        began, cpu = time.perf_counter(), time.process_time()
        who[asked["do"]].merge(changes)
        told = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
