"""The handlers of CatalogService: decode, ask, encode.

Source: style.md rule 12; protos/persist/v1/catalog.proto.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Final

from google.protobuf.message import DecodeError, Message

from persist.client.catalog.port import OpenableCatalog
from persist.client.remote.catalog_ddl import ROLE_HEADER
from persist.core.catalog.conflicts import Footprint
from persist.core.catalog.ddl.statements import Statement
from persist.core.catalog.errors import OutOfSync
from persist.core.catalog.kinds import COMMIT
from persist.core.catalog.rows import Row
from persist.core.ids import Token
from persist.errors import CorruptData, InvalidArgument, RequestTooLarge
from persist.runtime import Runtime
from persist.v1 import catalog_ddl_pb2 as pb_ddl
from persist.v1 import catalog_pb2 as pb
from persist.v1.catalog_pb2_grpc import CatalogServiceServicer
from persist.wire.catalog.ddl import outcome_message, seen_in, session_in, statement_in
from persist.wire.catalog.rows import SIDES
from persist.wire.catalog.rpc import (
    WriteSession,
    at_least_in,
    body_in,
    changes_in,
    history_in,
    kind_in,
    kinds_in,
    news_message,
    optional_token,
    pieces,
    request_id_in,
    rows_pieces,
    session_message,
    session_of,
    time_in,
    token_message,
)
from persist.wire.catalog.rpc_footprint import footprint_in, key_in
from persist.wire.catalog.rpc_stage import stage_in, whole
from persist_catalog.describing import Describing
from persist_catalog.executing import Executing
from persist_catalog.leadership import CatalogRole, Leadership
from persist_catalog.mirror import Mirror
from persist_catalog.sessions import ServedSessions
from persist_catalog.stages import Stages
from persist_catalog.writes import ReadyCommit, WantedCommit, Writes
from persist_host import Telemetry
from persist_host.calls import Context, Waiters

CHANGES_MAX: Final = 50_000
"""Changes of rows in one transaction. A row that is replaced counts twice."""
CHANGES_ON_LOOP_MAX: Final = 1_000
"""More are taken apart beside the event loop, which others need."""
STATEMENTS_ON_LOOP_BYTES: Final = 16 << 10
"""The same of a request to execute."""
IDS_MAX: Final = 1_000_000
"""Ids in one request."""

_ROLES: Final = {
    CatalogRole.FOLLOWER: pb.CATALOG_ROLE_FOLLOWER,
    CatalogRole.LEADER: pb.CATALOG_ROLE_LEADER,
    CatalogRole.FENCED: pb.CATALOG_ROLE_FENCED,
}


@dataclass(frozen=True, slots=True)
class Serving:
    """What a CatalogService serves: one catalog, and its part in it."""

    environment: str
    durable: OpenableCatalog
    mirror: Mirror
    leadership: Leadership
    sessions: ServedSessions
    writes: Writes
    stages: Stages
    executing: Executing
    describing: Describing


class CatalogServicer(CatalogServiceServicer):
    """CatalogService over what ``serving`` opens. ``limit``: bytes of one message."""

    def __init__(
        self, serving: Callable[[], Awaitable[Serving]], *, limit: int, telemetry: Telemetry, runtime: Runtime
    ) -> None:
        self._serving = serving
        self._runtime = runtime
        self._limit = limit
        self._telemetry = telemetry
        self._waiters = Waiters()

    def drain(self) -> None:
        """End all that wait for news at once."""
        self._waiters.drain()

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """What this server is, and how far the catalog has come."""
        it = await self._serving()
        upper = await it.mirror.sync()
        it.leadership.look()
        status = pb.GetStatusResponse(
            environment=it.environment,
            role=_ROLES[it.leadership.role],
            initialized=it.mirror.raw.is_initialized,
            upper=upper,
            leader=await it.leadership.leader(),
            sessions=len(it.sessions),
        )
        if (token := it.mirror.token) is not None:
            status.token.CopyFrom(token_message(token))
        if (own := it.leadership.own) is not None:
            status.own.CopyFrom(token_message(own))
        if it.mirror.history is not None:
            status.history = it.mirror.history
        return status

    async def OpenSession(self, request: pb.OpenSessionRequest, context: Context) -> pb.OpenSessionResponse:
        """Let a client write."""
        it = await self._admitted(context)
        await it.mirror.check_same(history_in(request))
        wanted = optional_token(request, "token")
        if request.HasField("generation"):
            if wanted is not None:
                raise InvalidArgument("lead with a generation, or join a token", hint="not both")
            token = await it.leadership.lead(request.generation)
        else:
            token = await it.leadership.join(wanted)
        session = it.sessions.open(token)
        return pb.OpenSessionResponse(
            session=session_message(WriteSession(session.session_id, token)),
            upper=max(it.mirror.upper, it.leadership.begun),
            lease_ms=int(it.sessions.lease * 1000),
        )

    async def CloseSession(self, request: pb.CloseSessionRequest, context: Context) -> pb.CloseSessionResponse:
        """End a session."""
        it, session = await self._serving(), session_of(request)
        it.sessions.close(session.session_id)
        it.stages.drop(session.session_id)
        return pb.CloseSessionResponse()

    async def ReadRows(self, request: pb.ReadRowsRequest, context: Context) -> AsyncIterator[pb.ReadRowsResponse]:
        """The rows in memory, all as of one upper."""
        it = await self._of(request)
        tags = kinds_in(request.kinds)
        if tags is not None and (odd := [tag for tag in tags if kind_in(tag).append_only]):
            raise InvalidArgument("objects of this kind are not in memory", hint="ask DumpRows", kinds=odd)
        upper = await it.mirror.at_least(at_least_in(request))
        counts = {tag: count for tag, count in it.mirror.raw.counts.items() if count}
        rows = it.mirror.raw.rows
        for updates, last in rows_pieces(rows, tags or list(rows), max(upper - 1, 0)):
            response = pb.ReadRowsResponse(updates=updates, upper=upper, last=last)
            if last:
                response.counts.update(counts)
                response.MergeFrom(pb.ReadRowsResponse(history=it.mirror.history))
            yield response

    async def WatchChanges(
        self, request: pb.WatchChangesRequest, context: Context
    ) -> AsyncIterator[pb.WatchChangesResponse]:
        """The changes from an upper on."""
        it = await self._of(request)
        lower, enough = time_in(request, "lower"), at_least_in(request)
        until = await it.mirror.at_least(None if enough is None else max(enough, lower))
        if request.HasField("until"):
            until = time_in(request, "until")
        while True:
            read = await it.mirror.changes(lower)
            for updates, last in pieces(read.updates):
                yield pb.WatchChangesResponse(updates=updates, upper=read.upper, last=last)
            self._telemetry.count("persist_catalog_changes_total", by=len(read.updates))
            lower = read.upper
            if lower >= until and not request.follow:
                return
            try:
                async with asyncio.timeout(context.time_remaining()):
                    with self._waiters.waiting():
                        await it.mirror.changed(lower)
            except TimeoutError:
                return

    async def Commit(self, request: pb.CommitRequest, context: Context) -> pb.CommitResponse:
        """Commit what came of a transaction."""
        it = await self._admitted(context)
        session, request_id = session_of(request), request_id_in(request)
        wanted = await self._wanted(it, session, request)
        try:
            ts = await it.writes.commit(session, request_id, wanted, size=request.ByteSize())
        except OutOfSync:
            self._telemetry.count("persist_catalog_conflicts_total")
            it.stages.drop(session.session_id, request.stage.stage_id)
            raise
        it.stages.drop(session.session_id, request.stage.stage_id)
        self._telemetry.count("persist_catalog_commits_total")
        return pb.CommitResponse(ts=ts, news=self._news(it, request.base_upper))

    async def _wanted(self, it: Serving, session: WriteSession, request: pb.CommitRequest) -> WantedCommit:
        if request.HasField("stage"):
            pieces = partial(it.stages.whole, session.session_id, request.stage)
            kept = partial(it.stages.kept, session.session_id, request.stage.stage_id)
            return Staged(request, lambda: self._runtime.offload(_staged_in, request, pieces()), kept)
        count = len(request.changes.kinds)
        if count > CHANGES_MAX:
            raise RequestTooLarge(
                "too many changes for one message",
                hint="stage them, or commit them with the catalog in the process itself",
                changes=count,
                limit=CHANGES_MAX,
            )
        large = max(count, len(request.footprint.keys), len(request.footprint.names)) > CHANGES_ON_LOOP_MAX
        return await self._runtime.offload(_commit_in, request) if large else _commit_in(request)

    async def StageChanges(self, request: pb.StageChangesRequest, context: Context) -> pb.StageChangesResponse:
        """Keep a piece of a transaction."""
        it = await self._admitted(context)
        session = session_of(request)
        if it.leadership.own != session.token or it.leadership.role is not CatalogRole.LEADER:
            await it.leadership.join(session.token)
        it.sessions.get(session.session_id)
        following = it.stages.add(session.session_id, request)
        return pb.StageChangesResponse(next=following, lease_ms=int(it.stages.lease * 1000))

    async def AllocateIds(self, request: pb.AllocateIdsRequest, context: Context) -> pb.AllocateIdsResponse:
        """Give ids."""
        it = await self._admitted(context)
        if request.count > IDS_MAX:
            raise InvalidArgument("too many ids in one request", hint="ask several times", limit=IDS_MAX)
        session = session_of(request)
        async with it.leadership.writing(self._used(it, session).token) as catalog:
            ids = await catalog.allocate(request.allocator, request.count)
        return pb.AllocateIdsResponse(first=ids.start, count=len(ids), news=self._news(it, request.base_upper))

    async def ConfirmLeadership(
        self, request: pb.ConfirmLeadershipRequest, context: Context
    ) -> pb.ConfirmLeadershipResponse:
        """Look at the shard whether a session may write."""
        it = await self._serving()
        session = session_of(request)
        await it.mirror.sync()
        it.leadership.look()
        await it.leadership.join(session.token)
        self._used(it, session)
        return pb.ConfirmLeadershipResponse(news=self._news(it, request.base_upper))

    async def AdvanceUpper(self, request: pb.AdvanceUpperRequest, context: Context) -> pb.AdvanceUpperResponse:
        """Make the upper at least a time."""
        it = await self._admitted(context)
        session, to = session_of(request), time_in(request, "to")
        async with it.leadership.writing(self._used(it, session).token) as catalog:
            await catalog.advance_upper(to)
        return pb.AdvanceUpperResponse(news=self._news(it, request.base_upper))

    async def PruneStorageUsage(
        self, request: pb.PruneStorageUsageRequest, context: Context
    ) -> pb.PruneStorageUsageResponse:
        """Retract measurements that are too old."""
        it = await self._admitted(context)
        session = session_of(request)
        retention = request.retention_ms if request.HasField("retention_ms") else None
        async with it.leadership.writing(self._used(it, session).token) as catalog:
            kept = await catalog.prune_storage_usage(retention, request.boot_ms)
        return pb.PruneStorageUsageResponse(kept=len(kept), news=self._news(it, request.base_upper))

    async def DumpRows(self, request: pb.DumpRowsRequest, context: object) -> AsyncIterator[pb.DumpRowsResponse]:
        """Rows as they are durable."""
        it = await self._of(request)
        read = await it.mirror.dump(kinds_in(request.kinds), consolidated=request.consolidated)
        for updates, last in pieces(read.updates):
            history = it.mirror.history if last else None
            yield pb.DumpRowsResponse(updates=updates, upper=read.upper, last=last, history=history)

    async def CheckUpgrade(self, request: pb.CheckUpgradeRequest, context: Context) -> pb.CheckUpgradeResponse:
        """What opening would change."""
        found = await (await self._serving()).durable.upgrade_check()
        return pb.CheckUpgradeResponse(found=found.found, current=found.current, changed=found.changed)

    async def EditRow(self, request: pb.EditRowRequest, context: Context) -> pb.EditRowResponse:
        """Change one object by hand."""
        it = await self._admitted(context)
        kind = kind_in(request.kind)
        value = None
        if request.HasField("value"):
            try:
                value = SIDES[kind.tag][1].decode(request.value)
            except (CorruptData, DecodeError) as error:
                raise InvalidArgument("no object of this kind", kind=kind, problem=error) from error
        previous = await it.leadership.edit(kind, key_in(kind, request.key), value)
        response = pb.EditRowResponse()
        if previous is not None:
            response.previous = SIDES[kind.tag][1].encode(previous)
        return response

    async def Execute(self, request: pb_ddl.ExecuteRequest, context: Context) -> pb_ddl.ExecuteResponse:
        """Carry out statements."""
        session = session_in(request, role_of(context))
        large = request.ByteSize() > STATEMENTS_ON_LOOP_BYTES
        statements = await self._runtime.offload(_statements_in, request) if large else _statements_in(request)
        token = Token.parse(request.token) if request.token else None
        it = await self._of(request)
        # SUBTLE: also the first attempt that comes may come again, at a later leader: a network may deliver it twice.
        repeated = request.repeated or token is not None
        outcome = await it.executing.execute(
            statements, session, token, history_in(request), seen_in(request), repeated=repeated
        )
        self._telemetry.count("persist_catalog_statements_total", by=len(statements))
        return outcome_message(outcome)

    async def Describe(self, request: pb_ddl.DescribeRequest, context: Context) -> pb_ddl.DescribeResponse:
        """One page of what is there."""
        return await (await self._serving()).describing.describe(request, role_of(context))

    async def _of(self, request: Message) -> Serving:
        """What it serves, if that is of the history the request is about. Raises HistoryRewound, Determinate."""
        it = await self._serving()
        await it.mirror.check_same(history_in(request))
        return it

    async def _admitted(self, context: Context) -> Serving:
        """What it serves, to roles that may write rows as they are. Raises PrivilegeMissing."""
        it = await self._serving()
        await it.describing.check_admin(role_of(context))
        return it

    def _used(self, it: Serving, session: WriteSession) -> WriteSession:
        """The session, which is used now. One that is not there is refused unless its token is what is wrong."""
        if it.leadership.own == session.token and it.leadership.role is CatalogRole.LEADER:
            it.sessions.get(session.session_id)
        return session

    def _news(self, it: Serving, base_upper: int) -> pb.CatalogNews:
        known = it.mirror.since(base_upper) if base_upper <= it.mirror.upper else None
        return news_message(it.mirror.upper, known)


def role_of(context: Context) -> str:
    """The role in whose name a call is made: metadata persist-role, or persist-role-bin for any text; empty: not said.

    Trusted as it comes: a caller that reaches this port may say any. Raises InvalidArgument.
    """
    for name, value in context.invocation_metadata() or ():
        if name in (ROLE_HEADER, f"{ROLE_HEADER}-bin"):
            try:
                return value if isinstance(value, str) else value.decode()
            except UnicodeDecodeError:
                raise InvalidArgument("the name of a role is text", hint="UTF-8", header=name) from None
    return ""


class Staged:
    """What stands for a transaction that was staged. ``assemble``: all of it, when it is asked for. ``kept``: the block
    until the end of which it stays."""

    def __init__(
        self,
        request: pb.CommitRequest,
        assemble: Callable[[], Awaitable[ReadyCommit]],
        kept: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Raises InvalidArgument, InvalidId."""
        stage_id, elements = stage_in(request.stage)
        if not request.token or not request.body or request.changes.kinds or request.footprint.keys:
            raise InvalidArgument(
                "what is staged is committed under a token", hint="give token and body, and leave out what was staged"
            )
        self.token = Token.parse(request.token)
        self.body = body_in(request, ())
        what = (stage_id, elements, time_in(request, "base_upper"), request.token, time_in(request, "ts"), self.body)
        self.name = sha256(repr(what).encode()).digest()
        self.base_upper = time_in(request, "base_upper")
        self._assemble, self._kept = assemble, kept

    async def whole(self) -> ReadyCommit:
        """See WantedCommit."""
        return await self._assemble()

    def kept(self) -> AbstractContextManager[None]:
        """See WantedCommit."""
        return self._kept()


