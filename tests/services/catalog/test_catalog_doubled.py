"""Calls that no number makes one, delivered twice and late: a hand's edit, and the registration of a reader."""

from typing import Any

import grpc.aio
from client.support import SCHEMA, memory_place, server_of, table
from services.catalog.cataloging import catalog_server, found, put, remote_catalog

from persist import ShardId, aio
from persist.core import ids
from persist.core.catalog.kinds import SETTING
from persist.core.catalog.objects import Setting, SettingKey
from persist.testing.twice import TwiceProxy, _raw

KEY = SettingKey("k")


class Keeping(TwiceProxy):
    """Delivers every unary call twice, and keeps the requests. ``again`` delivers one once more, as late as it gets."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.kept: dict[str, tuple[str, bytes, dict[str, Any]]] = {}

    def _handler(self, method: str) -> Any:
        if method.rpartition("/")[2] in {"ReadRows", "WatchChanges", "DumpRows"}:
            return grpc.unary_stream_rpc_method_handler(self._stream(method), _raw, _raw)
        return super()._handler(method)

    async def _sent(
        self, channel: Any, method: str, name: str, request: bytes, given: dict[str, Any], late: float
    ) -> bytes:
        self.kept[name] = method, request, given
        return await super()._sent(channel, method, name, request, given, late)

    async def again(self, name: str) -> None:
        method, request, given = self.kept[name]
        await super()._sent(self._channels[0], method, name, request, {**given, "timeout": 60}, 0)


async def test_an_edit_that_is_delivered_twice_or_late_changes_its_row_alone():
    place = memory_place()
    async with (
        catalog_server(place, generation=1) as one,
        catalog_server(place) as two,
        remote_catalog(one.endpoint) as direct,
        Keeping([one.endpoint, two.endpoint]) as proxy,
        remote_catalog(proxy.endpoint) as catalog,
    ):
        for number in range(6):
            leader = await direct.open(1)
            await put(leader, f"kept {number}", "1")
            # What was there before; or, when the later of the two is received, what the earlier has written.
            told = await catalog.edit(SETTING, KEY, Setting(str(number)))
            assert told in (Setting(str(number - 1)) if number else None, Setting(str(number)))
            while proxy.delivered["EditRow"] < 2 * (number + 1):
                await direct.status()
        leader = await direct.open(1)
        await put(leader, "k", "later")
        await proxy.again("EditRow")
        # It fences, and changes the one row as it says: nothing else is lost.
        leader = await direct.open(1)
        assert found(leader, "k") == "5"
        assert [found(leader, f"kept {number}") for number in range(6)] == ["1"] * 6
        await put(leader, "k", "6")
        assert found(await direct.open_read_only(), "k") == "6"


async def test_a_registration_that_is_delivered_twice_is_one_hold_and_a_late_one_ends_by_itself():
    async with (
        server_of(memory_place()) as endpoint,
        Keeping([endpoint, endpoint], sessions=False) as proxy,
        await aio.connect(proxy.endpoint) as client,
        await aio.connect(endpoint) as other,
    ):
        writer = await other.open_writer(ShardId.new(), schema=SCHEMA)
        await writer.append(table([(1, "a", 3, 1)]), 10)
        reader = await client.open_reader(writer.shard, lease=1.0)
        while proxy.delivered["RegisterLeasedReader"] < 2:
            await other.recent_upper(writer.shard)
        assert await holders(other, writer.shard) == [reader.reader_id]
        await reader.expire()
        assert await holders(other, writer.shard) == []
        await proxy.again("RegisterLeasedReader")
        assert await holders(other, writer.shard) == [reader.reader_id], "for no user, for one lease"
        upper = 10
        while await holders(other, writer.shard):
            upper += 10
            await writer.append([], upper)


async def holders(client: aio.Client, shard: ids.ShardId) -> list[str]:
    """Whose leases a shard has."""
    leased = (await client.inspect(shard))["leased_readers"]
    return [each if isinstance(each, str) else each["reader_id"] for each in leased]
