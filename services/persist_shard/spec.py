"""PersistShard as a process: over stores of its own."""

import threading
from collections.abc import Callable
from functools import partial

from persist.core.shard.transitions.append import BATCHES_LIMIT, PARTS_LIMIT
from persist.machine.local_shards import LocalShards
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus
from persist_host import Built, ServiceSpec, Telemetry
from persist_shard.service import ShardService


def shard_spec(blob_uri: str, consensus_uri: str) -> ServiceSpec:
    """A PersistShard over two stores."""

    async def build(settings: Settings, runtime: Runtime, telemetry: Telemetry) -> Built:
        blob = open_blob(blob_uri, settings=settings, runtime=runtime, count_request=_counting(telemetry), reopens=True)
        consensus = open_consensus(consensus_uri, settings=settings, runtime=runtime, reopens=True)
        shards = LocalShards(blob, consensus, settings=settings, runtime=runtime, counts=telemetry)
        try:
            await shards.check_place(timeout=settings.timeout_ms / 1000)
        except BaseException:
            await shards.close()
            raise
        telemetry.ask(partial(_show_backlog, shards, telemetry))
        service = ShardService(shards, settings=settings, runtime=runtime, telemetry=telemetry)
        return Built(services=(service,), stores=(blob, consensus))

    return ServiceSpec(name="shard", build=build)


def _show_backlog(shards: LocalShards, telemetry: Telemetry) -> None:
    """How far compaction is behind, beside the limits at which writers wait for it."""
    found, settings = shards.backlog, shards.settings
    for name, value in (
        ("persist_unmerged_batches", found.batches),
        ("persist_unmerged_batches_most", found.batches_most),
        ("persist_parts", found.parts),
        ("persist_parts_most", found.parts_most),
    ):
        telemetry.gauge(name, (), value)
    limits = ((BATCHES_LIMIT, settings.shard_batches_max), (PARTS_LIMIT, settings.shard_parts_max))
    for setting, limit in limits:
        telemetry.gauge("persist_appends_limit", (("limit", setting),), limit)


def _counting(telemetry: Telemetry) -> Callable[[str], None]:
    """Counts requests to Blob by kind, from any thread."""
    lock = threading.Lock()

    def count(kind: str) -> None:
        with lock:
            telemetry.count("persist_store_requests_total", (("kind", kind),))

    return count
