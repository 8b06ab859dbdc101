"""CatalogService: several clients, several servers, lost answers, leaders that are fenced; what followers return."""

import asyncio
import dataclasses
import gc
import weakref
from contextlib import aclosing
from typing import Any

import grpc.aio
import pytest
from client.support import client_of, file_place, memory_place
from grpc_health.v1 import health_pb2, health_pb2_grpc
from services.catalog.cataloging import ENVIRONMENT, QUICK, catalog_server, found, new_token, put, remote_catalog
from services.proxy import free_endpoint, proxy_to
from services.support import serving
from unit.core.catalog.samples import cluster, item, user

from persist import aio
from persist.client.catalog.remote import RemoteCatalog
from persist.client.sql.session import SqlSession
from persist.core.catalog.errors import FencedByEpoch, FencedByGeneration, NotWritable, OutOfSync, UniquenessViolation
from persist.core.catalog.kinds import AUDIT_LOG, CLUSTER, COMMIT, FENCE_TOKEN, ITEM, SETTING, STORAGE_USAGE
from persist.core.catalog.leadership.fencing import GENERATION_JUMP_MAX
from persist.core.catalog.objects import (
    AuditLogKey,
    ClusterKey,
    FenceToken,
    FenceTokenKey,
    ItemKey,
    Setting,
    SettingKey,
    StorageUsageKey,
)
from persist.core.catalog.rows import contents
from persist.core.catalog.values import AuditEventType, AuditNamedV1, ObjectType, Unit
from persist.errors import InvalidArgument, LocationError, NotReadable

ONE, TWO = ClusterKey(user(1)), ClusterKey(user(2))


def event(number: int) -> AuditLogKey:
    return AuditLogKey(number, AuditEventType.CREATE, ObjectType.TABLE, "me", 7, AuditNamedV1("1", "t"))


async def test_sessions_of_one_epoch_write_beside_each_other():
    async with catalog_server(memory_place(), generation=1) as server, remote_catalog(server.endpoint) as catalog:
        first, second = await catalog.join(), await catalog.join()
        assert first.token == second.token == FenceToken(1, 2)
        one, two = first.transaction(), second.transaction()
        one.set(SETTING, SettingKey("a"), Setting("1"))
        two.set(SETTING, SettingKey("b"), Setting("2"))
        assert await second.commit(two) > await first.commit(one) - 2
        # What the other one did is taken over with the answer.
        assert (found(first, "a"), found(first, "b"), found(second, "b")) == ("1", "2", "2")
        await second.sync()
        assert (found(second, "a"), second.upper) == ("1", first.upper)
        assert server.telemetry.value("persist_catalog_commits_total") == 2
        assert server.telemetry.value("persist_catalog_conflicts_total") == 0


async def test_a_catalog_keeps_nothing_of_sessions_that_were_dropped():
    """As by who opens again after each error: a session has the whole catalog in memory."""
    async with catalog_server(memory_place(), generation=1) as server, remote_catalog(server.endpoint) as catalog:
        first = await catalog.join()
        dropped = [weakref.ref(await catalog.join()) for _ in range(5)]
        gc.collect()
        assert [each() for each in dropped] == [None] * 5
        await first.set(CLUSTER, {ONE: cluster("one")})


@pytest.mark.parametrize("depends", ["key", "kind", "name", "free name"])
async def test_commit_that_depends_on_what_changed_meanwhile_is_out_of_sync(depends: str):
    async with catalog_server(memory_place(), generation=1) as server, remote_catalog(server.endpoint) as catalog:
        first, second = await catalog.join(), await catalog.join()
        await first.set(CLUSTER, {ONE: cluster("one")})
        await second.sync()
        slow = second.transaction()
        match depends:
            case "key":
                assert slow.get(CLUSTER, ONE) == cluster("one")
            case "kind":
                assert len(slow.objects(CLUSTER)) == 1
            case "name":
                assert slow.find(CLUSTER, ("one",)) == ONE
            case "free name":
                assert slow.find(CLUSTER, ("uno",)) is None
        slow.set(SETTING, SettingKey("seen"), Setting("yes"))
        await first.set(CLUSTER, {ONE: cluster("uno")})
        with pytest.raises(OutOfSync) as refused:
            await second.commit(slow)
        assert refused.value.details["updates"] == "2", "the object, and the token of the commit"
        assert refused.value.details["keys"] == f"cluster {ONE}"
        # It knows what came first, and may run again.
        assert second.get(CLUSTER, ONE) == cluster("uno")
        assert await put(second, "seen", "yes") == second.upper
        assert server.telemetry.value("persist_catalog_conflicts_total") == 1


