"""Upserts by a process that is killed anywhere: what its files say is what the shard holds, or it is not believed."""

import random
import sys
from pathlib import Path

import pyarrow as pa
from forked import Fork

import persist
from persist_ingest import Location
from persist_ingest.location import client, release

STEPS = 400
_CHILD = """
import os
import signal
import sys
import pyarrow as pa

import persist
from ingest.pipeline.upserts.test_upserts_killed import SCHEMA, STEPS, batch
from persist_ingest import Location
from persist_ingest.location import client
from persist_ingest.pipeline.newest import kept
from persist_ingest.pipeline.state import Contents
from persist_ingest.pipeline.newest.upserts import PLACES, appended, gather, upserted

directory, shard, state, unconfirmed = sys.argv[1:]
here = Location(directory=directory)
contents = Contents(location=here, shard=shard, state_dir=state)
fields = pa.schema([("k", pa.string()), ("v", pa.int64())])
load = kept._load
kept.FAN = 3


def loading(those, lower):
    print("loaded", flush=True)
    load(those, lower)


kept._load = loading
writer = client(here).open_writer(shard, schema=SCHEMA)
while (at := client(here).recent_upper(shard).time or 0) < STEPS:
    keys, values, there = batch(at)
    count = len(keys)
    columns = [pa.array(keys), pa.array(values), pa.array([at] * count, pa.uint64()), pa.nulls(count, pa.int64())]
    columns += [pa.array(range(count), pa.uint64()), pa.array(there)]
    gathered = gather(["k"])
    gathered.add(pa.Table.from_arrays(columns, names=["k", "v", *PLACES]))
    updates = list(upserted(gathered, contents, at, at + 1, fields, ["k"], str(at)))
    print("step", flush=True)
    writer.compare_and_append(pa.Table.from_batches(updates), [at], [at + 1])
    if at == int(unconfirmed):
        os.kill(os.getpid(), signal.SIGKILL)
    appended(contents, str(at))
print("done", flush=True)
"""
SCHEMA = persist.Schema(key={"k": pa.string()}, val={"v": pa.int64()})


def batch(number: int) -> tuple[list[str], list[int | None], list[bool]]:
    """What comes at a time, the same whenever it is asked for."""
    rng = random.Random(number)
    keys = [f"k{rng.randrange(300)}" for _ in range(20)]
    there = [rng.random() < 0.8 for _ in keys]
    return keys, [rng.randrange(5) if each else None for each in there], there


def test_a_process_that_is_killed_anywhere_goes_on_with_its_files(tmp_path: Path) -> None:
    here = Location(directory=str(tmp_path / "data"))
    shard = str(persist.ShardId.new())
    client(here).open_writer(shard, schema=SCHEMA)
    release(here)
    rng, loads, heard = random.Random(1), 0, ""
    arguments = (_CHILD, tmp_path / "data", shard, tmp_path / "state")
    kills, unconfirmed = 6, [17, 29, 31]
    while heard != "done\n":
        lines = rng.randrange(5, 60) if kills else sys.maxsize
        kills -= 1
        unconfirmed = [each for each in unconfirmed if each >= upper(here, shard)] or [-1]
        child = Fork("forked_program", *arguments, unconfirmed[0], heard=("output",))
        assert child.output is not None
        for line in child.output:
            heard = line.decode()
            loads += heard == "loaded\n"
            lines -= 1
            if lines <= 0:
                break
        child.close()
    held: dict[str, int | None] = {}
    for number in range(STEPS):
        for key, value, there in zip(*batch(number), strict=True):
            held.pop(key, None)
            if there:
                held[key] = value
    with client(here).open_reader(shard) as reader:
        rows = reader.snapshot(STEPS - 1).to_pylist()
    release(here)
    assert {row["k"]: row["v"] for row in rows} == held
    assert all(row["diff"] == 1 for row in rows)
    assert len(rows) == len(held)
    assert not loads, "its files were good enough each time"


def upper(here: Location, shard: str) -> int:
    found = client(here).recent_upper(shard).time or 0
    release(here)
    return found