def _statements_in(request: pb_ddl.ExecuteRequest) -> tuple[Statement, ...]:
    """What a request wants executed. Raises InvalidArgument, InvalidId, TypeNotSupported."""
    return tuple(map(statement_in, request.statements))


def _staged_in(request: pb.CommitRequest, pieces: Sequence[bytes]) -> ReadyCommit:
    return _commit_of(request, *whole(map(pb.StageChangesRequest.FromString, pieces)))


def _commit_in(request: pb.CommitRequest) -> ReadyCommit:
    """What a request wants committed. Raises InvalidArgument, InvalidId."""
    commit = _commit_of(request, changes_in(request.changes), footprint_in(request.footprint))
    # Made from all of it, and here, where that keeps no other waiting.
    commit.name  # noqa: B018
    return commit


def _commit_of(request: pb.CommitRequest, changes: Sequence[tuple[Row, int]], footprint: Footprint) -> ReadyCommit:
    commit = ReadyCommit(
        base_upper=time_in(request, "base_upper"),
        changes=changes,
        footprint=footprint,
        token=Token.parse(request.token) if request.token else None,
        ts=time_in(request, "ts"),
        body=body_in(request, changes),
    )
    if commit.token is not None:
        commit.footprint.keys.add((COMMIT, COMMIT.key(commit.token)))
    return commit
