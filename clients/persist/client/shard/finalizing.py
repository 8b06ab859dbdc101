"""Finalizing a shard for a client: whose it is and whether it is closed is looked at first, and decided by the shard.

Source: persist-semantics.md section 2.3; docs/guarantees.md, final is final.
"""

from dataclasses import dataclass

from persist.client.shard.location import Location
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.shard.closed import not_closed
from persist.core.shard.environments import check_no_other, hold_of
from persist.machine.upkeep.finalizer import finalize
from persist.retry.deadline import Deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class Emptied:
    """What a shard had that was finalized, or with ``dry_run`` would be: its frontiers, rows, and who used it.

    ``finalized``: whether its marker alone is left; of a dry run: whether it was before.
    """

    shard: ShardId
    upper: Antichain
    since: Antichain
    rows: int
    readers: int
    writers: int
    finalized: bool


async def finalized(
    location: Location, shard: ShardId, deadline: Deadline, *, force: bool, dry_run: bool, environment: str
) -> Emptied:
    """See ``ShardClient.finalize``.

    SUBTLE: the catalog is asked, and then the shard decides by the holds it has: of what is adopted meanwhile, or where
    this client cannot see it, the hold is there first.
    """
    state = await location.attempts.repeat(deadline, lambda seconds: location.shards.inspect(shard, timeout=seconds))
    critical, given = state["critical_readers"], environment or location.settings.environment
    # Of others first: who gives an item up learns whether that would be enough.
    check_no_other(critical, hold_of(given), shard)
    claims = location.claims
    hold = "" if claims is None else await claims.released(shard, environment, deadline)
    check_no_other(critical, hold, shard)
    upper, since = Antichain(tuple(state["upper"])), Antichain(tuple(state["since"]))
    if not (force or (upper.is_empty and since.is_empty)):
        raise not_closed(shard, since=since, upper=upper)
    if not dry_run:
        timeout = deadline.slice()
        await finalize(location.shards, location.attempts, shard, force=force, hold=hold, timeout=timeout)
    return Emptied(
        shard=shard,
        upper=upper,
        since=since,
        rows=state["rows"],
        readers=len(state["leased_readers"]) + len(critical),
        writers=len(state["writers"]),
        finalized=not dry_run or bool(state["is_tombstone"] and not state["rows"]),
    )
