"""PersistShard as a process: over stores of its own."""

import threading
from collections.abc import Callable

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
        service = ShardService(shards, settings=settings, runtime=runtime, telemetry=telemetry)
        return Built(services=(service,), stores=(blob, consensus))

    return ServiceSpec(name="shard", build=build)


def _counting(telemetry: Telemetry) -> Callable[[str], None]:
    """Counts requests to Blob by kind, from any thread."""
    lock = threading.Lock()

    def count(kind: str) -> None:
        with lock:
            telemetry.count("persist_store_requests_total", (("kind", kind),))

    return count