async def test_two_clients_cannot_take_one_name():
    async with catalog_server(memory_place(), generation=1) as server, remote_catalog(server.endpoint) as catalog:
        first, second = await catalog.join(), await catalog.join()
        one, two = first.transaction(), second.transaction()
        one.insert(CLUSTER, ONE, cluster("same"))
        two.insert(CLUSTER, TWO, cluster("same"))
        await first.commit(one)
        with pytest.raises(OutOfSync):
            await second.commit(two)
        again = second.transaction()
        with pytest.raises(UniquenessViolation):
            again.insert(CLUSTER, TWO, cluster("same"))


async def test_writers_racing_for_one_number_count_every_step_once():
    async with catalog_server(memory_place(), generation=1) as server, remote_catalog(server.endpoint) as catalog:
        key, steps = SettingKey("n"), 8

        async def count() -> None:
            mine, done = await catalog.join(), 0
            while done < steps:
                transaction = mine.transaction(token=new_token())
                before = transaction.get(SETTING, key)
                transaction.set(SETTING, key, Setting(str(int(before.value if before else "0") + 1)))
                transaction.insert(AUDIT_LOG, event(transaction.allocate("auditlog")[0]), Unit())
                try:
                    await mine.commit(transaction)
                except OutOfSync:
                    continue
                done += 1

        await asyncio.gather(*(count() for _ in range(4)))
        reader = await catalog.open_read_only()
        assert found(reader, "n") == str(4 * steps)
        assert [each.id for each in await reader.audit_logs()] == list(range(1, 4 * steps + 1))
        assert server.telemetry.value("persist_catalog_conflicts_total") > 0


@pytest.mark.parametrize("with_token", [True, False])
async def test_commit_whose_answer_was_lost_is_committed_once(with_token: bool):
    async with (
        catalog_server(memory_place(), generation=1) as server,
        proxy_to(server.endpoint) as proxy,
        remote_catalog(proxy.endpoint) as far,
        remote_catalog(server.endpoint) as near,
    ):
        mine, other = await far.join(), await near.open_read_only()
        transaction = mine.transaction(token=new_token() if with_token else None)
        transaction.set(SETTING, SettingKey("a"), Setting("1"))
        transaction.insert(AUDIT_LOG, event(1), Unit())
        proxy.deaf = True
        committing = asyncio.create_task(mine.commit(transaction))
        while found(other, "a") is None:
            await other.sync(other.upper + 1, timeout=20)
        upper = other.upper
        await put(await near.join(), "b", "2")
        proxy.deaf = False
        proxy.cut()
        assert await committing == upper
        assert (mine.count(AUDIT_LOG), found(mine, "a"), found(mine, "b")) == (1, "1", "2")


@pytest.mark.parametrize("with_token", [True, False])
async def test_commit_lost_with_its_leader_is_settled_by_the_next_one(with_token: bool):
    place = memory_place()
    async with (
        catalog_server(place, generation=1) as first,
        catalog_server(place) as second,
        proxy_to(first.endpoint) as proxy,
        remote_catalog(proxy.endpoint, second.endpoint) as catalog,
        remote_catalog(second.endpoint) as near,
    ):
        mine, other = await catalog.join(), await near.open_read_only()
        transaction = mine.transaction(token=new_token() if with_token else None)
        transaction.set(SETTING, SettingKey("a"), Setting("1"))
        proxy.deaf = True
        committing = asyncio.create_task(mine.commit(transaction))
        while found(other, "a") is None:
            await other.sync(other.upper + 1, timeout=20)
        upper = other.upper
        leading = await near.open(2)
        proxy.cut()
        assert await committing == upper
        proxy.deaf = False
        with pytest.raises(FencedByGeneration):
            await put(mine, "b", "2")
        assert (found(leading, "a"), await put(leading, "b", "3")) == ("1", leading.upper)


