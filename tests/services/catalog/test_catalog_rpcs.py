"""What CatalogService refuses, and what its messages carry: calls as any program may make them."""

from collections import Counter
from typing import Any

import grpc.aio
import pytest
from client.support import memory_place
from services.catalog.cataloging import catalog_server, remote_catalog, stub_of
from unit.core.catalog.samples import cluster, token, user

from persist.core.catalog.errors import Fenced, IdExhaustion, NotWritable, OutOfSync, UniquenessViolation
from persist.core.catalog.kinds import AUDIT_LOG, CLUSTER, COMMIT, CONFIG, FENCE_TOKEN, ID_ALLOCATOR, SETTING
from persist.core.catalog.objects import (
    AuditLogKey,
    ClusterKey,
    Commit,
    CommitKey,
    Config,
    FenceToken,
    FenceTokenKey,
    IdAllocator,
    IdAllocatorKey,
    Setting,
    SettingKey,
)
from persist.core.catalog.open_rules import DATA_VERSION
from persist.core.catalog.rows import Row
from persist.core.catalog.values import U64_MAX, AuditEventType, AuditNamedV1, ObjectType, Unit
from persist.errors import InvalidArgument, InvalidId, LeaseExpired, MissingDeadline, PersistError, RequestTooLarge
from persist.v1 import catalog_pb2 as pb
from persist.wire.catalog.migrations import MIGRATIONS
from persist.wire.catalog.rows import CODEC
from persist.wire.catalog.rpc import changes_message, session_message, session_of, updates_of
from persist.wire.rpc_errors import DETAILS_KEY, error_of_status
from persist_catalog.servicer import CHANGES_MAX

REQUEST = b"r" * 16
ONE = ClusterKey(user(1))


def setting(name: str, value: str) -> Row:
    return CODEC.encode(SETTING.tag, SettingKey(name), Setting(value))


def changes(*rows: tuple[Row, int]) -> pb.CatalogUpdates:
    return changes_message(rows)


EVENT = CODEC.encode(
    AUDIT_LOG.tag,
    AuditLogKey(1, AuditEventType.CREATE, ObjectType.TABLE, None, 7, AuditNamedV1("1", "t")),
    Unit(),
)


async def ask(stub: Any, rpc: str, request: Any, timeout: float | None = 20) -> Any:
    """The answer, or the error behind the status."""
    try:
        call = getattr(stub, rpc)(request, timeout=timeout)
        if hasattr(call, "__aiter__"):
            return [message async for message in call]
        return await call
    except grpc.aio.AioRpcError as error:
        details: Any = next((value for name, value in error.trailing_metadata() or () if name == DETAILS_KEY), None)
        told = error_of_status(error.code().value[0], details)
        assert told is not None
        raise told from error


async def commit(stub: Any, session: Any, base: int, request_id: bytes = REQUEST, **fields: Any) -> Any:
    fields = {"changes": changes((setting("a", "1"), 1)), **fields}
    request = pb.CommitRequest(session=session, request_id=request_id, base_upper=base, **fields)
    return await ask(stub, "Commit", request)


DATA = {version: CODEC.encode(CONFIG.tag, DATA_VERSION, Config(version)) for version in (MIGRATIONS.current, 99)}
TIMED = pb.CatalogUpdates(kinds=["setting"], keys=[b""], values=[b""], times=[1], diffs=[1])
WRONG: dict[str, tuple[type[PersistError], dict[str, Any]]] = {
    "no changes": (InvalidArgument, {"changes": pb.CatalogUpdates()}),
    "times": (InvalidArgument, {"changes": TIMED}),
    "columns": (InvalidArgument, {"changes": pb.CatalogUpdates(kinds=["setting"], keys=[], values=[b""], diffs=[1])}),
    "kind": (InvalidArgument, {"changes": changes((Row("nothing", b"", b""), 1))}),
    "diff": (InvalidArgument, {"changes": changes((setting("a", "1"), 2))}),
    "twice": (InvalidArgument, {"changes": changes((setting("a", "1"), 1), (setting("a", "2"), 1))}),
    "bytes": (InvalidArgument, {"changes": changes((Row("setting", b"\xff", b""), 1))}),
    "form": (InvalidArgument, {"changes": changes((Row("setting", b"", b"\x0a\x00"), 1))}),
    "token row": (InvalidArgument, {"changes": changes((CODEC.encode(COMMIT.tag, CommitKey("x"), Commit(1)), 1))}),
    "request id": (InvalidArgument, {"request_id": b"short"}),
    "token": (InvalidId, {"token": "not a token"}),
    "ts": (InvalidArgument, {"ts": U64_MAX}),
    "base": (InvalidArgument, {"base": 1000}),
    "footprint columns": (InvalidArgument, {"footprint": pb.CatalogFootprint(keys=[b""])}),
    "footprint kind": (InvalidArgument, {"footprint": pb.CatalogFootprint(kinds=["nothing"])}),
    "footprint key": (InvalidArgument, {"footprint": pb.CatalogFootprint(key_kinds=["setting"], keys=[b"\xff"])}),
    "fingerprint": (InvalidArgument, {"footprint": pb.CatalogFootprint(name_kinds=["item"], names=[b"x"])}),
    "audit of nothing": (OutOfSync, {"changes": changes((EVENT, -1))}),
    "data version": (InvalidArgument, {"changes": changes((DATA[MIGRATIONS.current], -1), (DATA[99], 1))}),
    "no data version": (InvalidArgument, {"changes": changes((DATA[MIGRATIONS.current], -1))}),
    "far time": (InvalidArgument, {"ts": 2**62}),
    "retraction of nothing": (OutOfSync, {"changes": changes((setting("a", "1"), -1))}),
}  # fmt: skip


