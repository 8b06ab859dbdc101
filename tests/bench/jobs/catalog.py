"""A catalog in a process of its own: `python -m bench.jobs.catalog REQUEST`.

Says what opening it took, then does what each line asks and says what that took, until there are no more lines.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pyarrow as pa
import uvloop

from bench.measure import resident_mb
from persist import aio
from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.log.stash_log import open_stash_log
from persist.client.catalog.port import OpenableCatalog
from persist.client.catalog.remote import RemoteCatalog
from persist.core.catalog.kinds import AUDIT_LOG, ITEM
from persist.core.catalog.objects import AuditLogKey, Item, ItemKey
from persist.core.catalog.values import Acl, AuditEventType, AuditNamedV1, Id, ObjectType, RoleRef, Space, Unit

ENVIRONMENT = "bench"
TYPES = (ObjectType.TABLE, ObjectType.VIEW, ObjectType.MATERIALIZED_VIEW, ObjectType.INDEX, ObjectType.SOURCE)
ROLES = 50
PER_SCHEMA = 500
FIRST_OID = 20_000


async def main(request: dict[str, Any]) -> None:
    async with AsyncExitStack() as stack:
        spent = Spent()
        catalogs = [await opened(request, number, stack) for number in range(request.get("clients", 1))]
        say({**spent.told(), "mb": resident(), **counts(catalogs[0])})
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            asked = json.loads(line)
            spent = Spent()
            laps = await WORK[asked["do"]](catalogs, asked)
            told = spent.told()
            say({**told, "ms": laps, "mb": resident(), **counts(catalogs[0])})


async def opened(request: dict[str, Any], number: int, stack: AsyncExitStack) -> Any:
    """An open catalog. The first of several leads, the others join it."""
    place = await openable(request, stack)
    stack.push_async_callback(place.close)
    if request["mode"] == "read":
        return await place.open_read_only()
    if number == 0:
        return await place.open(0)
    assert isinstance(place, RemoteCatalog)
    return await place.join()


async def openable(request: dict[str, Any], stack: AsyncExitStack) -> OpenableCatalog:
    if request["place"] == "grpc":
        return RemoteCatalog(request["endpoint"], environment=ENVIRONMENT)
    if request["place"] == "stash":
        return DurableCatalog(await open_stash_log(request["uri"], ENVIRONMENT))
    client = await stack.enter_async_context(await aio.embedded(blob=request["blob"], consensus=request["consensus"]))
    return await client.catalog(ENVIRONMENT)


async def insert(catalogs: list[Any], asked: dict[str, Any]) -> list[float]:
    """``commits`` transactions of ``per`` items, one after the other, by each of the clients at once."""
    first, each = catalogs[0].count(ITEM), asked["commits"] * asked["per"]
    given = enumerate(catalogs)
    laps = await asyncio.gather(
        *(_insert(one, iter(range(first + index * each, first + (index + 1) * each)), asked) for index, one in given)
    )
    if len(catalogs) > 1:
        await catalogs[0].sync()
    return [lap for some in laps for lap in some]


async def _insert(catalog: Any, numbers: Iterator[int], asked: dict[str, Any]) -> list[float]:
    laps = []
    for _ in range(asked["commits"]):
        began = time.perf_counter_ns()
        transaction = catalog.transaction()
        for _ in range(asked["per"]):
            number = next(numbers)
            transaction.insert(ITEM, ItemKey(Id(Space.USER, number)), item(number))
        await catalog.commit(transaction)
        laps.append((time.perf_counter_ns() - began) / 1e6)
    return laps


async def record(catalogs: list[Any], asked: dict[str, Any]) -> list[float]:
    """``commits`` transactions of ``per`` audit events."""
    [catalog] = catalogs
    for _ in range(asked["commits"]):
        transaction, first = catalog.transaction(), catalog.count(AUDIT_LOG)
        for number in range(first, first + asked["per"]):
            transaction.insert(AUDIT_LOG, event(number), Unit())
        await catalog.commit(transaction)
    return []


WORK = {"insert": insert, "record": record}


def item(number: int) -> Item:
    """An item as a database has thousands of: some 200 bytes of SQL, three privileges, a name of its own."""
    schema, kind = number // PER_SCHEMA, TYPES[number % len(TYPES)]
    owner = RoleRef(Space.USER, schema % ROLES)
    reader, writer = RoleRef(Space.USER, number % ROLES), RoleRef(Space.USER, (number * 7) % ROLES)
    name = f"{kind.value}_of_orders_by_region_{number}"
    sql = (
        f'CREATE {kind.value.upper()} "materialize"."schema_{schema}"."{name}" AS SELECT o.id, o.region, o.placed_at, '
        f"sum(l.price * l.quantity) AS total FROM orders_{number % 97} AS o JOIN lines AS l ON l.order_id = o.id "
        "GROUP BY o.id, o.region"
    )
    return Item(
        Id(Space.USER, schema),
        name,
        kind,
        sql,
        owner,
        (Acl(owner, owner, 15), Acl(reader, owner, 1), Acl(writer, owner, 6)),
        FIRST_OID + number,
        global_id=Id(Space.USER, 10**6 + number),
    )


def event(number: int) -> AuditLogKey:
    """An audit event of an item that was made."""
    details = AuditNamedV1(f"u{number}", f"materialize.schema_{number // PER_SCHEMA}.orders_by_region_{number}")
    return AuditLogKey(number, AuditEventType.CREATE, ObjectType.TABLE, "someone", 1_700_000_000_000 + number, details)


class Spent:
    """Seconds by the clock, and of this process's CPU in all its threads, from now on."""

    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def told(self) -> dict[str, float]:
        return {"seconds": time.perf_counter() - self._began, "cpu": time.process_time() - self._cpu}


def counts(catalog: Any) -> dict[str, int]:
    return {"items": catalog.count(ITEM), "events": catalog.count(AUDIT_LOG)}


def resident() -> float:
    """MB in use when what is not used any more was given back to the system, as far as allocators do."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return resident_mb()


def say(told: dict[str, Any]) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