async def test_leader_that_was_fenced_refuses_for_ever_and_follows():
    place = memory_place()
    async with (
        catalog_server(place, generation=1) as first,
        catalog_server(place) as second,
        remote_catalog(first.endpoint) as old,
        remote_catalog(second.endpoint) as new,
    ):
        mine = await old.join()
        await put(mine, "a", "1")
        assert await health(first.endpoint) == "SERVING"
        leading = await new.open(2)
        for _ in range(2):
            with pytest.raises(FencedByGeneration) as refused:
                await put(mine, "a", "2")
            assert refused.value.details["fenced_by_generation"] == "2"
        for refuse in (mine.confirm_leadership, mine.sync):
            with pytest.raises(FencedByGeneration):
                await refuse()
        status = await old.status()
        assert (status.role, status.own, status.token) == ("fenced", FenceToken(1, 2), FenceToken(2, 3))
        assert status.leader == second.endpoint
        await until(lambda: health(first.endpoint), "NOT_SERVING")
        assert await health(second.endpoint) == "SERVING"
        # No session, whether it joins or leads with a generation that was fenced.
        for opening in (old.join(), old.open(2)):
            with pytest.raises(NotWritable) as named:
                await opening
            assert (named.value.details["leader"], named.value.details["epoch"]) == (second.endpoint, "3")
        # It follows the new leader, and returns what that does.
        reader = await old.open_read_only()
        await put(leading, "a", "3")
        await reader.sync()
        assert found(reader, "a") == "3"
        # Another deployment may use it again.
        again = await old.open(3)
        assert (again.token, await put(again, "a", "4")) == (FenceToken(3, 4), again.upper)
        with pytest.raises(FencedByGeneration):
            await put(leading, "a", "5")
        assert (await new.status()).role == "fenced"


async def test_sessions_are_fenced_when_their_own_server_leads_anew():
    async with catalog_server(memory_place(), generation=1) as server, remote_catalog(server.endpoint) as catalog:
        mine = await catalog.join()
        again = await catalog.open(1)
        with pytest.raises(FencedByEpoch):
            await put(mine, "a", "1")
        assert (await catalog.status()).sessions == 1
        with pytest.raises(FencedByGeneration):
            await catalog.open(0)
        await put(again, "a", "2")
        assert (await catalog.status()).role == "leader"


async def test_generation_that_is_far_too_high_locks_nobody_out():
    place = memory_place()
    async with catalog_server(place, generation=1) as server, remote_catalog(server.endpoint) as catalog:
        token = FenceTokenKey(), FenceToken(2**64 - 1, 9)
        for asking in (catalog.open(2**64 - 1), catalog.edit(FENCE_TOKEN, *token)):
            with pytest.raises(InvalidArgument) as refused:
                await asking
            assert refused.value.details["present"] == "1"
            assert refused.value.details["greatest"] == str(1 + GENERATION_JUMP_MAX)
        status = await catalog.status()
        assert (status.role, status.token) == ("leader", FenceToken(1, 2))
        await put(await catalog.open(2), "a", "1")


async def test_follower_names_the_leader_and_serves_reads():
    place = memory_place()
    async with (
        catalog_server(place, generation=1, advertise="leader.example:7300") as leader,
        catalog_server(place, follow=True) as follower,
        remote_catalog(leader.endpoint) as catalog,
        remote_catalog(follower.endpoint) as following,
        remote_catalog(follower.endpoint, leader.endpoint) as both,
    ):
        await put(await catalog.join(), "a", "1")
        status = await following.status()
        assert (status.role, status.own, status.leader) == ("follower", None, "leader.example:7300")
        for opening in (following.join(), following.open(9), following.edit(SETTING, SettingKey("a"), None)):
            with pytest.raises(NotWritable) as refused:
                await opening
            details = refused.value.details
            assert (details["leader"], details["epoch"], details["generation"]) == ("leader.example:7300", "2", "1")
        reader = await following.open_read_only()
        assert (found(reader, "a"), reader.token) == ("1", FenceToken(1, 2))
        # Who knows both writes through the one and reads at any.
        mine = await both.join()
        await put(mine, "a", "2")
        await reader.sync()
        assert found(reader, "a") == "2"
        assert await both.edit(SETTING, SettingKey("a"), Setting("3")) == Setting("2")
        with pytest.raises(FencedByEpoch):
            await put(mine, "a", "4")
        assert (await catalog.status()).role == "follower"
        assert (await both.open(1)).token == FenceToken(1, 4)


