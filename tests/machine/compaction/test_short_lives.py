"""A shard that only short-lived processes write to is compacted: each carries out what its own commit claimed."""

import dataclasses
from pathlib import Path

from client.support import SCHEMA, SMALL, client_of, file_place, rows_of, table
from machine.support import new_shard

from persist.machine.compaction import scheduler

LIVES = 64
BLOBS = dataclasses.replace(SMALL, inline_part_bytes_max=0)


async def test_a_workload_of_processes_that_commit_once_is_compacted(tmp_path: Path):
    place, shard = file_place(tmp_path), new_shard()
    for life in range(LIVES):
        async with client_of(place, settings=BLOBS) as client:
            writer = await client.open_writer(shard, schema=SCHEMA)
            await writer.append(table([(life, "row", life, 1)]), life + 1)
            await writer.expire()
    async with client_of(place, settings=dataclasses.replace(BLOBS, compaction=False)) as client:
        state = await client.inspect(shard)
        assert sum(len(each["batches"]) for each in state["spine"]) <= LIVES / 3
        assert not any(each.get("claim") for each in state["spine"])
        reader = await client.open_reader(shard)
        found = rows_of(await (await reader.snapshot(LIVES - 1)).to_arrow())
        assert found == [(life, "row", 1) for life in range(LIVES)]


async def test_what_is_large_is_given_up_at_once(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(scheduler, "SETTLE_BYTES_MAX", -1)
    monkeypatch.setattr(scheduler, "SETTLE_SECONDS", 3600.0)
    place, shard = file_place(tmp_path), new_shard()
    async with client_of(place, settings=BLOBS) as client:
        writer = await client.open_writer(shard, schema=SCHEMA)
        for life in range(40):
            await writer.append(table([(life, "row", life, 1)]), life + 1)
    async with client_of(place, settings=dataclasses.replace(BLOBS, compaction=False)) as client:
        assert not any(each.get("claim") for each in (await client.inspect(shard))["spine"])