async def test_commits_that_make_no_sense_are_refused_and_change_nothing():
    async with catalog_server(memory_place(), generation=1) as server, stub_of(server.endpoint) as stub:
        opened = await ask(stub, "OpenSession", pb.OpenSessionRequest())
        session, base = opened.session, opened.upper
        for number, (error, fields) in enumerate(WRONG.values()):
            fields = {"request_id": number.to_bytes(16), "base": base, **fields}
            with pytest.raises(error):
                await commit(stub, session, **fields)
        status = await ask(stub, "GetStatus", pb.GetStatusRequest())
        assert status.upper == base
        # The token row that says who leads, too.
        fence = CODEC.encode(FENCE_TOKEN.tag, FenceTokenKey(), token(9, 9)), 1
        old = CODEC.encode(FENCE_TOKEN.tag, FenceTokenKey(), token(1, 2)), -1
        with pytest.raises(InvalidArgument):
            await commit(stub, session, base, b"f" * 16, changes=changes(old, fence))
        assert (await commit(stub, session, base, b"g" * 16)).ts == base


def objects_of(updates: pb.CatalogUpdates) -> list[tuple[Row, int, int]]:
    """Those updates that are no tokens: each commit has one."""
    return [(row, ts, diff) for row, ts, diff in updates_of(updates) if row.kind != COMMIT.tag]


async def test_commit_repeated_in_its_session_has_the_first_outcome():
    async with catalog_server(memory_place(), generation=1) as server, stub_of(server.endpoint) as stub:
        opened = await ask(stub, "OpenSession", pb.OpenSessionRequest())
        session, base = opened.session, opened.upper
        first = await commit(stub, session, base, ts=base + 10)
        assert (first.ts, first.news.upper) == (base + 10, base + 11)
        assert objects_of(first.news.updates) == [(setting("a", "1"), base + 10, 1)]
        assert await commit(stub, session, base, ts=base + 10) == first
        # Refusals are final, too; another request is another matter.
        for request_id in (b"x" * 16, b"x" * 16, b"y" * 16):
            with pytest.raises(OutOfSync) as refused:
                await commit(stub, session, base, request_id, changes=changes((setting("a", "2"), 1)))
            assert refused.value.details["upper"] == str(base + 11)


async def test_rules_hold_whoever_sends_what():
    async with catalog_server(memory_place(), generation=1) as server, stub_of(server.endpoint) as stub:
        opened = await ask(stub, "OpenSession", pb.OpenSessionRequest())
        session, base = opened.session, opened.upper
        one = CODEC.encode(CLUSTER.tag, ONE, cluster("same"))
        two = CODEC.encode(CLUSTER.tag, ClusterKey(user(2)), cluster("same"))
        with pytest.raises(UniquenessViolation) as refused:
            await commit(stub, session, base, changes=changes((one, 1), (two, 1)))
        assert refused.value.details["kind"] == "cluster"
        # A footprint that leaves out what is written does not help to write over it.
        await commit(stub, session, base, b"1" * 16, changes=changes((one, 1)))
        with pytest.raises(OutOfSync):
            await commit(stub, session, base, b"2" * 16, changes=changes((one, 1)))
        for request, error in (
            (pb.AllocateIdsRequest(allocator="user", count=U64_MAX), InvalidArgument),
            (pb.AllocateIdsRequest(allocator="system", count=1), InvalidArgument),
            (pb.AllocateIdsRequest(allocator="nobody", count=1), InvalidArgument),
        ):
            request.session.CopyFrom(session)
            with pytest.raises(error):
                await ask(stub, "AllocateIds", request)


