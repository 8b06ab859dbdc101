"""Sweeping a shard through a client: what a writer left that never committed it."""

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from client.support import SCHEMA, Place, client_of, table

import persist
from persist import InvalidArgument, LeaseExpired, ShardId, ShardNotFound


def leave(client: Any, shard: ShardId) -> Any:
    """A part in Blob that no writer commits, by a writer that the shard does not know."""
    spec = client.batch_spec(shard, SCHEMA, writer_id=client.open_writer(ShardId.new(), schema=SCHEMA).writer_id)
    spec = dataclasses.replace(spec, settings=dataclasses.replace(spec.settings, inline_part_bytes_max=0))
    builder = spec.open()
    builder.add(pa.table({"id": range(100), "name": ["x"] * 100}))
    return builder.finish(), spec.writer_id


def test_what_was_never_committed_is_found_and_deleted_and_cannot_be_committed_any_more(tmp_path: Path):
    with persist.embedded(tmp_path) as client:
        shard = ShardId.new()
        client.open_writer(shard, schema=SCHEMA).append([(({"id": 1}, {"name": "a"}), 0, 1)], new_upper=1)
        prepared, writer_id = leave(client, shard)
        young = client.sweep(shard)
        assert (young.leaked, young.unlinked, young.deleted) == (0, 1, False)
        dry = client.sweep(shard, safe_age=0)
        assert (dry.leaked, dry.unlinked, dry.deleted) == (1, 0, False)
        done = client.sweep(shard, dry_run=False, safe_age=0)
        assert (done.leaked, done.leaked_bytes, done.deleted) == (1, dry.leaked_bytes, True)
        assert client.sweep(shard, safe_age=0).leaked == 0
        writer = client.open_writer(shard, writer_id=writer_id)
        with pytest.raises(LeaseExpired):
            writer.compare_and_append_batches([prepared.registered(writer.batch_spec().schema_id)], 1, 2, at_time=1)
        with client.open_reader(shard) as reader:
            assert reader.snapshot(0).to_pylist() == [{"id": 1, "name": "a", "diff": 1}]
        with pytest.raises(ShardNotFound):
            client.sweep(ShardId.new())
        with pytest.raises(InvalidArgument):
            client.sweep(shard, safe_age=-1)


async def test_clients_of_servers_are_told_who_sweeps(place: Place):
    async with client_of(place) as client:
        shard = ShardId.new()
        writer = await client.open_writer(shard, schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1)]), new_upper=1)
        if place.access == "local":
            assert (await client.sweep(shard, safe_age=0)).leaked == 0
            return
        with pytest.raises(InvalidArgument, match="cannot sweep"):
            await client.sweep(shard)
