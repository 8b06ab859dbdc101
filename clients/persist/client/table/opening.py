"""Opening a table: which shard its name stands for, and what has to be so before it is written to as a table.

Source: catalog-semantics.md section 4.2, table writes; docs/adr/0009-tables.md.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from persist.client.shard.naming import check_alone, check_unfed, claimed, find, near
from persist.client.table.data_shard import TableShard
from persist.client.table.table import Table
from persist.client.table.transaction import ALONE
from persist.client.table.wal import check_direct
from persist.client.timeline.oracle import Oracle
from persist.client.timeline.register import seconds
from persist.core.data.schema import Schema
from persist.core.ids import ShardId
from persist.core.names import MODES, Named, id_or_name, new_shard, not_found
from persist.core.time.timeline import Timeline
from persist.errors import InvalidArgument
from persist.retry.deadline import Deadline

if TYPE_CHECKING:
    from persist.client.shard.client import ShardClient
    from persist.client.table.wal import Wal


async def open_table(
    client: "ShardClient",
    name: ShardId | str,
    *,
    schema: Schema | None,
    timeline: Timeline,
    mode: str,
    oracle_of: "Callable[..., Awaitable[Oracle]]",
    log_of: "Callable[..., Awaitable[Wal]]",
    is_kept: bool = False,
    is_keyed: bool | None = None,
    timeout: float | None = None,
) -> Table:
    """See ``Client.table``. ``oracle_of``, ``log_of``: the oracle and the log of the timeline, given a timeout.

    ``is_kept``: a leader holds its history, as its policy says, which it does of every item. What writes need not hold
    any then. ``is_keyed``: it has a primary key; None: an environment is asked.
    """
    if mode not in MODES:
        raise InvalidArgument("no such mode of a table", hint=" or ".join(MODES), mode=repr(mode)[:80])
    deadline = client.location.attempts.deadline(timeout)
    wal = await log_of(timeout=timeout) if mode == "wal" else None
    oracle = await oracle_of(timeout=seconds(deadline))
    named = await _shard_of(client, name, mode, timeline, deadline, is_asked=is_keyed is None)
    is_new = named is None
    if named is None:
        missing = str(name)
        if schema is None:
            raise not_found(missing, await near(client.location, missing, deadline))
        named = Named(new_shard(missing, mode, str(timeline)), mode, str(timeline))
    data = await TableShard.open(client, named.shard, schema, timeout=seconds(deadline))
    if is_new:
        await check_alone(client.location, str(name), named.shard, deadline, timelines=[str(timeline)])
    # What was there before it was a table must not put its times, or what it hides from a log, in the way.
    await oracle.check_ahead(data.upper.known, timeout=seconds(deadline))
    if wal is not None:
        await wal.upper.raise_to(data.upper.known, deadline)
        await wal.adopt(data, deadline)
    elif named.mode is None and data.upper.known:
        await check_direct(data, timeline, deadline)
        # Rows that were appended directly to the shard are at times that no oracle was given: no reader would see them.
        await oracle.apply_write(data.upper.known - 1, timeout=seconds(deadline))
    return Table(
        client,
        data,
        oracle,
        wal,
        ALONE,
        is_kept=is_kept or bool(named.item),
        is_keyed=named.keyed if is_keyed is None else is_keyed,
    )


async def _shard_of(
    client: "ShardClient", name: ShardId | str, mode: str, timeline: Timeline, deadline: Deadline, *, is_asked: bool
) -> Named | None:
    """What a name, or an id, stands for, to be used as a table of this mode and timeline; None: nothing has the name.
    Raises InvalidArgument.

    ``is_asked``: an environment is asked about an id, too.
    """
    wanted = id_or_name(name)
    if isinstance(wanted, ShardId):
        claim = await claimed(client.location, wanted, deadline) if is_asked else Named(wanted)
        if claim.item:
            _check_serves(claim, wanted, mode, timeline)
        elif is_asked:
            await check_unfed(client.location, claim, wanted)
        # Else its mode is what the caller says it is.
        return Named(wanted, keyed=claim.keyed, item=claim.item)
    found = await find(client.location, wanted, deadline, timelines=[str(timeline)])
    if found is None:
        return None
    _check_serves(found, wanted, mode, timeline)
    await check_unfed(client.location, found, wanted)
    return found


def _check_serves(found: Named, given: str, mode: str, timeline: Timeline) -> None:
    found.check_written(given)
    if not found.serves(mode, str(timeline)):
        was = f'mode="{found.mode or "direct"}", timeline="{found.timeline}"'
        other = "choose another" if found.mode or found.item else "give its id to turn it into a table of this one"
        raise InvalidArgument(
            "this is a shard of another mode or timeline",
            hint=f"open it with {was}, or {other}",
            name=found.item or given,
            shard=found.shard,
        )
