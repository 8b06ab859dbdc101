"""The machine in this process, over the stores an administrator names: nothing is done in the background."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import TypeVar

import typer

from persist.core import names
from persist.core.ids import ShardId
from persist.errors import ShardNotFound
from persist.machine.garbage.inventory import Inventory, LiveKeys
from persist.machine.garbage.sweeper import Sweeper
from persist.machine.local_shards import LocalShards
from persist.machine.upkeep.fsck import Fsck
from persist.machine.upkeep.upgrade import FormatUpgrade
from persist.machine.versions import Versions
from persist.retry.deadline import Deadline
from persist.runtime import Runtime, system
from persist.settings import Settings
from persist.storage.metered import Meter, MeteredBlob, MeteredConsensus
from persist.storage.open import open_blob, open_consensus, safe
from persist_cli.options import LocationTarget

T = TypeVar("T")


class Machine:
    """What administration needs of a location. ``place``: the options that reach it. ``meter`` counts requests."""

    def __init__(self, target: LocationTarget, settings: Settings) -> None:
        runtime: Runtime = system()
        self.place = target.words
        self.settings = dataclasses.replace(settings, compaction=False)
        self.runtime = runtime
        self.meter = Meter()
        blob_uri, consensus_uri = target.stores()
        counted = open_blob(blob_uri, settings=settings, runtime=runtime, count_request=self.meter.count_request)
        self._blob = MeteredBlob(counted, self.meter, runtime)
        consensus = open_consensus(consensus_uri, settings=settings, runtime=runtime)
        self._consensus = MeteredConsensus(consensus, self.meter, runtime)
        self.shards = LocalShards(self._blob, self._consensus, settings=self.settings, runtime=runtime)
        self.versions = Versions(self._blob, self._consensus, settings=self.settings, runtime=runtime)
        self.survey = Inventory(self.versions, settings=self.settings, runtime=runtime)
        self.sweeper = Sweeper(self.shards, self.survey, settings=self.settings, runtime=runtime)
        self.upgrade = FormatUpgrade(self.versions, settings=self.settings, runtime=runtime)
        self.fsck = Fsck(self.survey, settings=self.settings, runtime=runtime)

    async def check(self) -> None:
        """Raises UnsafeConfiguration."""
        await safe((self._blob, self._consensus), settings=self.settings, runtime=self.runtime)

    def deadline(self) -> Deadline:
        """For one piece of work on one shard."""
        return Deadline(self.runtime, self.settings.maintenance_timeout_ms / 1000)

    async def names(self, shard: ShardId) -> LiveKeys:
        """What a shard's live states name. Raises ShardNotFound."""
        names = await self.survey.names(shard, self.deadline())
        if names is None:
            raise ShardNotFound("no such shard here", hint="persist shard list shows those there are", shard=str(shard))
        return names

    async def check_known(self, shard: ShardId) -> None:
        """Raises ShardNotFound."""
        timeout = self.settings.store_timeout_ms / 1000
        if await self.versions.consensus.head(shard, timeout=timeout) is None:
            raise ShardNotFound("no such shard here", hint="persist shard list shows those there are", shard=str(shard))

    async def chosen(self, shards: list[str]) -> list[ShardId]:
        """The shards a person named, or all there are. Raises ShardNotFound, AmbiguousName."""
        if shards and all(map(names.is_id, shards)):
            return [ShardId.parse(each) for each in shards]
        known = await self.survey.shards()
        return [names.among(each, known) for each in shards] if shards else known


def run(target: LocationTarget, settings: Settings, work: Callable[[Machine], Awaitable[T]]) -> T:
    """Open the machine, work with it, close it. Raises InvalidArgument for a place where there is no location,
    UnsafeConfiguration for the stores of two, and for one that lost its Consensus.
    """
    target.check_not_lost(settings)
    target.check_there()

    async def checked(machine: Machine) -> T:
        await machine.check()
        await machine.shards.check_place(timeout=settings.timeout_ms / 1000)
        return await work(machine)

    return _opened(target, settings, checked)


def run_without_consensus(
    target: LocationTarget, settings: Settings, work: Callable[[Machine], Awaitable[T]], *, commit: bool
) -> T:
    """As ``run`` where Consensus may be gone. What is to be checked of the stores is left to ``work``.

    One that is gone is made when ``work`` first reaches it, if ``commit``; otherwise an empty one in memory stands in.
    Raises InvalidArgument for a directory without a Blob.
    """
    target.check_blobs_there()
    if not commit and not target.is_there():
        target = dataclasses.replace(target, location=None, blob=target.stores()[0], consensus="mem:lost")
    return _opened(target, settings, work)


def _opened(target: LocationTarget, settings: Settings, work: Callable[[Machine], Awaitable[T]]) -> T:
    async def main() -> T:
        machine = Machine(target, settings)
        try:
            return await work(machine)
        finally:
            await machine.shards.close()

    return asyncio.run(main())


def check_choice(shards: list[str], every: bool, positional: object = None) -> None:
    """Exactly one of --shard and --all. Raises BadParameter."""
    if bool(shards) + every + (positional is not None) != 1:
        raise typer.BadParameter("name shards with --shard SHARD (repeatable), or give --all")
