"""Upserts as updates, against a dictionary that does the same one by one."""

import random
from collections import Counter
from typing import Any

import pyarrow as pa

from persist_ingest.pipeline.upserts import Newest, changes_of

FIELDS = pa.schema([("k", pa.string()), ("v", pa.int64())])


def model(upserts: list[tuple[str, int, int, bool]]) -> Counter[Any]:
    """(key, value, ts, present) in order, one by one."""
    held: dict[str, int] = {}
    found: Counter[Any] = Counter()
    for key, value, ts, present in upserts:
        if key in held:
            found[key, held.pop(key), ts] -= 1
        if present:
            held[key] = value
            found[key, value, ts] += 1
    return Counter({row: count for row, count in found.items() if count})


def test_random_upserts_equal_the_model() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        newest = Newest(["k", "v"], ["k"])
        found: Counter[Any] = Counter()
        everything, ts = [], 0
        for _ in range(rng.randrange(1, 15)):
            batch = []
            for _ in range(rng.randrange(0, 30)):
                ts += rng.choice([0, 0, 1])
                batch.append((f"k{rng.randrange(8)}", rng.randrange(3), ts, rng.random() < 0.8))
            everything += batch
            rows = pa.RecordBatch.from_arrays(
                [
                    pa.array([key for key, *_ in batch], pa.string()),
                    pa.array([value if there else None for _, value, _, there in batch], pa.int64()),
                ],
                schema=FIELDS,
            )
            times = pa.array([at for _, _, at, _ in batch], pa.uint64())
            present = pa.array([there for *_, there in batch], pa.bool_())
            for piece in changes_of(rows, times, present, newest):
                for row in piece.to_pylist():
                    found[row["k"], row["v"], row["ts"]] += row["diff"]
        assert Counter({row: count for row, count in found.items() if count}) == model(everything), seed
