"""A PersistShard that compacts nothing, with a PersistCompaction beside it, and disks that are full or slow."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
from client.support import Place, file_place, server_of
from services.compaction.compacting import SETTINGS, THRIFTY, UPLOADS_BEFORE, batches, unnamed
from services.support import ANY_PORT

from persist import aio
from persist.client.remote.shards import RemoteShards
from persist.client.shard.location import Location
from persist.core.ids import WriterId
from persist.core.shard.commands import ClaimCompaction, CompactionClaimed, ReleaseCompaction
from persist.errors import PersistError, StoreFull
from persist.machine.compaction.scheduler import CompactionScheduler
from persist.runtime import system
from persist.storage.blob.file import FileBlob
from persist.wire.rpc_errors import DETAILS_KEY, error_of_status
from persist_compaction import CompactionService
from persist_host import Host, Telemetry

HOUR_MS = 3_600_000


@dataclass
class Scene:
    """A PersistShard that compacts nothing, a client of it, and its place."""

    place: Place
    endpoint: str
    client: aio.Client
    remote: RemoteShards


@asynccontextmanager
async def scene_at(path: Path) -> AsyncIterator[Scene]:
    place = file_place(path)
    async with (
        server_of(place, SETTINGS) as endpoint,
        await aio.connect(endpoint, settings=SETTINGS) as client,
    ):
        remote = RemoteShards(endpoint, settings=SETTINGS)
        try:
            yield Scene(place, endpoint, client, remote)
        finally:
            await remote.close()


def failure(error: grpc.aio.AioRpcError) -> PersistError:
    """What our detail in a status says."""
    details = dict(error.trailing_metadata()).get(DETAILS_KEY)
    told = error_of_status(error.code().value[0], details)
    assert told is not None
    return told


async def claim(scene: Scene, shard) -> bool:
    """Whether another process can claim all that is to be compacted."""
    owner = WriterId.born(system().now_ms(), system().random_bytes(16))
    found = await scene.remote.apply(shard, ClaimCompaction(owner=owner, takeover_ms=HOUR_MS, whole=True), timeout=10)
    await scene.remote.apply(shard, ReleaseCompaction(owner=owner), timeout=10)
    return isinstance(found, CompactionClaimed)


async def few(scene: Scene, shard, most: int) -> bool:
    return len(await batches(scene.remote, shard)) <= most


async def tidy(scene: Scene, shard) -> bool:
    return not await unnamed(scene.remote, shard, scene.place)


async def has_failed(telemetry: Telemetry, times: int) -> bool:
    return telemetry.value("persist_compactions_failed_total") >= times


class FullDisk(FileBlob):
    """Files on a disk without room, until some is made."""

    full = True

    def _set(self, key: str, value: bytes | memoryview) -> None:
        if self.full:
            raise StoreFull("no room", hint="make some")
        super()._set(key, value)


class SlowDisk(FileBlob):
    """Files on a disk that keeps every write waiting until ``gate`` is set, but for so many at first."""

    def __init__(self, path: Path, *, after: int = 0) -> None:
        super().__init__(str(path / "blob"), system())
        self._left = after
        self.begun, self.gate, self.written = threading.Event(), threading.Event(), threading.Event()

    def _set(self, key: str, value: bytes | memoryview) -> None:
        if self._left:
            self._left -= 1
            super()._set(key, value)
            return
        self.begun.set()
        assert self.gate.wait(100)
        super()._set(key, value)
        self.written.set()


@dataclass
class Slow:
    """A PersistCompaction whose disk lets the first parts of a merge through, and no more until its gate is opened."""

    endpoint: str
    disk: SlowDisk
    workers: CompactionScheduler
    telemetry: Telemetry

    async def reached(self) -> None:
        """A merge has written something, and waits to write more."""
        await asyncio.to_thread(self.disk.begun.wait)


@asynccontextmanager
async def slowly_compacting(scene: Scene, path: Path) -> AsyncIterator[Slow]:
    disk, telemetry = SlowDisk(path, after=UPLOADS_BEFORE), Telemetry(service="test")
    place = Location(RemoteShards(scene.endpoint), blob=disk, settings=THRIFTY, runtime=system(), owns_blob=True)
    service = CompactionService(place, telemetry=telemetry)
    host = Host((service,), settings=THRIFTY, runtime=system(), telemetry=telemetry)
    address = await host.start(ANY_PORT)
    try:
        yield Slow(str(address), disk, service.workers, telemetry)
    finally:
        disk.gate.set()
        await host.stop(notice=0, grace=0)
