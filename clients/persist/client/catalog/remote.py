"""RemoteCatalog: a catalog behind CatalogService, with transactions in this process's memory.

An open catalog has all objects here and follows the changes from the servers. A transaction runs here; what comes
of it goes to the leader with all it depends on, and the leader decides. Savepoints and catalogs open for reading need
no session. Source: design document 2; catalog-semantics.md sections 1.2 and 1.3; protos/persist/v1/catalog.proto.
"""

import contextlib
import weakref
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from persist.client.catalog.build_objects import load
from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.log.remote_log import RemoteLog, SeenUpper
from persist.client.catalog.opened import OpenedCatalog
from persist.client.catalog.port import CatalogUpdates, Dump, Freshness, Repair, check_freshness
from persist.client.catalog.preparing import prepare
from persist.client.remote.catalog import CatalogCalls
from persist.client.remote.channel import is_unimplemented
from persist.client.shard.handles import Closes
from persist.core.catalog.errors import Fenced, OutOfSync
from persist.core.catalog.kinds import AnyKind
from persist.core.catalog.leadership.commit_rules import commit_ts, committed_at
from persist.core.catalog.leadership.fencing import FenceClaim
from persist.core.catalog.leadership.migrations import Upgrade
from persist.core.catalog.objects import FenceToken, StorageUsageKey
from persist.core.catalog.open_rules import Mode, check_open
from persist.core.catalog.prepared import Prepared
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.transaction import Batch, CatalogTransaction
from persist.core.ids import Token
from persist.core.release import RELEASE
from persist.errors import Indeterminate, InvalidArgument, LeaseExpired, LocationError, PersistError
from persist.retry.deadline import LAST_ATTEMPT_SECONDS, Deadline
from persist.runtime import Runtime, system
from persist.settings import Settings
from persist.typed import AnyKey, AnyMessage, AnyValue
from persist.v1 import catalog_pb2 as pb
from persist.wire.catalog.migrations import MIGRATIONS
from persist.wire.catalog.rows import CODEC, SIDES
from persist.wire.catalog.rpc import (
    REQUEST_ID_BYTES,
    Changes,
    WriteSession,
    answers,
    changes_message,
    news_of,
    optional_token,
    requests,
    session_message,
    session_of,
    token_message,
    updates_of,
)
from persist.wire.catalog.rpc_footprint import footprint_message, key_bytes
from persist.wire.catalog.rpc_stage import is_staged, pieces_of

STAGE_AGAIN: Final = 2
"""How often what a server forgot before it was committed is sent again."""


