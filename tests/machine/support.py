"""Short ways to build stores, machines and commands for the tests of the machine."""

from persist.core.frontier import Antichain, Description
from persist.core.ids import ShardId, Token, WriterId
from persist.core.shard.batch import HollowBatch
from persist.core.shard.commands import CompareAndAppend
from persist.machine.local_shards import LocalShards
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus
from persist.storage.ports import Blob, Consensus

SETTINGS = Settings(poll_first_ms=5, poll_max_ms=50)


def new_shard() -> ShardId:
    return ShardId.of(system().random_bytes(16))


def memory_stores() -> tuple[Blob, Consensus]:
    name = system().random_bytes(8).hex()
    blob = open_blob(f"mem:{name}", settings=SETTINGS, runtime=system())
    consensus = open_consensus(f"mem:{name}", settings=SETTINGS, runtime=system())
    return blob, consensus


def machine(blob: Blob, consensus: Consensus, settings: Settings = SETTINGS) -> LocalShards:
    return LocalShards(blob, consensus, settings=settings, runtime=system())


def empty_append(lower: int, upper: int | None, *, writer: int = 1, token: bytes | None = None) -> CompareAndAppend:
    """An append without rows that moves the upper from ``lower`` to ``upper`` (None: closes)."""
    desc = Description(lower=Antichain.of(lower), upper=Antichain() if upper is None else Antichain.of(upper))
    return CompareAndAppend(
        writer_id=WriterId.of(writer.to_bytes(16, "big")),
        token=Token.of(token or system().random_bytes(16)),
        batch=HollowBatch(desc=desc),
    )
