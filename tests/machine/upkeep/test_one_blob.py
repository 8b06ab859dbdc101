"""A blob that its store does not return is one finding: it hides no other one, and what can be read is backed up."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from machine.backup.test_backup import back_up
from machine.places import OFTEN, SCHEMA, Tools, at, table
from machine.support import new_shard

from persist import aio
from persist.core.ids import ShardId
from persist.errors import Determinate, LocationError
from persist.machine.backup.copying import Store
from persist.machine.backup.verify import verify
from persist.machine.local_shards import LocalShards
from persist.machine.upkeep.repair import PartRepair
from persist.runtime import system
from persist.storage.open import open_blob

QUICK = replace(OFTEN, blob_timeout_ms=100)


class Refusing:
    """A Blob whose disk does not return the bytes of some keys; of all, where ``keys`` is None."""

    def __init__(self, blob: Any) -> None:
        self._blob = blob
        self.keys: set[str] | None = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blob, name)

    async def get(self, key: str, *, byte_range: tuple[int, int] | None = None, timeout: float) -> bytes | None:
        if self.keys is None or key in self.keys:
            raise Determinate("blob get: failed", hint="look at the disk; retry", code="EIO")
        found: bytes | None = await self._blob.get(key, byte_range=byte_range, timeout=timeout)
        return found


@asynccontextmanager
async def shards_of(path: Path, count: int = 3) -> AsyncIterator[tuple[Tools, Refusing, list[ShardId]]]:
    """Shards of some parts each, and their Blob."""
    async with at((f"file:{path}/blob", f"sqlite:{path}/consensus.db"), QUICK) as (client, tools):
        shards = [await _grown(client) for _ in range(count)]
        blob = Refusing(tools.survey.versions.blob)
        tools.survey.versions.blob = blob
        yield tools, blob, shards


async def _grown(client: aio.Client) -> ShardId:
    writer = await client.open_writer(new_shard(), schema=SCHEMA)
    for time in range(8):
        await writer.append(table(time, rows=30), time + 1)
    return writer.shard


async def parts(tools: Tools, shard: ShardId) -> list[str]:
    return sorted(key for key in await tools.keys(shard) if "/p" in key)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def put_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


async def test_a_check_goes_on_behind_what_cannot_be_read(tmp_path: Path) -> None:
    async with shards_of(tmp_path, 1) as (tools, blob, [shard]):
        refused, flipped, *_ = await parts(tools, shard)
        blob.keys = {refused}
        flip(tmp_path / "blob" / flipped)
        found = {problem.where: problem for problem in await tools.fsck.check(shard, deep=True)}
        assert set(found) == {refused, flipped}
        assert "cannot be read: blob get: failed code=EIO" in found[refused].what
        assert "admin" not in {word for step in found[refused].steps for word in step.words}


async def test_a_store_that_is_away_is_no_damage(tmp_path: Path) -> None:
    async with shards_of(tmp_path, 1) as (tools, blob, [shard]):
        blob.keys = set(await parts(tools, shard))
        with pytest.raises(LocationError):
            await tools.fsck.check(shard, deep=True)


async def test_what_cannot_be_read_is_not_taken_out(tmp_path: Path) -> None:
    async with shards_of(tmp_path, 1) as (tools, blob, [shard]):
        [refused, *_] = await parts(tools, shard)
        blob.keys = {refused}
        shards: LocalShards = tools.shards
        repair = PartRepair(shards, tools.survey.versions, settings=QUICK, runtime=system())
        with pytest.raises(Determinate) as raised:
            await repair.repair(shard, deep=True)
        assert raised.value.details["key"] == refused
        blob.keys = set()
        assert await repair.find(shard, deep=True) == ()


async def test_all_others_are_backed_up(tmp_path: Path) -> None:
    async with shards_of(tmp_path) as (tools, blob, shards):
        [refused, *_] = await parts(tools, shards[1])
        blob.keys = {refused}
        to = Store(
            open_blob(f"file:{tmp_path}/backup", settings=QUICK, runtime=system()), settings=QUICK, runtime=system()
        )
        manifest = (await back_up(tools, to)).manifest
        assert {each.shard for each in manifest.shards} == {shards[0], shards[2]}
        [left_out] = manifest.left_out
        assert left_out.shard == shards[1]
        assert refused in left_out.why


async def test_all_damage_to_a_backup_is_found(tmp_path: Path) -> None:
    async with shards_of(tmp_path) as (tools, _, shards):
        place = open_blob(f"file:{tmp_path}/backup", settings=QUICK, runtime=system())
        manifest = (await back_up(tools, Store(place, settings=QUICK, runtime=system()))).manifest
        keys = [(await parts(tools, shard))[0] for shard in shards]
        folder = (await parts(tools, shards[2]))[1]
    refusing = Refusing(place)
    refusing.keys = {keys[0]}
    flip(tmp_path / "backup" / keys[1])
    flip(tmp_path / "backup" / keys[2])
    put_folder(tmp_path / "backup" / folder)
    store = Store(refusing, settings=QUICK, runtime=system())
    found = {damage.where for damage in await verify(store, manifest)}
    assert found == {*keys, folder}
