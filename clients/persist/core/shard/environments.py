"""The hold that an environment has on every shard of its items: what says in the shard itself whose it is.

A catalog is known to those who look at it; the hold is there for all others, also for servers, which know no items.
Source: collections: the controller; reliability.md I11.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

from persist.core.ids import ShardId
from persist.errors import InvalidArgument

_PREFIX: Final = "collections-"


def hold_of(environment: str) -> str:
    """The name of the hold that an environment has on each shard of its items: a critical reader's."""
    return _PREFIX + hashlib.blake2b(environment.encode(), digest_size=8).hexdigest()


def of_others(critical_readers: Iterable[str], hold: str) -> list[str]:
    """The holds of environments among a shard's critical readers, but for this one, in order."""
    return sorted(name for name in critical_readers if name.startswith(_PREFIX) and name != hold)


def check_no_other(critical_readers: Iterable[str], hold: str, shard: ShardId) -> None:
    """Raise InvalidArgument where an environment has a hold on the shard that is not ``hold``: it is an item there.

    ``hold``: what the caller gives up by right; empty: nothing.
    """
    others = of_others(critical_readers, hold)
    if others:
        raise InvalidArgument(
            "an environment holds this shard, as an item of its own",
            hint="DROP the item there (a source: persist source drop), or give the shard back there: persist catalog "
            "leave; its leader releases the hold then. Of an environment that is gone for good: "
            "client.open_since(hold, shard).expire()",
            shard=shard,
            hold=", ".join(others),
        )
