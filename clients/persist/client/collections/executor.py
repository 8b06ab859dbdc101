"""Executor: statements that define, carried out by the leader of a catalog, each request once.

What keeps history longer is done before the commit, what gives it up after: a crash in between leaves history too long,
and never too short. A request whose statements lost against a commit is planned again. Positions that move, of holds
and cursors, wait a little and go together: see ``advances``. Source: collections: the flow of DDL; docs/catalog.md.
"""

import asyncio
import contextlib
import copy
import logging
from collections import OrderedDict
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from persist.client.catalog.port import ReadWriteCatalog
from persist.client.collections.advances import Advances, Asked
from persist.client.collections.moving import BEFORE, OF_ALL, Moving, other_request, refused_before
from persist.client.collections.ports import UNFIT, Storage
from persist.core.catalog.ddl.asking.outcomes import made_key, made_of, made_text
from persist.core.catalog.ddl.asking.seen import SEEN_OF_MOVE_MAX, Seen, checking_seen
from persist.core.catalog.ddl.asking.unreadable import unreadable
from persist.core.catalog.ddl.bootstrap import bootstrap
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.effects import Effects, Executed
from persist.core.catalog.ddl.plan import Planned, planned_in_steps, touched
from persist.core.catalog.ddl.planning.context import UNASKED
from persist.core.catalog.ddl.planning.creating import gone_key
from persist.core.catalog.ddl.statements import Acknowledge, AdvanceHold, Statement, tag_of
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import Fenced, NotWritable, OutOfSync, UnknownObject
from persist.core.catalog.fingerprints import first_outcome, refused_body
from persist.core.catalog.kinds import COMMIT, ITEM, SETTING
from persist.core.catalog.objects import CommitKey, ItemKey, Setting
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import Id
from persist.core.ids import ShardId, Token
from persist.errors import Indeterminate, InvalidArgument, LocationError, Overloaded, PersistError
from persist.retry.deadline import Backoff, Deadline
from persist.retry.tasks import Tasks, outcome_of
from persist.runtime import Runtime
from persist.settings import Settings
from persist.wire.catalog.ddl import DdlOutcome, weighed

STATEMENTS_MAX: Final = 1_000
"""In one request."""
REMEMBERED_MAX: Final = 10_000
REMEMBERED_BYTES_MAX: Final = 4 << 20
"""Outcomes that this process returns again, and bytes of them; the catalog knows later that there was one."""
WORK_BYTES_MAX: Final = 8 << 20
"""Bytes of requests that are worked on, or wait for it, also when their callers gave up: their statements take up to
forty times as much. One is let in whatever its size."""
PLANNING_SECONDS: Final = 0.02
"""After which whatever else this process does has its turn."""
_EXECUTED_BYTES: Final = 512
_RETRY_MS: Final = 500
_log = logging.getLogger("persist.control")

_MOVES: Final = (AdvanceHold, Acknowledge)
"""Small, and asked for often."""


@dataclass(frozen=True, slots=True)
class _Request:
    """``body`` stands for what it wants; ``repeated``: an attempt before this one may still come."""

    statements: tuple[Statement, ...]
    session: Session
    token: Token
    body: bytes
    seen: tuple[Seen, ...] = ()
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class _Done:
    """What came of a request. ``durable``: the catalog says so, and no later leader does anything else."""

    body: bytes
    outcome: DdlOutcome | PersistError
    durable: bool
    moves: bool


@dataclass(frozen=True, slots=True)
class _Running:
    body: bytes
    task: "asyncio.Task[_Done]"
    request_bytes: int


