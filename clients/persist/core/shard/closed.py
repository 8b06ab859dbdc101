"""The errors of a shard that is closed: for writing, for reading, or for both, as a finalized one is.

A state does not distinguish a finalized shard from one that was closed by all: nothing can be done with either.
"""

from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.errors import LeaseExpired, NotReadable, ShardClosed


def not_writable(shard: ShardId, *, since: Antichain) -> ShardClosed:
    """The refusal of an append to a shard whose upper is ``[]``."""
    if since.is_empty:
        return ShardClosed(
            "the shard was finalized, or closed for writing and reading: nothing was appended",
            hint="append to another shard",
            shard=shard,
        )
    return ShardClosed(
        "the shard is closed for writing: nothing was appended",
        hint="read whether the updates are there, and append what is not to another shard",
        shard=shard,
    )


def not_readable(shard: ShardId, *, upper: Antichain) -> NotReadable:
    """The refusal of a read of a shard whose since is ``[]``."""
    how = "was finalized, or closed for writing and reading" if upper.is_empty else "is closed for reading"
    return NotReadable(
        f"the shard {how}: it can be read at no time", hint="read another shard", shard=shard, since=Antichain()
    )


def reader_gone(reader_id: str, *, since: Antichain, upper: Antichain) -> LeaseExpired:
    """The refusal of a reader that the shard does not know any more."""
    if since.is_empty and upper.is_empty:
        return LeaseExpired(
            "the shard was finalized, or closed for writing and reading: it has no readers any more",
            hint="read another shard",
            reader=reader_id,
        )
    return LeaseExpired("the reader's lease ran out", hint="open a new reader", reader=reader_id)