async def test_allocator_at_its_end_is_exhausted_and_not_overloaded():
    async with catalog_server(memory_place(), generation=1) as server, remote_catalog(server.endpoint) as catalog:
        mine = await catalog.join()
        await mine.set(ID_ALLOCATOR, {IdAllocatorKey("user"): IdAllocator(U64_MAX - 1)})
        assert list(await mine.allocate("user")) == [U64_MAX - 1]
        with pytest.raises(IdExhaustion) as refused:
            await mine.allocate("user")
        assert refused.value.details["allocator"] == "user"


async def test_writes_without_a_session_of_this_epoch_are_refused():
    async with catalog_server(memory_place(), generation=1) as server, stub_of(server.endpoint) as stub:
        opened = await ask(stub, "OpenSession", pb.OpenSessionRequest())
        name = session_of(opened)
        writes: dict[str, Any] = {
            "Commit": pb.CommitRequest(request_id=REQUEST, base_upper=1, changes=changes((setting("a", "1"), 1))),
            "AllocateIds": pb.AllocateIdsRequest(allocator="user", count=1),
            "ConfirmLeadership": pb.ConfirmLeadershipRequest(),
            "AdvanceUpper": pb.AdvanceUpperRequest(to=100),
            "PruneStorageUsage": pb.PruneStorageUsageRequest(),
        }  # fmt: skip
        sessions = {
            None: InvalidArgument,
            name._replace(session_id="unknown"): LeaseExpired,
            name._replace(token=FenceToken(1, 1)): Fenced,
            name._replace(token=FenceToken(0, 9)): Fenced,
            # Of a leader that this server never met: it is no leader of that.
            name._replace(token=FenceToken(1, 3)): NotWritable,
        }
        for rpc, request in writes.items():
            for session, error in sessions.items():
                request.ClearField("session")
                if session is not None:
                    request.session.CopyFrom(session_message(session))
                with pytest.raises(error):
                    await ask(stub, rpc, request)
        await ask(stub, "CloseSession", pb.CloseSessionRequest(session=opened.session))
        await ask(stub, "CloseSession", pb.CloseSessionRequest(session=opened.session))
        for rpc, request in writes.items():
            request.session.CopyFrom(opened.session)
            with pytest.raises(LeaseExpired):
                await ask(stub, rpc, request)
        assert (await ask(stub, "GetStatus", pb.GetStatusRequest())).upper == opened.upper
        with pytest.raises(Fenced):
            await ask(stub, "OpenSession", pb.OpenSessionRequest(token=pb.CatalogToken(generation=1, epoch=1)))
        both = pb.OpenSessionRequest(generation=1, token=pb.CatalogToken(generation=1, epoch=2))
        with pytest.raises(InvalidArgument):
            await ask(stub, "OpenSession", both)


async def test_reads_that_make_no_sense_are_refused():
    async with catalog_server(memory_place(), generation=1) as server, stub_of(server.endpoint) as stub:
        for rpc, request in (
            ("ReadRows", pb.ReadRowsRequest(kinds=["nothing"])),
            ("ReadRows", pb.ReadRowsRequest(kinds=[AUDIT_LOG.tag])),
            ("DumpRows", pb.DumpRowsRequest(kinds=["nothing"])),
            ("WatchChanges", pb.WatchChangesRequest(lower=1000)),
            ("WatchChanges", pb.WatchChangesRequest(lower=U64_MAX)),
            ("EditRow", pb.EditRowRequest(kind="nothing")),
            ("EditRow", pb.EditRowRequest(kind="setting", key=b"\xff")),
            ("EditRow", pb.EditRowRequest(kind="setting", key=setting("a", "").key, value=b"\xff")),
        ):
            with pytest.raises(InvalidArgument):
                await ask(stub, rpc, request)
        with pytest.raises(MissingDeadline):
            await ask(stub, "GetStatus", pb.GetStatusRequest(), timeout=None)


