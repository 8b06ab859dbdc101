"""What the catalog does not know of holds by itself, and how each stands.

Source: design document 5, Monitoring.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import pyarrow as pa

from persist.client.shard.client import ShardClient
from persist.core.catalog.ddl.resolve import PERSIST_CATALOG
from persist.core.catalog.ddl.system_tables import BY_NAME, Live, SystemCollection
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.kinds import HOLD, ITEM
from persist.core.catalog.objects import AuditLogKey, ItemKey
from persist.core.catalog.values import Id
from persist.core.frontier import Antichain
from persist.errors import InvalidArgument, PersistError

HOLDS: Final = BY_NAME[PERSIST_CATALOG, "holds"]
AT_ONCE: Final = 16

Events: TypeAlias = Callable[[], Awaitable[Sequence[AuditLogKey]]]
Part: TypeAlias = tuple[int, int]
"""The latest time in it, and its encoded bytes."""


async def live(client: ShardClient, view: CatalogView) -> Live:
    """Where what is held is, and what each hold retains. One RPC for each collection, which reads its shard's state;
    what does not answer is left out. Raises nothing.
    """
    uppers, sinces, parts = dict[Id, Antichain](), dict[Id, Antichain](), dict[Id, list[Part]]()

    async def look(id: Id, shard: str) -> None:
        state = await client.inspect(shard)
        uppers[id], sinces[id] = Antichain(tuple(state["upper"])), Antichain(tuple(state["since"]))
        runs = (run for level in state["spine"] for batch in level["batches"] for run in batch["runs"])
        parts[id] = [(part["max_ts"], part["encoded_bytes"]) for run in runs for part in run]

    await _each_held(view, look)
    retained = {
        key.item_id: sum(written_since(parts[each], hold.at) for each in hold.objects)
        for key, hold in view.objects(HOLD).items()
        if parts.keys() >= set(hold.objects)
    }
    now_ms = client.location.runtime.now_ms()
    return Live(uppers=uppers, sinces=sinces, retained_bytes=retained, now_ms=now_ms)


def written_since(parts: list[Part], at: int) -> int:
    """The encoded bytes of a shard's parts that hold updates later than ``at``: what is kept apart from what was read
    at it. Where compaction merged later updates with earlier ones, both count: no less than that is retained.
    """
    return sum(encoded_bytes for latest, encoded_bytes in parts if latest > at)


async def _each_held(view: CatalogView, look: Callable[[Id, str], Awaitable[None]]) -> None:
    held = {each for row in view.objects(HOLD).values() for each in row.objects}
    there = [view.get(id) for id in held if ItemKey(id) in view.objects(ITEM)]
    room = asyncio.Semaphore(AT_ONCE)

    async def in_turn(id: Id, shard: str) -> None:
        async with room:
            with contextlib.suppress(PersistError):
                await look(id, shard)

    await asyncio.gather(*(in_turn(each.id, str(each.data)) for each in there if each.data is not None))


async def rows_of(
    collection: SystemCollection, client: ShardClient, view: CatalogView, role: str = "", events: Events | None = None
) -> pa.Table:
    """The rows of a system collection now. RPCs as ``live`` where it shows how holds stand, else none.

    ``role``: who asks, empty: one who may read nothing. ``events``: what reads the audit log, which no view of a
    catalog has. Raises InvalidArgument: it is needed, and was not given; and what it raises.
    """
    if collection.needs_events:
        if events is None:
            hint = "SELECT … FROM persist_catalog.audit_events, or the catalog's audit_logs()"
            raise InvalidArgument("these rows are not in memory", hint=hint, name=collection.name)
        return collection.rows(view, Live(events=await events()))
    if collection is HOLDS:
        return collection.rows(view, await live(client, view))
    return collection.rows(view, Live(role=view.role(role) if role else None))


async def states_of_holds(client: ShardClient, view: CatalogView) -> dict[str, str]:
    """How each hold and cursor stands, by id: as ``persist_catalog.holds`` has it. One RPC for each collection held,
    of its upper only. Raises nothing.
    """
    uppers: dict[Id, Antichain] = {}

    async def look(id: Id, shard: str) -> None:
        uppers[id] = await client.recent_upper(shard)

    await _each_held(view, look)
    now_ms = client.location.runtime.now_ms()
    rows = HOLDS.rows(view, Live(uppers=uppers, now_ms=now_ms)).select(["id", "state"]).to_pylist()
    return {row["id"]: row["state"] for row in rows}
