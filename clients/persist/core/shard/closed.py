"""The errors of a shard that is closed: for writing, for reading, or for both, as a finalized one is.

A state does not distinguish a finalized shard from one that was closed by all: nothing can be done with either.
"""

from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.errors import InvalidArgument, LeaseExpired, NotReadable, ShardClosed


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


def not_closed(shard: ShardId, *, since: Antichain, upper: Antichain) -> InvalidArgument:
    """The refusal to finalize a shard that is open."""
    return InvalidArgument(
        "only a closed shard can be finalized",
        hint="close it for writes (append up to []) and for reads (downgrade every since to []), or force it "
        "(force=True, --force)",
        shard=shard,
        upper=upper,
        since=since,
    )