class Executor:
    """Of one open catalog, whose end it outlives. Safe for many tasks; ``close`` ends what it does."""

    def __init__(
        self, catalog: ReadWriteCatalog, storage: Storage, environment: str, *, settings: Settings, runtime: Runtime
    ) -> None:
        self._environment = environment
        self._catalog = catalog
        self._storage = storage
        self._settings = settings
        self._runtime = runtime
        self._is_begun = False
        self._turn = asyncio.Lock()
        self._tasks = Tasks()
        self._working = 0
        self._running: dict[Token, _Running] = {}
        self._done: OrderedDict[Token, _Done] = OrderedDict()
        self._done_bytes = 0
        self._moving = Moving(
            catalog, storage, environment, committed=self._committed, backoff=self._backoff, runtime=runtime
        )
        self._advances = Advances(self._flush, runtime=runtime, tasks=self._tasks)

    async def execute(
        self,
        statements: Sequence[Statement],
        session: Session,
        *,
        token: Token | None = None,
        seen: Sequence[Seen] = (),
        repeated: bool = False,
    ) -> DdlOutcome:
        """Carry out statements as one transaction; with a ``token`` once, however often it is asked.

        ``seen``: what names meant to who asks. What is refused under a token is refused from then on, and what changes
        nothing changes nothing. Where another attempt may come (``repeated``) the catalog has that before it is
        answered, found out now or remembered, so that no later leader carries one out. Goes on when the caller is
        cancelled, which a repetition with the token shows. Raises UnknownObject,
        PrivilegeMissing, DependentObjects, UniquenessViolation and others that say what is wrong with a statement,
        NameChanged, InvalidArgument (the token was that of others, or what it asks for was refused by a leader before),
        Overloaded, Fenced, LocationError (Indeterminate: closed meanwhile).
        """
        statements = tuple(statements)
        if not 0 < len(statements) <= STATEMENTS_MAX:
            raise InvalidArgument(
                "a request has statements", hint=f"one to {STATEMENTS_MAX}", statements=len(statements)
            )
        is_move = len(statements) == 1 and isinstance(statements[0], _MOVES)
        if is_move and len(seen) > SEEN_OF_MOVE_MAX:
            raise InvalidArgument(
                "who moves one position names few objects", hint=f"{SEEN_OF_MOVE_MAX} at most", seen=len(seen)
            )
        token, repeated = token or Token.of(self._runtime.random_bytes(16)), repeated and token is not None
        if is_move:
            body, size = weighed(statements, session)
        else:
            body, size = await self._runtime.offload(weighed, statements, session)
        done = await self._done_once(_Request(statements, session, token, body, tuple(seen), repeated), size)
        if done.body != body:
            raise other_request(token)
        if isinstance(done.outcome, PersistError):
            raise copy.copy(done.outcome)
        return done.outcome

    async def begin(self) -> None:
        """Make what an environment begins with, unless it is there. Raises Fenced, LocationError."""
        async with self._turn:
            await self._begun()

    async def close(self) -> None:
        """End what is under way; its outcome is that of the catalog."""
        await self._tasks.close()

    async def _done_once(self, asked: _Request, size: int) -> _Done:
        """What came of the token of a request, of this one or another. The only way out: where another attempt may come
        it is durable.
        """
        done = None
        while True:
            running = self._running.get(asked.token)
            if running is None:
                done = self._done.get(asked.token, done)
                if done is None or (asked.repeated and not done.durable):
                    running = self._begin(asked, size, done)
            elif running.body != asked.body and not asked.repeated:
                raise other_request(asked.token)
            if running is not None:
                done = await outcome_of(running.task, "who led was ended while it carried this out")
            assert done is not None
            if done.durable or not asked.repeated:
                return done

    def _begin(self, asked: _Request, size: int, done: _Done | None) -> _Running:
        """Carry it out, or make durable what is ``done`` under its token."""
        if self._working and self._working + size > WORK_BYTES_MAX:
            raise Overloaded("too many statements are worked on", hint="ask later", retry_after_ms=_RETRY_MS)
        work = self._execute(asked) if done is None else self._keep_done(asked, done)
        known = _Running(asked.body if done is None else done.body, self._tasks.start(work), size)
        self._working += size
        self._running[asked.token] = known
        known.task.add_done_callback(lambda _: self._ended(asked.token, known))
        return known

    def _ended(self, token: Token, known: _Running) -> None:
        """Remember what it came to, within bounds: refusals too, or what was refused could happen when it comes again.

        What raised may be asked again: nothing of it happened, or it is found in the catalog.
        """
        self._working -= known.request_bytes
        del self._running[token]
        if known.task.cancelled() or known.task.exception() is not None:
            return
        before, self._done[token] = self._done.get(token), known.task.result()
        self._done_bytes += _bytes_of(self._done[token]) - (0 if before is None else _bytes_of(before))
        while len(self._done) > REMEMBERED_MAX or self._done_bytes > REMEMBERED_BYTES_MAX:
            self._done_bytes -= _bytes_of(self._done.popitem(last=False)[1])

    async def _execute(self, asked: _Request) -> _Done:
        """What is refused is an outcome, too. Raises what says nothing of the request: see ``_is_told``."""
        statement = asked.statements[0]
        if len(asked.statements) == 1 and isinstance(statement, _MOVES):
            return await self._move(
                Asked(statement, asked.session, asked.token, asked.body, asked.seen, asked.repeated)
            )
        async with self._turn:
            await self._begun()
            try:
                return await self._transact(asked)
            except PersistError as refused:
                if not _is_told(refused) or (isinstance(refused, OutOfSync) and not asked.repeated):
                    raise
                done = _Done(asked.body, _bare(refused), durable=False, moves=False)
            return await self._keep(asked, done) if asked.repeated else done

    async def _move(self, asked: Asked) -> _Done:
        try:
            return _Done(asked.body, await self._advances.put(asked), durable=True, moves=True)
        except OutOfSync as error:
            if asked.repeated:
                raise _may_happen(asked.token) from error
            raise
        except PersistError as refused:
            if not _is_told(refused):
                raise
            return _Done(asked.body, _bare(refused), durable=asked.repeated, moves=True)

    async def _keep_done(self, asked: _Request, done: _Done) -> _Done:
        """What is remembered, once it is durable."""
        async with self._turn:
            if not done.moves:
                return await self._keep(asked, done)
            try:
                if await self._moving.refuse(asked.token, done.body):
                    return replace(done, durable=True)
            except OutOfSync as error:
                raise _may_happen(asked.token) from error
        return await self._execute(asked)

    async def _transact(self, asked: _Request) -> _Done:
        backoff, patient, more = self._backoff(), True, dict[Id, None]()
        while True:
            done = self._before(asked)
            if done is not None:
                return _Done(asked.body, done, durable=True, moves=False)
            transaction = self._catalog.transaction(token=asked.token)
            transaction.told_body = asked.body
            try:
                effects, executed = await self._planned(transaction, asked, more, patient=patient)
                # SUBTLE: what changes nothing now could change something when another attempt arrives.
                changed = bool(transaction.batch().changes)
                durable = asked.repeated or changed
                if durable:
                    idle = None if changed else self._role(asked)
                    transaction.keep(made_key(asked.token), Setting(made_text(executed, idle)))
                outcome = DdlOutcome(executed, await self._committed(transaction, effects))
                return _Done(asked.body, outcome, durable=durable, moves=False)
            except OutOfSync as error:
                patient, known = False, len(more)
                # Named by what a statement before it in the request made of the names.
                more.update(dict.fromkeys(map(Id.parse, filter(None, str(error.details.get(UNASKED, "")).split(",")))))
                if len(more) > known:
                    continue
                if not await backoff.pause():
                    raise
                if (shard := error.details.get(UNFIT)) is not None:
                    await self._set_aside(ShardId.parse(str(shard)))

    async def _set_aside(self, shard: ShardId) -> None:
        """No item begins with this shard any more: that of its name is made under an id of its own."""
        transaction = self._catalog.transaction()
        transaction.keep(gone_key(shard), Setting("columns of others"))
        with contextlib.suppress(OutOfSync):
            await self._commit(transaction)

    async def _keep(self, asked: _Request, done: _Done) -> _Done:
        """Commit what nothing was committed for: from then on no attempt under the token does anything else. Returns
        it, or what an attempt came to that had happened after all.

        Raises LocationError: it is not known, then, whether another attempt will.
        """
        refused, backoff = isinstance(done.outcome, PersistError), self._backoff()
        body = refused_body(done.body) if refused else done.body
        while True:
            there = self._catalog.get(COMMIT, CommitKey(str(asked.token)))
            if there is not None:
                happened = refused and there.body in (b"", done.body) and asked.body == done.body
                outcome = self._before(asked) if happened else None
                return replace(done, outcome=outcome or done.outcome, durable=True)
            transaction = self._catalog.transaction(token=asked.token)
            transaction.told_body = body
            transaction.always = True
            executed = done.outcome.executed if isinstance(done.outcome, DdlOutcome) else ()
            transaction.keep(made_key(asked.token), Setting(made_text(executed, self._role(asked))))
            try:
                await self._commit(transaction)
                return replace(done, durable=True)
            except OutOfSync:
                if not await backoff.pause():
                    raise _may_happen(asked.token) from None

    def _role(self, asked: _Request) -> str:
        """Whose share of the tokens that are known a request takes which changes nothing; empty: no such role's."""
        with contextlib.suppress(UnknownObject):
            return str(CatalogView.at(self._catalog.transaction().snapshot).role(asked.session.role))
        return ""

    def _before(self, asked: _Request) -> DdlOutcome | None:
        """What came of it when it was carried out before: tags, and what was made or changed then, by what names these
        have now. Raises InvalidArgument: it was refused then, or it was another request.
        """
        done = self._catalog.get(COMMIT, CommitKey(str(asked.token)))
        if done is None:
            return None
        if done.body == refused_body(asked.body):
            raise refused_before(asked.token)
        first_outcome(asked.token, done, asked.body)
        view = CatalogView.at(self._catalog.transaction().snapshot)
        made = made_of(self._catalog.get(SETTING, made_key(asked.token)), len(asked.statements))
        there = view.objects(ITEM)
        executed = (
            Executed(
                tag_of(statement),
                id,
                str(view.name_of(id)) if id is not None and ItemKey(id) in there else "",
                BEFORE,
            )
            for statement, id in zip(asked.statements, made, strict=True)
        )
        return DdlOutcome(tuple(executed), self._catalog.upper)

    async def _flush(self, asked: "Sequence[Asked]") -> "Sequence[DdlOutcome | Exception]":
        """Positions that move, in one transaction; what is wrong with one of them is the outcome of that one."""
        async with self._turn:
            await self._begun()
            return await self._moving.move(asked)

    async def _begun(self) -> None:
        while not self._is_begun:
            transaction = self._catalog.transaction()
            with contextlib.suppress(OutOfSync):
                bootstrap(transaction)
                await self._catalog.commit(transaction)
                self._is_begun = True
                for key in unreadable(self._catalog.objects(SETTING)):
                    _log.warning("setting %r is none that persist wrote, and counts for nothing", key.name[:80])

    async def _planned(
        self, transaction: CatalogTransaction, asked: _Request, more: Iterable[Id], *, patient: bool
    ) -> Planned:
        view = CatalogView.at(transaction.snapshot)
        objects = {each.id: each for each in touched(view, asked.statements, asked.session)}
        objects.update((id, view.get(id)) for id in more if ItemKey(id) in view.objects(ITEM))
        frontiers = await self._storage.frontiers(objects.values())
        steps = _checked(
            CatalogView.at(transaction.snapshot),
            asked,
            planned_in_steps(
                transaction,
                asked.statements,
                asked.session,
                frontiers,
                self._runtime.now_ms(),
                environment=self._environment,
            ),
        )
        return await self._in_steps(steps, transaction, patient=patient)

    async def _in_steps(
        self, steps: Generator[None, None, Planned], transaction: CatalogTransaction, *, patient: bool
    ) -> Planned:
        """Let others go on now and then, who may commit meanwhile: so no more than once, or it might never end."""
        version, began = transaction.snapshot.version, self._runtime.monotonic()
        while True:
            try:
                next(steps)
            except StopIteration as done:
                planned: Planned = done.value
                return planned
            if not patient or self._runtime.monotonic() - began < PLANNING_SECONDS:
                continue
            await self._runtime.sleep(0)
            began = self._runtime.monotonic()
            if transaction.snapshot.version != version:
                steps.close()
                raise OutOfSync(
                    "something was committed while this was planned", hint="run the transaction again", updates=0
                )

    async def _committed(self, transaction: CatalogTransaction, effects: Effects) -> int:
        """The upper once it is committed and settled. Raises OutOfSync and others; nothing is held for it then."""
        try:
            await self._storage.prepare(effects)
            upper = await self._commit(transaction)
        except (Indeterminate, asyncio.CancelledError):
            # It may have happened: what was held for it stays held, and the next leader reconciles.
            raise
        except BaseException:
            await self._storage.undo(effects)
            raise
        await self._storage.settle(effects)
        return upper

    async def _commit(self, transaction: CatalogTransaction) -> int:
        backoff, unsure = self._backoff(), None
        while True:
            try:
                return await self._catalog.commit(transaction)
            except Indeterminate as error:
                # The token of the transaction shows, when it is committed again, whether it was.
                unsure = error
                if transaction.token is None or not await backoff.pause():
                    raise
            except (Fenced, NotWritable, LocationError) as error:
                if unsure is not None:
                    raise unsure from error
                raise

    def _backoff(self) -> Backoff:
        return Backoff(self._runtime, self._settings, Deadline(self._runtime, self._settings.timeout_ms / 1000))


def _is_told(error: PersistError) -> bool:
    """Whether it says that nothing happened, and why, and not that it is not known, or to be asked elsewhere."""
    return not isinstance(error, OF_ALL)


def _checked(
    view: CatalogView, asked: _Request, steps: Generator[None, None, Planned]
) -> Generator[None, None, Planned]:
    """The same steps, once the names are found to mean what they did: in the very snapshot that is planned on."""
    yield from checking_seen(view, asked.seen, asked.session)
    return (yield from steps)


def _may_happen(token: Token) -> Indeterminate:
    return Indeterminate(
        "it was refused, but another attempt of it may still happen", hint="repeat it under its token", token=token
    )


def _bare(error: PersistError) -> PersistError:
    """SUBTLE: an error as it was raised would keep all that its frames name."""
    found = copy.copy(error)
    found.__traceback__ = found.__cause__ = found.__context__ = None
    return found


def _bytes_of(done: _Done) -> int:
    """About what an outcome takes."""
    outcome = done.outcome
    if isinstance(outcome, PersistError):
        return _EXECUTED_BYTES + len(str(outcome))
    return sum(_EXECUTED_BYTES + len(each.tag) + len(each.name) + len(each.notice) for each in outcome.executed)
