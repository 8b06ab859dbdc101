"""What a new leader finds: handles to take over, and what a former one left half done.

Source: collections: the controller.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from persist.core.catalog.control.controlled import Controlled
from persist.core.catalog.values import Id
from persist.core.ids import ShardId


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """``release``: shards on which a former leader may have left a handle, and that no item has.

    ``settled``: those whose statement was committed, or whose handle is still to be: nothing has to be done for them.
    ``finalize``: dropped shards. ``claimed``: marked as dropped while an item has them, which is not to be believed.
    """

    release: frozenset[ShardId] = frozenset()
    settled: frozenset[ShardId] = frozenset()
    finalize: frozenset[ShardId] = frozenset()
    claimed: frozenset[ShardId] = frozenset()


def leftovers(
    collections: Mapping[Id, Controlled],
    begun: Iterable[ShardId],
    dropped: Iterable[ShardId],
    under_way: Collection[ShardId] = (),
) -> Leftovers:
    """What to do about shards that statements ``begun`` on, and those ``dropped``, unless a statement is under way."""
    owned = {each.shard for each in collections.values()}
    begun, dropped = frozenset(begun) - frozenset(under_way), frozenset(dropped)
    return Leftovers(
        release=begun - owned - dropped,
        settled=begun & (owned | dropped),
        finalize=dropped - owned - frozenset(under_way),
        claimed=dropped & owned,
    )