async def test_reads_of_rows_changes_and_dumps():
    async with catalog_server(memory_place(), generation=1) as server, stub_of(server.endpoint) as stub:
        opened = await ask(stub, "OpenSession", pb.OpenSessionRequest())
        base = opened.upper
        await commit(stub, opened.session, base)
        [read] = await ask(stub, "ReadRows", pb.ReadRowsRequest(kinds=[SETTING.tag, CLUSTER.tag]))
        assert (read.upper, read.last, set(read.updates.kinds)) == (base + 1, True, {SETTING.tag})
        assert (setting("a", "1"), base, 1) in updates_of(read.updates)
        [told] = await ask(stub, "WatchChanges", pb.WatchChangesRequest(lower=base))
        assert (objects_of(told.updates), told.upper, told.last) == ([(setting("a", "1"), base, 1)], base + 1, True)
        [nothing] = await ask(stub, "WatchChanges", pb.WatchChangesRequest(lower=base + 1))
        assert (list(nothing.updates.keys), nothing.upper, nothing.last) == ([], base + 1, True)
        # Progress without rows is returned, too.
        advance = pb.AdvanceUpperRequest(session=opened.session, to=base + 50, base_upper=base + 1)
        news = (await ask(stub, "AdvanceUpper", advance)).news
        assert (news.upper, len(news.updates.keys)) == (base + 50, 0)
        [progress] = await ask(stub, "WatchChanges", pb.WatchChangesRequest(lower=base + 1))
        assert (progress.upper, len(progress.updates.keys)) == (base + 50, 0)
        [dump] = await ask(stub, "DumpRows", pb.DumpRowsRequest(consolidated=True, kinds=[CONFIG.tag]))
        assert (set(dump.updates.kinds), dump.upper) == ({CONFIG.tag}, base + 50)
        # How much history there is depends on what the leader has released; it sums to the same.
        sums = []
        for consolidated in (True, False):
            pieces = await ask(stub, "DumpRows", pb.DumpRowsRequest(consolidated=consolidated))
            sums.append(Counter[object]())
            for update in (update for piece in pieces for update in updates_of(piece.updates)):
                sums[-1][update.row] += update.diff
        assert +sums[0] == +sums[1]
        assert len(sums[0]) > 10
        check = await ask(stub, "CheckUpgrade", pb.CheckUpgradeRequest())
        assert (check.found, check.current, list(check.changed)) == (check.current, check.current, [])


async def test_edit_tells_what_there_was_and_fences_the_server_itself():
    async with catalog_server(memory_place(), generation=1) as server, stub_of(server.endpoint) as stub:
        opened = await ask(stub, "OpenSession", pb.OpenSessionRequest())
        row, other = setting("a", "1"), setting("a", "2")
        edited = [
            await ask(stub, "EditRow", pb.EditRowRequest(kind=SETTING.tag, key=row.key, value=value))
            for value in (row.value, other.value, None, None)
        ]
        previous = [each.previous if each.HasField("previous") else None for each in edited]
        assert previous == [None, row.value, other.value, None]
        with pytest.raises(Fenced):
            await commit(stub, opened.session, opened.upper)
        status = await ask(stub, "GetStatus", pb.GetStatusRequest())
        assert (status.role, status.token.epoch) == (pb.CATALOG_ROLE_FOLLOWER, 6)
        assert (await ask(stub, "OpenSession", pb.OpenSessionRequest(generation=1))).session.token.epoch == 7


async def test_more_changes_than_a_transaction_may_have_are_refused_before_they_are_looked_at():
    async with catalog_server(memory_place(), generation=1) as server, stub_of(server.endpoint) as stub:
        opened = await ask(stub, "OpenSession", pb.OpenSessionRequest())
        many = pb.CatalogUpdates(kinds=[SETTING.tag], keys=[b"k"], values=[b""], diffs=[1])
        columns: list[Any] = [many.kinds, many.keys, many.values, many.diffs]
        for column in columns:
            column.extend(list(column) * CHANGES_MAX)
        with pytest.raises(RequestTooLarge) as refused:
            await commit(stub, opened.session, opened.upper, changes=many)
        assert refused.value.details["limit"] == str(CHANGES_MAX)
        await commit(stub, opened.session, opened.upper)


async def test_commit_that_fits_no_message_is_refused_here():
    async with catalog_server(memory_place(), generation=1) as server, remote_catalog(server.endpoint) as catalog:
        mine = await catalog.join()
        with pytest.raises(RequestTooLarge):
            await mine.set(SETTING, {SettingKey("a"): Setting("x" * (40 << 20))})
        await mine.set(SETTING, {SettingKey("a"): Setting("y")})
