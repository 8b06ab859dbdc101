"""What sessions write: checked against what was committed meanwhile, and committed once however often it is asked for.

Source: catalog-semantics.md sections 1.2.6, 1.2.7 and 1.3.
"""

import asyncio
import copy
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, Protocol

from persist.client.catalog.gc_pause import no_collection
from persist.client.catalog.opened import OpenedCatalog
from persist.client.catalog.port import ReadWriteCatalog
from persist.client.catalog.preparing import in_turns, prepare
from persist.core.cached import cached_property
from persist.core.catalog.conflicts import Footprint
from persist.core.catalog.errors import Fenced, NotWritable, OutOfSync
from persist.core.catalog.fingerprints import BODY_BYTES, first_outcome
from persist.core.catalog.kinds import COMMIT, AnyKind
from persist.core.catalog.objects import CommitKey
from persist.core.catalog.prepared import LARGE
from persist.core.catalog.rows import Row, RowCodec
from persist.core.catalog.snapshot import Change
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import Unit
from persist.core.ids import Token
from persist.errors import CorruptData, Determinate, InvalidArgument, LocationError, PersistError
from persist.typed import AnyKey, AnyValue
from persist.wire.catalog.rpc import WriteSession
from persist.wire.catalog.rpc_footprint import Touched
from persist_catalog.conflicts import Conflicts, sides, touched_by
from persist_catalog.leadership import Leadership
from persist_catalog.mirror import Mirror
from persist_catalog.passed import hashed, in_steps
from persist_catalog.sessions import OpenSession, ServedSessions

GROUP_MAX: Final = 64
"""Commits in one append."""


@dataclass(frozen=True)
class ReadyCommit:
    """What came of a transaction that ran at ``base_upper``. ``body`` stands for what it wants."""

    base_upper: int
    changes: Sequence[tuple[Row, int]]
    footprint: Footprint
    token: Token | None
    ts: int
    body: bytes

    @cached_property
    def name(self) -> bytes:
        """What stands for all of it: a request that is repeated has the same."""
        return sha256(repr((self.base_upper, sorted(self.changes), self.token, self.ts, self.body)).encode()).digest()

    async def whole(self) -> "ReadyCommit":
        """See WantedCommit."""
        return self

    def kept(self) -> AbstractContextManager[None]:
        """See WantedCommit."""
        return nullcontext()


class WantedCommit(Protocol):
    """What a request wants committed: all of it, or what stands for what was staged."""

    @property
    def base_upper(self) -> int:
        """Where its transaction began."""
        ...

    @property
    def token(self) -> Token | None:
        """Under which it is committed once."""
        ...

    @property
    def body(self) -> bytes:
        """What stands for what it wants."""
        ...

    @property
    def name(self) -> bytes:
        """What stands for the request."""
        ...

    async def whole(self) -> ReadyCommit:
        """All of it. Raises LeaseExpired when it is not here, InvalidArgument."""
        ...

    def kept(self) -> AbstractContextManager[None]:
        """What is here of it stays until the end of the block. Raises nothing."""
        ...


@dataclass(frozen=True, eq=False)
class Waiting:
    """A commit that waits for its turn, and for what comes of it."""

    session: OpenSession
    request_id: bytes
    commit: ReadyCommit
    outcome: "asyncio.Future[int]"

    def settle(self, ts: int) -> None:
        """It was committed then."""
        if not self.outcome.done():
            self.outcome.set_result(ts)

    def refuse(self, error: BaseException) -> None:
        """It was not, or that is not known."""
        if not self.outcome.done():
            # Each has one of its own: a traceback belongs to one caller.
            self.outcome.set_exception(copy.copy(error))


