"""How a service that does not serve shards itself reaches them: over PersistShard, or through the stores.

Source: architecture.md sections 5 and 8.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from persist.client.remote.shards import RemoteShards
from persist.client.shard.location import Location
from persist.errors import InvalidArgument
from persist.machine.local_shards import LocalShards
from persist.retry.counts import UNCOUNTED, Counts
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.open import home_of, open_blob, open_consensus
from persist_host.durability import DurableStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardAccess:
    """How to reach the shards: ``endpoints`` of PersistShard, or ``consensus_uri``; one of them.

    ``blob_uri``: where the parts are; with endpoints it may be empty, and the server is asked.
    """

    blob_uri: str = ""
    consensus_uri: str = ""
    endpoints: str = ""

    async def location(
        self, settings: Settings, runtime: Runtime, *, counts: Counts = UNCOUNTED
    ) -> tuple[Location, Sequence[DurableStore]]:
        """The location, and the stores to check.

        Raises InvalidArgument (not just one way), InvalidUri, LocationError (no endpoint said where the parts are),
        UnsafeConfiguration (the stores are of two locations).
        """
        if bool(self.endpoints) == bool(self.consensus_uri):
            raise InvalidArgument("name the endpoints of PersistShard, or a consensus store", hint="exactly one")
        if self.consensus_uri:
            blob = open_blob(self.blob_uri, settings=settings, runtime=runtime, reopens=True)
            consensus = open_consensus(self.consensus_uri, settings=settings, runtime=runtime, reopens=True)
            local = LocalShards(blob, consensus, settings=settings, runtime=runtime, counts=counts)
            try:
                await local.check_place(timeout=settings.timeout_ms / 1000)
            except BaseException:
                await local.close()
                raise
            home = home_of(self.consensus_uri)
            return Location(local, blob=local.blob, settings=settings, runtime=runtime, home=home), (blob, consensus)
        remote = RemoteShards(self.endpoints, settings=settings, runtime=runtime, blob=self.blob_uri or None)
        try:
            blob_uri = self.blob_uri or await remote.locate(timeout=settings.timeout_ms / 1000)
            blob = open_blob(blob_uri, settings=settings, runtime=runtime)
        except BaseException:
            await remote.close()
            raise
        return Location(remote, blob=blob, settings=settings, runtime=runtime, owns_blob=True), (blob,)