@dataclass(slots=True)
class _Staged:
    """A transaction in pieces. ``whole``: a server of an earlier release takes it in one message, if it fits.

    ``deadline``: of all that is asked for it from here on, begun anew with each piece that was taken, as that is
    progress, and with the commit.
    """

    prepared: Prepared | None
    changes: Changes
    pieces: list[pb.StageChangesRequest]
    deadline: Deadline
    whole: bool = False

    @property
    def left(self) -> float:
        """Seconds."""
        return max(self.deadline.remaining(), LAST_ATTEMPT_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogStatus:
    """What a server is. ``role``: follower, leader or fenced. ``leader``: where the leader listens, if that is known.

    ``token`` is that of the leader, ``own`` the one this server led with.
    """

    environment: str
    role: str
    initialized: bool
    upper: int
    token: FenceToken | None
    own: FenceToken | None
    leader: str
    sessions: int


class RemoteCatalog(Closes):
    """The OpenableCatalog over one or several CatalogService endpoints of one environment.

    ``endpoints``: HOST:PORT, comma separated. Followers serve reads; what writes finds the leader among them, and leads
    with any that may when there is none. Raises InvalidArgument (no endpoint, or no catalog), LocationError.
    """

    _noun = "catalog"
    _again = "ask the client for it again"

    def __init__(
        self,
        endpoints: str,
        *,
        environment: str = "",
        settings: Settings | None = None,
        runtime: Runtime | None = None,
        content_version: str = RELEASE,
    ) -> None:
        self._calls = CatalogCalls(endpoints, settings=settings or Settings(), runtime=runtime or system())
        self._environment = environment
        self._content_version = content_version
        # Who drops one, as when it was fenced and is opened again, keeps nothing of it here.
        self._opened = weakref.WeakSet[RemoteOpened]()
        self._seen = SeenUpper()
        self._vetted = False

    async def status(self) -> CatalogStatus:
        """What one of the servers is. Raises InvalidArgument when it serves another environment."""
        told = await self._calls.status()
        if self._environment and told.environment != self._environment:
            raise InvalidArgument(
                "this server serves another environment", asked=self._environment, got=told.environment[:80]
            )
        self._vetted = True
        return CatalogStatus(
            environment=told.environment,
            role=pb.CatalogRole.Name(told.role).removeprefix("CATALOG_ROLE_").lower(),
            initialized=told.initialized,
            upper=told.upper,
            token=optional_token(told, "token"),
            own=optional_token(told, "own"),
            leader=told.leader,
            sessions=told.sessions,
        )

    async def is_initialized(self) -> bool:
        """See OpenableCatalog."""
        return (await self.status()).initialized

    async def fence_token(self) -> FenceToken | None:
        """See OpenableCatalog."""
        return (await self.status()).token

    async def open(self, generation: int) -> "RemoteOpened":
        """See OpenableCatalog. A server leads; sessions that wrote through it until now are fenced."""
        check_open(Mode.WRITABLE, generation, initialized=True)
        with requests():
            request = pb.OpenSessionRequest(generation=generation)
        return await self._open(request)

    async def join(self) -> "RemoteOpened":
        """Write beside others, at the epoch there is. Raises NotWritable when no server leads, and as ``open``."""
        return await self._open(pb.OpenSessionRequest())

    async def open_savepoint(self, generation: int, *, allow_uninitialized: bool = False) -> OpenedCatalog:
        """See OpenableCatalog."""
        opening = await self._opening()
        return await opening.open_savepoint(generation, allow_uninitialized=allow_uninitialized)

    async def open_read_only(self, *, freshness: Freshness = Freshness.NEWEST) -> OpenedCatalog:
        """See OpenableCatalog. Any of the servers answers; where less than the newest is enough, from its memory."""
        opening = await self._opening(check_freshness(freshness))
        with opening.log.counting():
            return await opening.open_read_only()

    async def upgrade_check(self) -> Upgrade:
        """See OpenableCatalog. What the server's release would change."""
        await self.status()
        told = await self._calls.read("CheckUpgrade", pb.CheckUpgradeRequest())
        return Upgrade(told.found, told.current, tuple(told.changed))

    async def dump(self, *, consolidated: bool = True, kinds: Iterable[str] | None = None) -> Dump:
        """See OpenableCatalog."""
        return await (await self._opening()).dump(consolidated=consolidated, kinds=kinds)

    async def changes(self, lower: int, *, timeout: float | None = None) -> AsyncGenerator[CatalogUpdates, None]:
        """All updates from ``lower`` (an upper returned before) on, and how far they go, until ``timeout`` or closed.

        None is missing or returned twice, whichever servers answer. Raises NotReadable when they are forgotten: open a
        catalog and go on from its upper. Raises LocationError when no server returns any for ``settings.timeout_ms``.
        """
        await self.status()
        upper = lower

        def opened(seconds: float) -> AsyncGenerator[CatalogUpdates, None]:
            return self._told(pb.WatchChangesRequest(lower=upper, follow=True), seconds)

        async with aclosing(self._calls.watching(opened, timeout=timeout)) as feed:
            async for told in feed:
                if told.upper > upper:
                    upper = told.upper
                    yield told

    async def edit(self, kind: AnyKind, key: AnyKey, value: AnyValue) -> AnyValue:
        """See OpenableCatalog. Indeterminate when the answer is lost: look what is there before repeating it."""
        await self.status()
        request = pb.EditRowRequest(kind=kind.tag, key=key_bytes(kind, key))
        if value is not None:
            request.value = CODEC.encode(kind.tag, key, value).value
        try:
            told = await self._calls.write("EditRow", request, once=True)
        except Indeterminate as error:
            # What was there before is gone with the answer: repeated it would be what this call has written.
            raise Indeterminate(error.message, hint="look what is there, and edit again", **error.details) from error
        with answers():
            return SIDES[kind.tag][1].decode(told.previous) if told.HasField("previous") else None

    async def repair(self, *, commit: bool = False, token: FenceToken | None = None) -> Repair:
        """See OpenableCatalog. No server of a damaged catalog does anything with it."""
        raise InvalidArgument(
            "a catalog is repaired where its rows are",
            hint="use client.catalog(environment) without endpoints, or persist catalog repair",
            commit=commit,
        )

    async def close(self) -> None:
        """See OpenableCatalog. What it opened is of no use any more."""
        for opened in list(self._opened):
            await opened.close()
        await self._calls.close()

    def __repr__(self) -> str:
        return f"<Catalog {self._environment or 'of any environment'} at its servers>"

    async def _told(self, request: pb.WatchChangesRequest, seconds: float) -> AsyncGenerator[CatalogUpdates, None]:
        """What one feed returns, put together from its pieces."""
        pieces = list[Any]()
        async with aclosing(self._calls.watch(request, seconds)) as messages:
            async for message in messages:
                pieces.append(message)
                if message.last:
                    with answers():
                        told = CatalogUpdates(
                            [each for piece in pieces for each in updates_of(piece.updates)], message.upper
                        )
                    pieces.clear()
                    yield told

    async def _opening(self, freshness: Freshness = Freshness.NEWEST) -> "_Opening":
        if freshness is Freshness.NEWEST or not self._vetted:
            await self.status()
        log = RemoteLog(self._calls, self._seen, freshness)
        opening = _Opening(log, content_version=self._content_version)
        opening._belongs_to = self
        return opening

    async def _open(self, request: pb.OpenSessionRequest) -> "RemoteOpened":
        opening = await self._opening()
        told = await self._calls.lead(request)
        with answers():
            session = session_of(told)
        opened = await opening.writable(self._calls, session)
        self._opened.add(opened)
        return opened


class _Opening(DurableCatalog):
    """Opens what a log of rows returns, as a DurableCatalog does."""

    def __init__(self, log: RemoteLog, *, content_version: str) -> None:
        super().__init__(log, content_version=content_version)
        self.log = log

    async def writable(self, calls: CatalogCalls, session: WriteSession) -> "RemoteOpened":
        """The catalog of a session. Raises Fenced, IncompatibleDataVersion (the server has another release)."""
        with self.log.counting():
            raw = await self._raw()
        claim = FenceClaim(session.token.deploy_generation, session.token, raw.incarnation)
        fenced = claim.fenced_by(raw.token, raw.incarnation)
        if fenced is not None:
            raise fenced
        self._check_versions(raw)
        self._check_current(raw)
        snapshot = await load(CODEC, raw)
        opened = RemoteOpened(self.log, calls, session, snapshot, upper=raw.upper, claim=claim)
        opened._belongs_to = self
        return opened


class RemoteOpened(OpenedCatalog):
    """The ReadWriteCatalog of a session. Reads and follows like any other; the leader decides what is committed."""

    def __init__(
        self,
        log: RemoteLog,
        calls: CatalogCalls,
        session: WriteSession,
        snapshot: Snapshot,
        *,
        upper: int,
        claim: FenceClaim,
    ) -> None:
        super().__init__(
            log,
            CODEC,
            snapshot,
            mode=Mode.WRITABLE,
            upper=upper,
            version=MIGRATIONS.current,
            claim=claim,
            token=session.token,
        )
        self._rows = log
        self._calls = calls
        self._session: WriteSession | None = session
        self._own = session.token

    async def commit(self, transaction: CatalogTransaction, *, ts: int = 0) -> int:
        """See ReadWriteCatalog. A large one is sent in pieces beforehand, while others go on, of this session too."""
        staged = None
        if transaction.is_large and await self._prepare(transaction):
            prepared = transaction.batch().prepared
            if prepared is not None and is_staged(prepared.rows):
                staged = await self._stage(transaction, prepared, prepared.rows)
        async with self._turn:
            return await self._commit(transaction, ts, staged)

    async def allocate(self, name: str, count: int = 1) -> range:
        """See ReadWriteCatalog."""
        with requests():
            request = pb.AllocateIdsRequest(allocator=name, count=count)
        async with self._turn:
            told = await self._write("AllocateIds", request)
            return range(told.first, told.first + told.count)

    async def confirm_leadership(self) -> None:
        """See ReadWriteCatalog."""
        async with self._turn:
            await self._write("ConfirmLeadership", pb.ConfirmLeadershipRequest())
            self._check()

    async def advance_upper(self, to: int) -> None:
        """See ReadWriteCatalog."""
        with requests():
            request = pb.AdvanceUpperRequest(to=to)
        async with self._turn:
            await self._write("AdvanceUpper", request)

    async def prune_storage_usage(self, retention_ms: int | None, boot_ms: int) -> list[StorageUsageKey]:
        """See ReadWriteCatalog."""
        with requests():
            request = pb.PruneStorageUsageRequest(retention_ms=retention_ms, boot_ms=boot_ms)
        async with self._turn:
            await self._write("PruneStorageUsage", request)
        return await self.storage_usage()

    async def close(self) -> None:
        """See ReadOnlyCatalog. Ends the session."""
        session, self._session = self._session, None
        if session is not None:
            request = pb.CloseSessionRequest(session=session_message(session))
            with contextlib.suppress(PersistError):
                await self._calls.write("CloseSession", request, timeout=1.0)

    # ---- inside, with the turn --------------------------------------------------------------------------------------

    async def _commit(self, transaction: CatalogTransaction, ts: int = 0, staged: "_Staged | None" = None) -> int:
        self._check()
        transaction.check_made_from(self._snapshot)
        done = committed_at(self._snapshot, transaction, CODEC)
        if done is not None:
            return done + 1
        await prepare(transaction, CODEC)
        batch = transaction.batch()
        commit_ts(self._mode, batch, self._snapshot, ts, self._upper)
        changes = Batch(batch.changes, batch.version, prepared=batch.prepared).rows(CODEC, 0)
        if not changes:
            return await self._confirm(transaction)
        try:
            if is_staged(changes):
                if staged is None or staged.prepared is not batch.prepared:
                    staged = await self._stage(transaction, batch.prepared, changes)
                told = await self._commit_staged(transaction, staged, ts)
            else:
                told = await self._write("Commit", self._request(transaction, changes, ts), settled=bool(batch.token))
        except OutOfSync:
            # A repetition finds what came first.
            await self._follow()
            raise
        except Indeterminate as error:
            if transaction.token is not None:
                raise
            raise Indeterminate(
                error.message, hint="look whether it is there; with a token it is repeated safely", **error.details
            ) from error
        committed: int = told.ts
        return committed + 1

    def _request(self, transaction: CatalogTransaction, changes: Changes, ts: int) -> pb.CommitRequest:
        """What asks to commit. Without changes: those that were staged."""
        with requests():
            request = pb.CommitRequest(
                request_id=self._calls.runtime.random_bytes(REQUEST_ID_BYTES),
                token=transaction.token or "",
                body=transaction.body(CODEC) if transaction.token else b"",
                ts=ts,
            )
            if changes:
                request.changes.CopyFrom(changes_message(changes))
                request.footprint.CopyFrom(footprint_message(transaction.footprint))
        return request

    async def _stage(self, transaction: CatalogTransaction, prepared: Prepared | None, changes: Changes) -> "_Staged":
        """A transaction in pieces, which the leader has, unless it is of an earlier release, or leads no more."""
        if transaction.token is None:
            # So that every later leader knows its outcome, whatever is lost on the way.
            transaction.name(Token.of(self._calls.runtime.random_bytes(16)))
        offload, stage_id = self._calls.runtime.offload, self._calls.runtime.random_bytes(REQUEST_ID_BYTES)
        with requests():
            footprint = await offload(footprint_message, transaction.footprint)
            pieces = await offload(pieces_of, stage_id, changes, footprint)
            staged = _Staged(prepared, changes, pieces, self._calls.deadline(None))
        await self._send(staged)
        return staged

    async def _send(self, staged: "_Staged") -> None:
        try:
            # SUBTLE: an earlier attempt may have committed it: once fenced, ask a later leader for that.
            with contextlib.suppress(Fenced, LeaseExpired):
                for piece in staged.pieces:
                    piece.session.CopyFrom(self._named())
                    await self._calls.write("StageChanges", piece, timeout=staged.left)
                    staged.deadline = self._calls.deadline(None)
        except InvalidArgument as error:
            if not is_unimplemented(error):
                raise
            staged.whole = True

    async def _commit_staged(self, transaction: CatalogTransaction, staged: "_Staged", ts: int) -> AnyMessage:
        """Ask to commit what was staged. What was forgotten meanwhile is sent again."""
        staged.deadline = self._calls.deadline(None)
        if staged.whole:
            request = self._request(transaction, staged.changes, ts)
            return await self._write("Commit", request, settled=True, timeout=staged.left)
        request = self._request(transaction, (), ts)
        request.stage.CopyFrom(staged.pieces[0].stage)
        for _ in range(STAGE_AGAIN):
            with contextlib.suppress(LeaseExpired):
                return await self._write("Commit", request, settled=True, timeout=staged.left)
            await self._begin_session(timeout=staged.left)
            await self._send(staged)
        return await self._write("Commit", request, settled=True, timeout=staged.left)

    async def _confirm(self, transaction: CatalogTransaction) -> int:
        """The upper up to which a transaction without changes is true. Raises OutOfSync, Fenced."""
        told = await self._write("ConfirmLeadership", pb.ConfirmLeadershipRequest())
        if self._upper < told.news.upper:
            await self._follow()
        self._check()
        transaction.batch()
        return self._upper

    async def _write(
        self, rpc: str, request: AnyMessage, *, settled: bool = False, timeout: float | None = None
    ) -> AnyMessage:
        """Ask the leader in this session, and take over what it returns. Raises Fenced, for ever."""
        self._check()
        base = request.base_upper = self._upper
        try:
            told = await self._in_session(rpc, request, settled=settled, timeout=timeout)
        except Fenced as error:
            raise self._end(error) from error
        with answers():
            upper, updates = news_of(told.news)
        self._rows.tell(base, updates, upper)
        # SUBTLE: it is done, whatever keeps this catalog from showing it: the next call raises that.
        with contextlib.suppress(Fenced, LocationError):
            await self._follow()
        return told

    async def _in_session(self, rpc: str, request: AnyMessage, *, settled: bool, timeout: float | None) -> AnyMessage:
        deadline = self._calls.deadline(timeout)
        request.session.CopyFrom(self._named())
        try:
            return await self._calls.write(rpc, request, settled=settled, timeout=timeout)
        except LeaseExpired:
            if request.DESCRIPTOR.name == "CommitRequest" and request.HasField("stage"):
                raise
            await self._begin_session(timeout=max(deadline.remaining(), LAST_ATTEMPT_SECONDS))
            request.session.CopyFrom(self._named())
            left = max(deadline.remaining(), LAST_ATTEMPT_SECONDS)
            return await self._calls.write(rpc, request, settled=settled, timeout=left)

    def _named(self) -> pb.CatalogSession:
        return session_message(self._session or WriteSession("none", self._own))

    async def _begin_session(self, *, timeout: float) -> None:
        """The one before was not used for long. While no other process led, another one is as good."""
        try:
            told = await self._calls.lead(
                pb.OpenSessionRequest(token=token_message(self._own), history=self._rows.history), timeout=timeout
            )
        except Fenced as error:
            raise self._end(error) from error
        with answers():
            self._session = session_of(told)
