"""Moving: positions of holds and cursors in one transaction, where what is wrong with one keeps no other from its turn.

Their tokens are kept with it, those of refusals of repeated requests too: see ``ddl.outcomes``. Source: collections:
the flow of DDL; docs/adr/0024-refusals-are-final.md.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from persist.client.catalog.port import ReadWriteCatalog
from persist.client.collections.advances import Asked
from persist.client.collections.ports import Storage
from persist.core.catalog.ddl.asking.outcomes import Move, Moved
from persist.core.catalog.ddl.asking.seen import check_seen
from persist.core.catalog.ddl.effects import Effects, Executed
from persist.core.catalog.ddl.plan import plan_advances, touched
from persist.core.catalog.ddl.planning.holding import meant
from persist.core.catalog.ddl.statements import tag_of
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import Fenced, NameChanged, NotWritable, OutOfSync, UnknownObject
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.ids import Token
from persist.errors import HistoryRewound, InvalidArgument, LocationError, PersistError
from persist.retry.deadline import Backoff
from persist.runtime import Runtime
from persist.wire.catalog.ddl import DdlOutcome

BEFORE: Final = "this was done before"
OF_ALL: Final = (Fenced, NotWritable, HistoryRewound, LocationError)
"""What is wrong with the catalog, or its leader, and not with a request."""

Outcome: TypeAlias = DdlOutcome | Exception
Committed: TypeAlias = Callable[[CatalogTransaction, Effects], Awaitable[int]]


class Moving:
    """Of one open catalog. ``committed`` prepares, commits and settles; ``backoff`` begins pauses between tries.

    ``turn``: who commits statements has it; here for each try, and not between them.
    """

    def __init__(
        self,
        catalog: ReadWriteCatalog,
        storage: Storage,
        environment: str,
        *,
        turn: asyncio.Lock,
        committed: Committed,
        backoff: Callable[[], Backoff],
        runtime: Runtime,
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._environment = environment
        self._turn = turn
        self._committed = committed
        self._backoff = backoff
        self._runtime = runtime
        self._moved = Moved()

    async def move(self, asked: Sequence[Asked]) -> Sequence[Outcome]:
        """What becomes of each, in this order. Raises what is wrong with all, see OF_ALL."""
        try:
            return await self._together(asked, None)
        except OF_ALL:
            raise
        except PersistError as error:
            # It is not said of which: in halves it is found.
            if len(asked) == 1:
                return await self._together(asked, error)
            middle = len(asked) // 2
            return [*await self.move(asked[:middle]), *await self.move(asked[middle:])]

    async def refuse(self, token: Token, body: bytes) -> bool:
        """Keep that a request was refused before; False: it had happened after all. Raises OutOfSync, and OF_ALL."""
        backoff = self._backoff()
        while True:
            try:
                async with self._turn:
                    transaction = self._catalog.transaction(token=Token.of(self._runtime.random_bytes(16)))
                    known = self._moved.follow(transaction.snapshot).get(token)
                    if known is not None:
                        return known.refused or known.body != body
                    transaction.keep(*self._moved.added([Move(token, body, refused=True)]))
                    await self._committed(transaction, Effects())
            except OutOfSync:
                if not await backoff.pause():
                    raise

    async def _together(self, asked: Sequence[Asked], refusal: PersistError | None) -> Sequence[Outcome]:
        """All in one transaction; with a ``refusal`` they are refused in it."""
        backoff = self._backoff()
        while True:
            try:
                async with self._turn:
                    return await self._once(asked, refusal)
            except OutOfSync:
                if not await backoff.pause():
                    raise

    async def _once(self, asked: Sequence[Asked], refusal: PersistError | None) -> Sequence[Outcome]:
        transaction = self._catalog.transaction(token=Token.of(self._runtime.random_bytes(16)))
        view = CatalogView.at(transaction.snapshot)
        known = self._moved.follow(transaction.snapshot)
        told = [self._known(known, view, each) for each in asked]
        new = [number for number, outcome in enumerate(told) if outcome is None]
        found: dict[int, Executed | PersistError]
        found = dict.fromkeys(new, refusal) if refusal is not None else {}
        if refusal is None:
            effects = await self._planned(transaction, view, asked, new, found)
        else:
            effects = Effects()
        kept = [
            Move(asked[number].token, asked[number].body, isinstance(outcome, PersistError))
            for number, outcome in found.items()
            if isinstance(outcome, Executed) or (asked[number].repeated and not isinstance(outcome, LocationError))
        ]
        upper = self._catalog.upper
        if kept:
            transaction.keep(*self._moved.added(kept))
            upper = await self._committed(transaction, effects)
        return [
            outcome if outcome is not None else _outcome(found[number], upper) for number, outcome in enumerate(told)
        ]

    async def _planned(
        self,
        transaction: CatalogTransaction,
        view: CatalogView,
        asked: Sequence[Asked],
        new: Sequence[int],
        found: dict[int, Executed | PersistError],
    ) -> Effects:
        """What moves, with the outcome of each of ``new`` in ``found``."""
        held = {number: touched(view, (asked[number].statement,), asked[number].session) for number in new}
        objects = {item.id: item for items in held.values() for item in items}
        frontiers, failed = await self._storage.each_frontiers(objects.values())
        for number in new:
            bad = next((failed[item.id] for item in held[number] if item.id in failed), None)
            if bad is not None:
                found[number] = bad
                continue
            try:
                check_seen(view, asked[number].seen, asked[number].session)
            except NameChanged as error:
                found[number] = error
        left = [number for number in new if number not in found]
        effects, outcomes = plan_advances(
            transaction,
            [(asked[number].statement, asked[number].session) for number in left],
            frontiers,
            self._runtime.now_ms(),
            environment=self._environment,
        )
        found.update(zip(left, outcomes, strict=True))
        return effects

    def _known(self, known: Mapping[Token, Move], view: CatalogView, asked: Asked) -> Outcome | None:
        """What came of a request under its token before, if anything."""
        move = known.get(asked.token)
        if move is None:
            return None
        if move.body != asked.body:
            return other_request(asked.token)
        if move.refused:
            return refused_before(asked.token)
        try:
            id = view.find(meant(view, asked.statement), asked.session)
        except UnknownObject:
            id = None
        name = "" if id is None else str(view.name_of(id))
        return DdlOutcome((Executed(tag_of(asked.statement), id, name, BEFORE),), self._catalog.upper)


def refused_before(token: Token) -> InvalidArgument:
    """The error for a request that was refused under its token, by another leader, or long ago."""
    return InvalidArgument(
        "this request was refused when it came before",
        hint="nothing of it happened, and nothing will: look what is there, and give the statement anew",
        token=token,
    )


def other_request(token: Token) -> InvalidArgument:
    """The error for a request under a token of another one."""
    return InvalidArgument(
        "other statements came under this token", hint="each request has a token of its own", token=token
    )


def _outcome(found: Executed | PersistError, upper: int) -> Outcome:
    # One error may be that of several.
    return DdlOutcome((found,), upper) if isinstance(found, Executed) else copy.copy(found)
