"""Executor: statements that define, carried out by the leader of a catalog, each request once.

What keeps history longer is done before the commit, what gives it up after: a crash in between leaves history too long,
and never too short. A request whose statements lost against a commit is planned again. Positions that move, of holds
and cursors, wait a little and go together: see ``advances``. Source: collections: the flow of DDL; docs/catalog.md.
"""

import asyncio
import contextlib
import re
from collections import OrderedDict
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

from persist.client.catalog.port import ReadWriteCatalog
from persist.client.collections.advances import Advances, Asked
from persist.client.collections.ports import Storage
from persist.core.catalog.ddl.bootstrap import bootstrap
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.effects import Effects, Executed
from persist.core.catalog.ddl.plan import Planned, plan_advances, planned_in_steps, touched
from persist.core.catalog.ddl.statements import Acknowledge, AdvanceHold, QualifiedName, Statement
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import Fenced, NotWritable, OutOfSync
from persist.core.catalog.fingerprints import first_outcome
from persist.core.catalog.kinds import COMMIT
from persist.core.catalog.objects import CommitKey
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.ids import Token
from persist.errors import Indeterminate, InvalidArgument, LocationError, Overloaded
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


_MOVES: Final = (AdvanceHold, Acknowledge)
"""Small, and asked for often."""


