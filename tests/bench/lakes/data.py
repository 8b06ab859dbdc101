"""Rows as a table has them, made by arithmetic, in Parquet files that lie one after the other by their ids."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES = 4
FEW_COLUMNS = ("id", "amount_1")
"""Two of the fifteen."""
_DAY = 86_400_000_000
_NAMES = np.array([f"customer of the region {number:04d}" for number in range(2_000)])


def wide(folder: Path, rows: int) -> pa.Table:
    """15 columns: ids, counts, amounts, texts, times; and the table itself."""
    ids = np.arange(rows, dtype=np.int64)
    mixed = _mixed(ids)
    columns: dict[str, object] = {"id": ids}
    columns |= {f"count_{place}": (mixed >> place * 7) & 0xFFFF for place in range(1, 5)}
    columns |= {f"amount_{place}": ((mixed >> place * 5) & 0xFFFFF) / 100 for place in range(1, 5)}
    columns |= {f"name_{place}": _NAMES[(mixed >> place * 3) % len(_NAMES)] for place in range(1, 4)}
    columns |= {"note": [f"{number:016x}" for number in mixed.tolist()]}
    columns |= {f"at_{place}": pa.array(ids * 1000 + place * _DAY, pa.timestamp("us", tz="UTC")) for place in (1, 2)}
    return _written(folder, pa.table(columns))


def six(folder: Path, rows: int) -> pa.Table:
    """6 columns with even ids, for changes."""
    return _written(folder, _six(np.arange(rows, dtype=np.int64) * 2, 0))


def changes(folder: Path, rows: int, of: int, salt: int) -> pa.Table:
    """``rows`` for ``six`` of that many: half of their ids are there, the others, which are odd, are not."""
    chosen = np.random.default_rng(salt).choice(of, rows, replace=False).astype(np.int64) * 2
    chosen[rows // 2 :] += 1
    return _written(folder, _six(chosen, salt), files=1)


def _six(ids: np.ndarray, salt: int) -> pa.Table:
    mixed = _mixed(ids + (salt << 33))
    return pa.table(
        {
            "id": ids,
            "count": mixed & 0xFFFF,
            "amount": ((mixed >> 5) & 0xFFFFF) / 100,
            "name": _NAMES[(mixed >> 3) % len(_NAMES)],
            "other": mixed >> 20,
            "part": (mixed >> 9) % 10_000,
        }
    )


def _mixed(ids: np.ndarray) -> np.ndarray:
    mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed ^ (mixed >> np.uint64(29))) >> np.uint64(1)).astype(np.int64)


def _written(folder: Path, table: pa.Table, files: int = FILES) -> pa.Table:
    folder.mkdir(parents=True)
    each = -(-table.num_rows // files)
    for place in range(files):
        piece = table.slice(place * each, each)
        pq.write_table(piece, folder / f"{place}.parquet", compression="zstd", row_group_size=1 << 17)
    return table
