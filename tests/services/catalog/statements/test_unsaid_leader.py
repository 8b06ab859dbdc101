"""A leader that ends between taking the catalog and saying where it listens: the same server leads again.

Else no process could: who is silent may still lead, and no other takes its place without a person's word.
"""

from collections.abc import Mapping

import pytest
from catalog.memory_log import MemoryLog, MemoryRows

from persist import aio
from persist.client.catalog.addresses import SOON, Addresses, AddressRows, KeptInShard
from persist.client.catalog.durable import DurableCatalog
from persist.core.catalog.errors import NotWritable
from persist.core.catalog.objects import FenceToken
from persist.errors import Indeterminate
from persist.runtime import system
from persist.wire.catalog.rows import CODEC
from persist_catalog.leadership import CatalogRole, Leadership
from persist_catalog.mirror import Mirror, TappedLog

HERE, ELSEWHERE = "127.0.0.1:7100", "127.0.0.1:7101"


class Ended(KeptInShard):
    """Of a process that ends before it says that it leads."""

    async def replace(
        self, incarnation: int, gone: Mapping[FenceToken, str], token: FenceToken, address: str, upper: int
    ) -> bool:
        if not address.startswith(SOON):
            raise Indeterminate("the process ended")
        return await super().replace(incarnation, gone, token, address, upper)


async def server(rows: MemoryRows, address: str, kept: AddressRows) -> Leadership:
    log = MemoryLog(rows)
    mirror = Mirror(MemoryLog(rows), CODEC, await log.snapshot(), runtime=system(), tail=1000)
    durable = DurableCatalog(TappedLog(log, mirror))
    leadership = Leadership(durable, mirror, Addresses(kept, system()), may_lead=True)
    leadership.address = address
    return leadership


@pytest.mark.parametrize("times", [1, 3])
async def test_who_ended_before_it_said_where_it_listens_leads_again(times: int) -> None:
    rows = MemoryRows()
    name = f"mem:{system().random_bytes(8).hex()}"
    async with await aio.embedded(blob=name, consensus=name) as client:
        for _ in range(times):
            await (await server(rows, HERE, Ended(client, "e"))).lead_if_nobody_can()
        other = await server(rows, ELSEWHERE, KeptInShard(client, "e"))
        with pytest.raises(NotWritable) as refused:
            await other.lead_if_nobody_can()
        assert refused.value.details["leader"] == HERE
        again = await server(rows, HERE, KeptInShard(client, "e"))
        await again.lead_if_nobody_can()
        assert again.role is CatalogRole.LEADER
        assert again.own == FenceToken(0, 1 + times + 1)


async def test_who_only_meant_to_lead_keeps_nothing_from_being_said() -> None:
    """What one announced, and did not take, is in no later leader's way, nor says where that one listens."""
    rows = MemoryRows()
    name = f"mem:{system().random_bytes(8).hex()}"
    async with await aio.embedded(blob=name, consensus=name) as client:
        leader = await server(rows, HERE, KeptInShard(client, "e"))
        await leader.lead(0)
        addresses = Addresses(KeptInShard(client, "e"), system())
        assert leader.own is not None
        later = FenceToken(0, leader.own.epoch + 1)
        await addresses.announce(later, ELSEWHERE, 0)
        assert await addresses.of(leader.own, 0, fresh=True) == HERE
        await addresses.tell(leader.own, "-ended", 0)
        assert await addresses.told(leader.own, 0, fresh=True) == "-ended"
        third = await server(rows, "127.0.0.1:7102", KeptInShard(client, "e"))
        await third.lead_if_nobody_can()
        assert third.own == later
        assert await addresses.of(later, 0, fresh=True) == "127.0.0.1:7102"