async def test_feed_is_complete_over_clients_and_servers_that_come_and_go():
    place = memory_place()
    async with (
        catalog_server(place, generation=1) as leader,
        catalog_server(place, follow=True) as follower,
        remote_catalog(leader.endpoint) as catalog,
    ):
        mine = await catalog.join()
        begin = mine.upper
        told, at = [], begin
        for turn in range(6):
            writing = asyncio.create_task(write_some(mine, turn))
            # Each is another client, at another server, which goes on where the one before stopped.
            endpoint = (leader, follower)[turn % 2].endpoint
            async with remote_catalog(endpoint) as watcher, aclosing(watcher.changes(at, timeout=30)) as feed:
                async for updates in feed:
                    assert all(at <= update.ts < updates.upper for update in updates.updates)
                    told += [each for each in updates.updates if each.row.kind != COMMIT.tag]
                    at = updates.upper
                    if turn < 5 or len(told) >= 6 * 5:
                        break
            await writing
        assert len({(update.row, update.ts, update.diff) for update in told}) == len(told)
        rows = contents((await catalog.dump(kinds=["setting"])).updates)["setting"]
        assert len(told) == 6 * 5
        assert {update.row.key: update.row.value for update in told}.items() <= rows.items()


async def write_some(catalog: Any, turn: int) -> None:
    for number in range(5):
        await put(catalog, f"{turn}-{number}", "x")


async def test_feed_ends_with_what_was_forgotten():
    place = memory_place()
    uppers = []
    for number in range(3):
        async with catalog_server(place, generation=1) as leader, remote_catalog(leader.endpoint) as catalog:
            mine = await catalog.join()
            uppers.append(mine.upper)
            await put(mine, "a", str(number))
    begin = uppers[0]
    # No reader holds those times any more.
    async with catalog_server(place, generation=1) as leader, remote_catalog(leader.endpoint) as catalog:
        feed = catalog.changes(begin, timeout=20)
        with pytest.raises(NotReadable):
            await anext(feed)
        reader = await catalog.open_read_only()
        assert found(reader, "a") == "2"
        async with aclosing(catalog.changes(reader.upper, timeout=20)) as feed:
            await put(await catalog.join(), "a", "3")
            told = (await anext(feed)).updates
            assert [each.diff for each in told if each.row.kind == SETTING.tag] == [-1, 1]
        with pytest.raises(InvalidArgument):
            await anext(catalog.changes(reader.upper + 100, timeout=20))


async def test_session_that_nobody_used_is_opened_again():
    async with (
        catalog_server(memory_place(), generation=1, lease=0.05) as server,
        remote_catalog(server.endpoint) as catalog,
    ):
        mine = await catalog.join()
        while (await catalog.status()).sessions:
            await asyncio.sleep(0.02)
        await put(mine, "a", "1")
        assert list(await mine.allocate("user", 2)) == [1, 2]
        await mine.confirm_leadership()
        await mine.advance_upper(mine.upper + 5)
        await mine.close()


async def test_closed_sessions_are_gone():
    async with catalog_server(memory_place(), generation=1) as server, remote_catalog(server.endpoint) as catalog:
        mine, other = await catalog.join(), await catalog.join()
        assert (await catalog.status()).sessions == 2
        await mine.close()
        assert (await catalog.status()).sessions == 1
        await put(other, "a", "1")


async def test_savepoint_writes_to_its_own_memory_only():
    async with catalog_server(memory_place(), generation=1) as server, remote_catalog(server.endpoint) as catalog:
        mine = await catalog.join()
        transaction = mine.transaction()
        transaction.insert(AUDIT_LOG, event(1), Unit())
        await mine.commit(transaction)
        savepoint = await catalog.open_savepoint(1)
        await put(savepoint, "a", "1")
        assert found(savepoint, "a") == "1"
        assert ([each.id for each in await savepoint.audit_logs()], savepoint.count(AUDIT_LOG)) == ([1], 1)
        before = mine.upper
        await mine.sync()
        assert (found(mine, "a"), mine.upper) == (None, before)


async def test_catalog_larger_than_a_message_is_told_in_pieces():
    async with catalog_server(memory_place(), generation=1) as server, remote_catalog(server.endpoint) as catalog:
        mine = await catalog.join()
        behind = await catalog.join()
        many = {ItemKey(user(n)): item(f"i{n}" + "x" * 2000, oid=n) for n in range(1, 1501)}
        await mine.set(ITEM, many)
        # More than an answer holds: it follows the changes after its own write.
        await put(behind, "a", "1")
        reader = await catalog.open_read_only()
        for each in (mine, behind, reader):
            assert each.objects(ITEM) == many
        assert len((await catalog.dump(kinds=["item"])).updates) == 1500