class Writes:
    """Commits of sessions, in the order they come in, as many by one append as wait for it."""

    def __init__(self, leadership: Leadership, mirror: Mirror, sessions: ServedSessions, codec: RowCodec) -> None:
        self._leadership = leadership
        self._mirror = mirror
        self._sessions = sessions
        self._codec = codec
        self._conflicts = Conflicts(mirror, codec)
        self._one_large = asyncio.Lock()
        self._waiting: list[Waiting] = []
        self._turns: asyncio.Task[None] | None = None

    async def commit(self, session: WriteSession, request_id: bytes, wanted: WantedCommit, *, size: int = 0) -> int:
        """When it was committed, now or by an earlier call. Raises OutOfSync, Fenced, NotWritable, LeaseExpired,
        Overloaded. ``size``: bytes of the request.

        A token that was committed is known to every later leader, so it is looked for before the session is. A request
        without one is committed under its own.
        """
        name, wanted = wanted.name, _owned(wanted, session.session_id, request_id)
        opened = self._sessions.find(session.session_id)
        if opened is None or opened.token != session.token:
            if (done := self._done(wanted)) is not None:
                return done
            try:
                await self._leadership.join(session.token)
            except (Fenced, NotWritable):
                if (done := self._done(wanted)) is not None:
                    return done
                raise
            opened = self._sessions.get(session.session_id)
        the_session = opened
        ts: int = await self._sessions.once(
            the_session, request_id, name, lambda: self._commit(the_session, request_id, wanted), size=size
        )
        return ts

    async def _commit(self, session: OpenSession, request_id: bytes, wanted: WantedCommit) -> int:
        try:
            return await self._in_turn(session, request_id, wanted)
        except (Fenced, NotWritable):
            # That says nothing of an earlier attempt, of which nothing more can come now.
            await self._mirror.sync()
            done = await self._known(session, request_id, wanted)
            if done is None:
                raise
            return done

    async def _in_turn(self, session: OpenSession, request_id: bytes, wanted: WantedCommit) -> int:
        if not isinstance(wanted, ReadyCommit) or len(wanted.changes) >= LARGE:
            return await self._commit_large(session, request_id, wanted)
        one = Waiting(session, request_id, wanted, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        if self._turns is None or self._turns.done():
            self._turns = asyncio.ensure_future(self._take_turns())
        return await one.outcome

    async def _take_turns(self) -> None:
        """Commit all that waits: while one append is under way, what the next one takes comes together."""
        while self._waiting:
            token = self._waiting[0].session.token
            group = [each for each in self._waiting if each.session.token == token][:GROUP_MAX]
            self._waiting = [each for each in self._waiting if each not in group]
            try:
                async with self._leadership.writing(token) as catalog:
                    await self._commit_group(catalog, group)
            except BaseException as error:
                for each in group:
                    each.refuse(error)
                if not isinstance(error, Exception):
                    raise

    async def _commit_group(self, catalog: ReadWriteCatalog, group: Sequence["Waiting"]) -> None:
        """Those that depend on nothing that comes before them in the group are one append, at times of their own."""
        left = list(group)
        if len(group) > 1 and isinstance(catalog, OpenedCatalog):
            members, touched = list[tuple[Waiting, CatalogTransaction]](), Touched()
            for each in group:
                transaction = await self._member(catalog, each, touched)
                members += [(each, transaction)] if transaction is not None else []
            try:
                found = await catalog.commit_all([(transaction, each.commit.ts) for each, transaction in members])
            except LocationError as error:
                _without_answer(group, {id(each) for each, _ in members}, error)
                return
            for (each, _), upper in zip(members, found, strict=True):
                if isinstance(upper, int):
                    each.settle(upper - 1)
                elif upper is not None:
                    each.refuse(upper)
            left = [each for each in group if not each.outcome.done()]
        for each in left:
            try:
                each.settle(await self._commit_one(catalog, each))
            except Fenced:
                raise
            except PersistError as error:
                each.refuse(error)

    async def _member(self, catalog: ReadWriteCatalog, one: "Waiting", touched: Touched) -> CatalogTransaction | None:
        """What it wants, if that is apart from what was ``touched``, to which it adds. None: it is done, or waits."""
        if one.request_id in one.session.unsure:
            return None
        try:
            done = await self._known(one.session, one.request_id, one.commit)
            if done is not None:
                one.settle(done)
                return None
            await self._caught_up(catalog, one.commit)
            await self._check(one.commit)
            transaction = await self._transaction(catalog, one.commit)
        except Fenced:
            raise
        except PersistError as error:
            one.refuse(error)
            return None
        if touched.met_by(one.commit.footprint) or touched.met_by(transaction.footprint):
            return None
        for change in transaction.batch().changes:
            touched.add(change)
        if one.commit.token is not None:
            touched.add(Change(COMMIT, CommitKey(one.commit.token), None, COMMIT.value(0)))
        return transaction

    async def _commit_one(self, catalog: ReadWriteCatalog, one: "Waiting") -> int:
        async def work() -> int:
            await self._caught_up(catalog, one.commit)
            await self._check(one.commit)
            transaction = await self._transaction(catalog, one.commit)
            return await catalog.commit(transaction, ts=one.commit.ts) - 1

        return await self._once(one.session, one.request_id, one.commit, work)

    async def _once(
        self, session: OpenSession, request_id: bytes, wanted: WantedCommit, work: Callable[[], Awaitable[int]]
    ) -> int:
        """When it was committed: by an earlier attempt, or by ``work``. Raises as that.

        SUBTLE: an earlier attempt without an answer may happen until ``work`` has appended, which meets it then.
        """
        done = await self._known(session, request_id, wanted)
        if done is not None:
            return done
        try:
            return await work()
        except OutOfSync:
            done = await self._known(session, request_id, wanted)
            if done is None:
                raise
            return done

    async def _commit_large(self, session: OpenSession, request_id: bytes, wanted: WantedCommit) -> int:
        """Commit what is made ready beside others, who get their turns; then only what is new is looked at again.

        One at a time: it takes many times the memory of its rows. What it needs waits with it, so that each comes to
        its turn, and is refused for nothing but what it depends on.
        """
        with wanted.kept(), self._conflicts.held(wanted.base_upper):
            async with self._one_large:
                with no_collection():
                    return await self._once(session, request_id, wanted, lambda: self._made_ready(session, wanted))

    async def _made_ready(self, session: OpenSession, wanted: WantedCommit) -> int:
        async with self._leadership.writing(session.token) as catalog:
            pass
        commit = await wanted.whole()
        await self._caught_up(catalog, commit)
        looked = self._mirror.upper
        await self._check(commit)
        transaction = await self._transaction(catalog, commit)
        await prepare(transaction, self._codec)
        touched = await touched_by(transaction.batch().changes)
        hashes = await hashed(touched)
        # SUBTLE: the token names the very catalog that made the transaction: each opening has another one.
        staged = catalog.staged(transaction) if isinstance(catalog, OpenedCatalog) else nullcontext()
        async with staged, self._leadership.writing(session.token) as catalog:
            done = self._done(commit)
            if done is None:
                await self._caught_up(catalog, commit)
                await self._check(commit, looked)
                done = await catalog.commit(transaction, ts=commit.ts) - 1
                self._conflicts.keep(done, touched, hashes)
                # Before the next change, which it may leave no room for.
                await self._conflicts.take(self._leadership.begun)
            return done

    async def _known(self, session: OpenSession, request_id: bytes, wanted: WantedCommit) -> int | None:
        """When it was committed, by an earlier attempt or under its token."""
        done = self._done(wanted)
        if done is None and request_id in session.unsure:
            await self._mirror.sync()
            done = self._done(wanted)
        return done

    async def _caught_up(self, catalog: ReadWriteCatalog, commit: ReadyCommit) -> None:
        """Have the mirror, which is asked, and the catalog, which commits, know the same."""
        if self._mirror.upper < max(catalog.upper, commit.base_upper):
            await self._mirror.sync()
        if catalog.upper < self._mirror.upper:
            await catalog.confirm_leadership()

    def _done(self, commit: WantedCommit) -> int | None:
        """When its token was committed, as far as the leader knows. Raises InvalidArgument: with another body."""
        if commit.token is None:
            return None
        row = self._codec.encode(COMMIT.tag, CommitKey(commit.token), COMMIT.value(0))
        known = self._mirror.raw.row(row)
        return None if known is None else first_outcome(commit.token, self._codec.decode(known)[1], commit.body)

    async def _check(self, commit: ReadyCommit, looked: int = 0) -> None:
        """Raise OutOfSync if something was committed from the base on that the transaction depends on.

        ``looked``: what was committed before matters not.

        Raises InvalidArgument for a base of another epoch, or one that was never returned.
        """
        if commit.base_upper < self._leadership.begun:
            raise InvalidArgument(
                "a transaction of an earlier epoch",
                hint="make a new one from what is there now; nothing was changed",
                base_upper=commit.base_upper,
                begun=self._leadership.begun,
            )
        lower = max(looked, commit.base_upper)
        found = await self._conflicts.met(commit.footprint, lower, self._leadership.begun)
        if found is None:
            raise OutOfSync(
                "too much was committed meanwhile", hint="run the transaction again", updates="many", keys="unknown"
            )
        count, met = found
        if met:
            raise self._out_of_sync(count, ", ".join(f"{tag} {key}" for tag, key in met[:10]))

    async def _transaction(self, catalog: ReadWriteCatalog, commit: ReadyCommit) -> CatalogTransaction:
        """The transaction again, with all rules that hold for any sender. Raises OutOfSync, InvalidArgument."""
        transaction = catalog.transaction(token=commit.token)
        # SUBTLE: what this leader appended without an answer comes to light in the commit, after ``_check``.
        transaction.carry(commit.footprint, commit.body)
        there, stale = self._mirror.raw.rows, []
        wanted: defaultdict[AnyKind, list[tuple[Any, Any]]] = defaultdict(list)
        async for kind, key_bytes, before, after in in_steps(sides(commit.changes)):
            key = self._object(kind, key_bytes, before if after is None else after)[0]
            # What is found here is so until the commit, or it is found out then, whatever the footprint said.
            commit.footprint.keys.add((kind, key))
            if kind.append_only:
                await self._append_only(transaction, kind, key, key_bytes, gone=after is None)
            elif there.get(kind.tag, {}).get(key_bytes) != before:
                stale.append(f"{kind} {key}")
            else:
                value = None if after is None else self._object(kind, key_bytes, after)[1]
                wanted[kind].append((key, value))
        if stale:
            raise self._out_of_sync(len(stale), ", ".join(stale[:10]))
        for kind, pairs in wanted.items():
            await in_turns(transaction.setting(kind, pairs))
        return transaction

    async def _append_only(
        self, transaction: CatalogTransaction, kind: AnyKind, key: object, key_bytes: bytes, *, gone: bool
    ) -> None:
        if not gone:
            transaction.insert(kind, key, Unit())
            return
        durable = await self._mirror.dump([kind.tag], consolidated=True)
        if not any(row.key == key_bytes for row, _, _ in durable.updates):
            raise self._out_of_sync(1, f"{kind} {key}")
        transaction.retract(kind, key)

    def _object(self, kind: AnyKind, key: bytes, value: bytes | None) -> tuple[AnyKey, AnyValue]:
        try:
            return self._codec.decode(Row(kind.tag, key, value or b""))
        except CorruptData as error:
            raise InvalidArgument("no object of this kind", kind=kind, problem=error.message) from error

    def _out_of_sync(self, updates: int, keys: str) -> OutOfSync:
        return OutOfSync(
            "the catalog was changed meanwhile",
            hint="run the transaction again",
            updates=updates,
            upper=self._mirror.upper,
            keys=keys,
        )


def _owned(wanted: WantedCommit, session_id: str, request_id: bytes) -> WantedCommit:
    """The same under a token, by which alone it is known whether it was committed: its own, where it was given none.

    SUBTLE: others may want the very same, such as to count from 1 to 2, and be in doubt, too. The session's id was
    drawn at random, and the token is the same for every repetition, also at a later leader.
    """
    if not isinstance(wanted, ReadyCommit) or wanted.token is not None:
        return wanted
    token = Token.named("persist.catalog.request", session_id, request_id.hex())
    return replace(wanted, token=token, body=wanted.name[:BODY_BYTES])


def _without_answer(group: Sequence[Waiting], appended: Collection[int], error: LocationError) -> None:
    """Refuse a group whose append has no answer: those that were not in it did not happen, whatever came of it."""
    for each in group:
        if error.determinate or id(each) in appended:
            each.refuse(error)
        else:
            each.refuse(Determinate("what came before it in its turn has no answer yet", hint="retry"))
