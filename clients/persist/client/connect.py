"""Ways to a Client: embedded in this process, or connected to servers.

Source: architecture.md sections 2 and 8; reliability.md section 4 (refusing unsafe configurations).
"""

from pathlib import Path
from urllib.parse import quote

from persist.client.client import Client
from persist.client.shard.location import Location
from persist.errors import InvalidArgument, ShardNotFound
from persist.extras import extra
from persist.machine.local_shards import LocalShards
from persist.machine.shards import Shards
from persist.runtime import Runtime, system
from persist.settings import Settings
from persist.storage.layout import BLOB_NAME, CONSENSUS_NAME, root_of
from persist.storage.open import READ_ONLY, home_of, open_blob, open_consensus, safe
from persist.storage.ports import Blob


async def embedded(
    location: str | Path | None = None,
    *,
    blob: str | None = None,
    consensus: str | None = None,
    create: bool = True,
    read_only: bool = False,
    settings: Settings | None = None,
    runtime: Runtime | None = None,
) -> Client:
    """A client without any server: the commit loop runs in this process.

    Give a directory (made if missing: files and SQLite below it) or the URIs of both stores. ``create`` False: a
    directory without shards is not made, but ShardNotFound. Any number of processes may do so at once for the same
    stores. ``read_only``: nothing is written, so files that may not be written can be read. Each shard is seen as it
    was when it was first looked at, and nothing holds it: what another process deletes meanwhile is missing
    (CorruptData). Writes raise StoreReadOnly. Raises InvalidArgument, InvalidUri, MissingExtra, UnsafeConfiguration (a
    store could lose acknowledged data; ``settings.allow_unsafe`` accepts findings by name), LocationError.
    """
    blob_uri, consensus_uri = _uris(location, blob, consensus)
    if location is not None and (read_only or not create) and not (root_of(location) / CONSENSUS_NAME).exists():
        raise ShardNotFound("nothing was ever written at this location", hint="check the path", location=location)
    chosen, clock = settings or Settings(), runtime or system()
    if read_only:
        return await _read_only(blob_uri, consensus_uri, chosen, clock)
    shards, store = await _local(blob_uri, consensus_uri, chosen, clock)
    home = home_of(consensus_uri)
    return Client(Location(shards, blob=store, settings=chosen, runtime=clock, home=home))


async def connect(
    endpoints: str,
    *,
    blob: str | None = None,
    consensus: str | None = None,
    settings: Settings | None = None,
    runtime: Runtime | None = None,
) -> Client:
    """A client of PersistShard servers, ``HOST`` (port 7100) or ``HOST:PORT``, comma separated. Connects at first use.

    Where nothing listens the first use raises NoServer within ``settings.first_connection_ms``; a server that was there
    is waited for as long as the call may take.
    Data goes straight to Blob: where the servers say, or ``blob``, which must be the same one. With it, and with
    several endpoints, each server is asked once which Blob is its own. With ``consensus`` (and ``blob``) the commit
    loop runs here while no server answers. Raises InvalidArgument, InvalidUri, MissingExtra, LocationError,
    UnsafeConfiguration (when first used, too: a server of another location).
    """
    with extra("grpc"):
        from persist.client.remote.failover import FailoverShards
        from persist.client.remote.shards import RemoteShards

    chosen, clock = settings or Settings(), runtime or system()
    if consensus is None:
        store = None if blob is None else open_blob(blob, settings=chosen, runtime=clock)
        uri = None if store is None else store.uri
        remote = RemoteShards(endpoints, settings=chosen, runtime=clock, hasty=True, blob=uri)
        return Client(Location(remote, blob=store, settings=chosen, runtime=clock, owns_blob=True))
    if blob is None:
        raise InvalidArgument("consensus= without blob=", hint="failing over needs both stores", consensus=consensus)
    local, store = await _local(blob, consensus, chosen, clock)
    remote = RemoteShards(endpoints, settings=chosen, runtime=clock, watched=True, blob=store.uri)
    both = FailoverShards(remote, local, runtime=clock, away=lambda: remote.away)
    return Client(Location(both, blob=store, settings=chosen, runtime=clock, home=home_of(consensus)))


def _uris(location: str | Path | None, blob: str | None, consensus: str | None) -> tuple[str, str]:
    if location is None and blob is not None and consensus is not None:
        return blob, consensus
    if location is None or blob is not None or consensus is not None:
        raise InvalidArgument(
            "give a directory, or both blob= and consensus=", location=location, blob=blob, consensus=consensus
        )
    if "://" in str(location):
        raise InvalidArgument("a location is a directory", hint="give URIs as blob= and consensus=", location=location)
    root = root_of(location)
    return f"file:{quote(str(root / BLOB_NAME))}", f"sqlite:{quote(str(root / CONSENSUS_NAME))}"


async def _read_only(blob_uri: str, consensus_uri: str, settings: Settings, runtime: Runtime) -> Client:
    from persist.machine.read_only_shards import ReadOnlyShards

    if consensus_uri.startswith("sqlite:") and "?" not in consensus_uri:
        consensus_uri += "?mode=ro"
    blob = open_blob(blob_uri, settings=settings, runtime=runtime)
    try:
        consensus = open_consensus(consensus_uri, settings=settings, runtime=runtime)
    except BaseException:
        await blob.close()
        raise
    shards = ReadOnlyShards(blob, consensus, settings=settings, runtime=runtime)
    return Client(Location(shards, blob=shards.blob, settings=shards.settings, runtime=runtime, home=READ_ONLY))


async def _local(blob_uri: str, consensus_uri: str, settings: Settings, runtime: Runtime) -> tuple[Shards, Blob]:
    blob = open_blob(blob_uri, settings=settings, runtime=runtime)
    try:
        consensus = open_consensus(consensus_uri, settings=settings, runtime=runtime)
    except BaseException:
        await blob.close()
        raise
    try:
        await safe((blob, consensus), settings=settings, runtime=runtime)
    except BaseException:
        await consensus.close()
        await blob.close()
        raise
    shards = LocalShards(blob, consensus, settings=settings, runtime=runtime)
    return shards, shards.blob