async def test_storage_usage_is_pruned_and_read_where_it_is_durable():
    async with catalog_server(memory_place(), generation=1) as server, remote_catalog(server.endpoint) as catalog:
        mine, other = await catalog.join(), await catalog.join()
        transaction = mine.transaction()
        usage = [StorageUsageKey(n, None, 10, 1000 * n) for n in range(1, 6)]
        for measured in usage:
            transaction.insert(STORAGE_USAGE, measured, Unit())
        await mine.commit(transaction)
        assert await other.prune_storage_usage(None, 9000) == usage
        assert await other.prune_storage_usage(2000, 5000) == usage[2:]
        assert (mine.count(STORAGE_USAGE), other.count(STORAGE_USAGE)) == (5, 3)
        await mine.sync()
        assert mine.count(STORAGE_USAGE) == 3


async def test_servers_that_are_away_or_are_none_are_told():
    settings = dataclasses.replace(QUICK, timeout_ms=300)
    async with remote_catalog(await free_endpoint(), settings=settings) as catalog:
        for call in (catalog.status(), catalog.open(1), catalog.join(), catalog.open_read_only(), catalog.dump()):
            with pytest.raises(LocationError):
                await call
    async with serving() as shards, remote_catalog(shards.endpoint) as catalog:
        for call in (catalog.status(), catalog.open(1)):
            with pytest.raises(InvalidArgument, match="does not offer CatalogService"):
                await call
    with pytest.raises(InvalidArgument):
        RemoteCatalog(" , ")


async def test_server_of_another_environment_is_refused():
    async with (
        catalog_server(memory_place(), generation=1) as server,
        remote_catalog(server.endpoint, environment="another") as catalog,
    ):
        for call in (catalog.open(1), catalog.open_read_only(), catalog.upgrade_check()):
            with pytest.raises(InvalidArgument) as refused:
                await call
            assert refused.value.details == {"asked": "another", "got": ENVIRONMENT}


async def test_client_of_a_location_asks_a_service_when_endpoints_are_given():
    place = memory_place()
    async with (
        catalog_server(place, generation=4) as server,
        await aio.embedded(blob=place.blob, consensus=place.consensus, settings=QUICK) as client,
    ):
        remote = await client.catalog(ENVIRONMENT, endpoints=server.endpoint)
        local = await client.catalog(ENVIRONMENT)
        assert isinstance(remote, RemoteCatalog)
        await put(await remote.join(), "a", "1")
        assert found(await local.open_read_only(), "a") == "1"
        assert await local.fence_token() == await remote.fence_token() == FenceToken(4, 2)
        # A program that leads needs no server, and no server knows where it is.
        leading = await local.open(4)
        with pytest.raises(NotWritable) as refused:
            await remote.join()
        assert (refused.value.details["epoch"], refused.value.details["leader"]) == ("3", "")
        await put(leading, "a", "2")
        await local.close()
        await remote.close()


async def health(endpoint: str) -> str:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        request = health_pb2.HealthCheckRequest(service="persist.catalog.leader")
        told = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=10)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(told.status)


async def until(look, wanted: str) -> None:
    while await look() != wanted:
        await asyncio.sleep(0.02)


async def test_what_the_controller_of_a_server_does_is_counted(tmp_path):
    place = file_place(tmp_path)
    async with catalog_server(place, generation=1) as server, client_of(place) as client:
        environment = await client.environment(endpoints=server.endpoint)
        session = SqlSession(environment, owns=True)
        await session.execute(
            "create table t (id bigint primary key);"
            "insert into t values (1);"
            "create materialized view v with (refresh on commit) as select (9223372036854775807 + id) as q from t"
        )
        value = server.telemetry.value
        async with asyncio.timeout(60):
            while not value("persist_control_views_stalled"):
                await asyncio.sleep(0.05)
            assert value("persist_control_passes_total", (("duty", "ticker"),)) > 0
            await session.execute("drop materialized view v")
            while value("persist_control_views_stalled") or not value("persist_control_finalized_total"):
                await asyncio.sleep(0.05)
        await session.close()