@dataclass(frozen=True, slots=True)
class _Known:
    body: bytes
    task: "asyncio.Task[DdlOutcome]"
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
        self._running: dict[Token, _Known] = {}
        self._done: OrderedDict[Token, _Known] = OrderedDict()
        self._done_bytes = 0
        self._advances = Advances(self._flush, runtime=runtime, tasks=self._tasks)

    async def execute(
        self, statements: Sequence[Statement], session: Session, *, token: Token | None = None
    ) -> DdlOutcome:
        """Carry out statements as one transaction; with a ``token`` once, however often it is asked.

        Goes on when the caller is cancelled, which a repetition with the token shows. Raises UnknownObject,
        PrivilegeMissing, DependentObjects, UniquenessViolation and others that say what is wrong with a statement,
        InvalidArgument (the token was that of others), Overloaded, Fenced, LocationError (Indeterminate: closed
        meanwhile).
        """
        statements = tuple(statements)
        if not 0 < len(statements) <= STATEMENTS_MAX:
            raise InvalidArgument(
                "a request has statements", hint=f"one to {STATEMENTS_MAX}", statements=len(statements)
            )
        token = token or Token.of(self._runtime.random_bytes(16))
        if len(statements) == 1 and isinstance(statements[0], _MOVES):
            body, size = weighed(statements, session)
        else:
            body, size = await self._runtime.offload(weighed, statements, session)
        known = self._running.get(token) or self._done.get(token)
        if known is None:
            known = self._begin(statements, session, token, body, size)
        elif known.body != body:
            raise InvalidArgument(
                "other statements came under this token", hint="each request has a token of its own", token=token
            )
        return await outcome_of(known.task, "who led was ended while it carried this out")

    async def begin(self) -> None:
        """Make what an environment begins with, unless it is there. Raises Fenced, LocationError."""
        async with self._turn:
            await self._begun()

    async def close(self) -> None:
        """End what is under way; its outcome is that of the catalog."""
        await self._tasks.close()

    def _begin(
        self, statements: tuple[Statement, ...], session: Session, token: Token, body: bytes, size: int
    ) -> _Known:
        if self._working and self._working + size > WORK_BYTES_MAX:
            raise Overloaded("too many statements are worked on", hint="ask later", retry_after_ms=_RETRY_MS)
        known = _Known(body, self._tasks.start(self._execute(statements, session, token, body)), size)
        self._working += size
        self._running[token] = known
        known.task.add_done_callback(lambda _: self._ended(token, known))
        return known

    def _ended(self, token: Token, known: _Known) -> None:
        """Remember what it came to, within bounds."""
        self._working -= known.request_bytes
        del self._running[token]
        if known.task.cancelled() or known.task.exception() is not None:
            # What was refused may be asked again: nothing of it happened, or it is found in the catalog.
            return
        self._done[token] = known
        self._done_bytes += _bytes_of(known.task.result())
        while len(self._done) > REMEMBERED_MAX or self._done_bytes > REMEMBERED_BYTES_MAX:
            _, oldest = self._done.popitem(last=False)
            self._done_bytes -= _bytes_of(oldest.task.result())

    async def _execute(
        self, statements: tuple[Statement, ...], session: Session, token: Token, body: bytes
    ) -> DdlOutcome:
        if len(statements) == 1 and isinstance(statements[0], _MOVES):
            return await self._advances.put(statements[0], session)
        async with self._turn:
            await self._begun()
            return await self._transact(statements, session, token, body)

    async def _transact(
        self, statements: tuple[Statement, ...], session: Session, token: Token, body: bytes
    ) -> DdlOutcome:
        backoff, patient = self._backoff(), True
        while True:
            done = self._catalog.get(COMMIT, CommitKey(str(token)))
            if done is not None:
                first_outcome(token, done, body)
                return DdlOutcome(self._again(statements, session), self._catalog.upper)
            transaction = self._catalog.transaction(token=token)
            transaction.told_body = body
            try:
                effects, executed = await self._planned(transaction, statements, session, patient=patient)
                return DdlOutcome(executed, await self._committed(transaction, effects))
            except OutOfSync:
                patient = False
                if not await backoff.pause():
                    raise

    def _again(self, statements: tuple[Statement, ...], session: Session) -> tuple[Executed, ...]:
        """What is known of statements that another leader committed: their tags, and what has their names by now."""
        view = CatalogView.at(self._catalog.transaction().snapshot)
        found = []
        for statement in statements:
            name = getattr(statement, "name", None)
            id = view.find(name, session) if isinstance(name, QualifiedName) else None
            full = "" if id is None else str(view.name_of(id))
            found.append(Executed(tag_of(statement), id, full, "this was done before"))
        return tuple(found)

    async def _flush(self, asked: "Sequence[Asked]") -> "Sequence[DdlOutcome | Exception]":
        """Positions that move, in one transaction; what is wrong with one of them is the outcome of that one."""
        async with self._turn:
            await self._begun()
            backoff = self._backoff()
            while True:
                transaction = self._catalog.transaction(token=Token.of(self._runtime.random_bytes(16)))
                try:
                    return await self._flushed(transaction, asked)
                except OutOfSync:
                    if not await backoff.pause():
                        raise

    async def _flushed(
        self, transaction: CatalogTransaction, asked: "Sequence[Asked]"
    ) -> "Sequence[DdlOutcome | Exception]":
        view = CatalogView.at(transaction.snapshot)
        objects = {item.id: item for each, session in asked for item in touched(view, (each,), session)}
        frontiers = await self._storage.frontiers(objects.values())
        effects, outcomes = plan_advances(
            transaction, asked, frontiers, self._runtime.now_ms(), environment=self._environment
        )
        upper = self._catalog.upper
        if any(isinstance(each, Executed) for each in outcomes):
            upper = await self._committed(transaction, effects)
        return [DdlOutcome((each,), upper) if isinstance(each, Executed) else each for each in outcomes]

    async def _begun(self) -> None:
        while not self._is_begun:
            transaction = self._catalog.transaction()
            with contextlib.suppress(OutOfSync):
                bootstrap(transaction)
                await self._catalog.commit(transaction)
                self._is_begun = True

    async def _planned(
        self, transaction: CatalogTransaction, statements: tuple[Statement, ...], session: Session, *, patient: bool
    ) -> tuple[Effects, tuple[Executed, ...]]:
        objects = touched(CatalogView.at(transaction.snapshot), statements, session)
        frontiers = await self._storage.frontiers(objects)
        now_ms = self._runtime.now_ms()
        steps = planned_in_steps(transaction, statements, session, frontiers, now_ms, environment=self._environment)
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


def _bytes_of(outcome: DdlOutcome) -> int:
    """About what an outcome takes."""
    return sum(_EXECUTED_BYTES + len(each.tag) + len(each.name) + len(each.notice) for each in outcome.executed)


def tag_of(statement: Statement) -> str:
    """What a statement is called: CREATE TABLE."""
    words = re.findall("[A-Z][a-z]*", type(statement).__name__)
    kind = getattr(statement, "kind", None)
    return " ".join([*words, *([kind.words] if kind is not None else [])]).upper()
