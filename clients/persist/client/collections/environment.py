"""Environment: the names, timelines and holds of a location as one session sees them, and the way to change them.

It is in memory, follows the catalog's changes, and needs no leader to be read. Statements go to the leader; that is
this process where no other is found. Source: design documents 4 and 5; docs/catalog.md; collections.
"""

import asyncio
import contextlib
import copy
import logging
from collections.abc import Callable, Sequence
from typing import Final

from persist.client.catalog.implementation import find_catalog
from persist.client.catalog.port import OpenableCatalog, ReadOnlyCatalog
from persist.client.collections.access import Access
from persist.client.collections.adopting import adoption
from persist.client.collections.cursors.cursor import Cursor, open_cursor
from persist.client.collections.in_time import within
from persist.client.collections.leading import Leading
from persist.client.collections.naming import name_of
from persist.client.collections.reading.bringing import Bringing
from persist.client.collections.reading.choosing import Readers
from persist.client.collections.reading.contents import Contents
from persist.client.collections.reading.explaining import Explanation
from persist.client.collections.reading.reads import Reads
from persist.client.collections.reading.subscribing import Subscription
from persist.client.shard.handles import Closes
from persist.client.shard.times import TimeLike
from persist.client.timeline.register import seconds
from persist.core.catalog.ddl.asking.seen import Seen, seen_by
from persist.core.catalog.ddl.described import ROLE, Described, Session
from persist.core.catalog.ddl.effects import Executed
from persist.core.catalog.ddl.statements import Leave, QualifiedName, Statement
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import NameChanged, Uninitialized, UnknownObject, no_environment
from persist.core.catalog.objects import AuditLogKey
from persist.core.catalog.values import ObjectType
from persist.core.data.predicate import PredicateLike
from persist.core.ids import ShardId, Token
from persist.core.names import catalog_shard
from persist.core.time.isolation import Isolation
from persist.errors import HistoryRewound, PersistError, ShardNotFound
from persist.extras import extra
from persist.retry.deadline import Deadline
from persist.retry.tasks import Tasks

_log = logging.getLogger(__name__)

SHOWN_SECONDS: Final = 1.0
"""At least, for showing here what was done."""
GRANTS_TRIES: Final = 5
"""Of a GRANT or REVOKE that others came before."""
FOLLOW_SECONDS: Final = 60.0
"""How long one wait for changes lasts; a pause between those that failed is much shorter."""


class Environment(Closes):
    """One environment, in the name of one role. Safe for many tasks; close it before its client.

    ``session``: the role, and where bare names are looked up. Every call may raise UsageError once it is closed.
    """

    _noun = "environment"
    _again = "ask the client for it again"

    def __init__(
        self, access: Access, name: str, *, role: str = ROLE, endpoints: str = "", take_over: bool = False
    ) -> None:
        """Finds nothing yet: ``open`` does."""
        self.name = name
        self.session = Session(role)
        self.access = access
        self._location = access.client.location
        self._endpoints = endpoints
        self._leading = Leading(access, name, endpoints=endpoints, take_over=take_over)
        self._openable: OpenableCatalog | None = None
        self._catalog: ReadOnlyCatalog | None = None
        self._view: CatalogView | None = None
        self._failure: HistoryRewound | None = None
        self._look = asyncio.Lock()
        self._looks_begun = self._looks_done = 0
        self._tasks = Tasks()
        self._listeners: list[Callable[[], None]] = []
        self._bringing = Bringing(access, self._known, self._leading.attend)
        readers = Readers(access, self._bringing.attend, self._bringing.unattended, self._bringing.want)
        self._reads = Reads(readers, self._names, self.session)

    @classmethod
    async def open(
        cls, access: Access, name: str, *, role: str = ROLE, endpoints: str = "", take_over: bool = False
    ) -> "Environment":
        """The environment as it is; one that does not exist yet is no error before it is looked at.

        Raises UnknownObject (no such role), IncompatibleDataVersion, LocationError.
        """
        environment = cls(access, name, role=role, endpoints=endpoints, take_over=take_over)
        try:
            with contextlib.suppress(Uninitialized):
                await environment._names(strict=False)
        except BaseException:
            await environment.close()
            raise
        return environment

    @property
    def view(self) -> CatalogView:
        """What is known of it here: as of some moments ago, without an RPC.

        Raises Uninitialized, and UnknownObject where its own role is not there (any more).
        """
        self._check_not_closed()
        if self._view is None:
            raise self._missing()
        if self._view.roles:  # which come with a later commit than the catalog itself
            self._view.role(self.session.role)
        return self._view

    @property
    def leads(self) -> bool:
        """Whether this object leads the environment for all."""
        return self._leading.leads

    async def strict_view(self) -> CatalogView:
        """As ``view``, with all that was committed before this call. A read of the catalog, which calls that overlap
        share. Raises Uninitialized.
        """
        catalog, asked = await self._opened(), self._looks_begun
        async with self._look:
            if self._looks_done <= asked:
                self._looks_begun += 1
                looks = self._looks_begun
                await self._sync(catalog)
                self._looks_done = looks
        return self.view

    async def audit_events(self) -> Sequence[AuditLogKey]:
        """All audit events in the order of their ids, read from where they are durable. Raises Uninitialized."""
        return await (await self._opened()).audit_logs()

    async def resolve(self, name: str | QualifiedName, *, strict: bool = False) -> Described:
        """The item of a name, from memory; with ``strict`` as of now. One that is unknown here is looked for once more.

        Raises UnknownObject (with near names), Uninitialized, InvalidArgument.
        """
        wanted = name_of(name)
        if strict:
            return (await self.strict_view()).resolve(wanted, self.session)
        await self._opened()
        try:
            return self.view.resolve(wanted, self.session)
        except UnknownObject:
            return (await self.strict_view()).resolve(wanted, self.session)

    async def execute(
        self,
        *statements: Statement,
        session: Session | None = None,
        token: Token | None = None,
        timeout: float | None = None,
    ) -> tuple[Executed, ...]:
        """Carry out statements as one transaction; what became of each. The first one begins the environment.

        Executed once by the leader; so that a repetition is the same request, too, give a ``token``. On the objects
        that its names mean when this is called, whenever it arrives. What it changed is in ``view`` afterwards. What
        was refused does not happen later; under its token it is refused from then on. Raises NameChanged (a name means
        another object by now: give it again), UnknownObject, PrivilegeMissing, DependentObjects, UniquenessViolation
        and others that say what is wrong with a statement, NotWritable (none may lead here), HistoryRewound (the
        location was restored since this was opened: ask the client for it again), Determinate and Indeterminate (the
        leader does not answer).
        """
        deadline = self._location.attempts.deadline(timeout)
        for _ in range(GRANTS_TRIES if token is None else 0):
            try:
                return await self._execute(statements, session, None, deadline)
            except NameChanged as error:
                # Another one granted, or revoked, on the same object just now. The caller of this one still waits.
                if "grants" not in error.details:
                    raise
        return await self._execute(statements, session, token, deadline)

    async def _execute(
        self, statements: Sequence[Statement], session: Session | None, token: Token | None, deadline: Deadline
    ) -> tuple[Executed, ...]:
        asked = token or Token.of(self._location.runtime.random_bytes(16))
        acting, history, seen = session or self.session, None, tuple[Seen, ...]()
        with contextlib.suppress(Uninitialized):
            # What is asked for comes of what is known here, as a time that a cursor reached: a restore takes it back.
            async with within(deadline):
                view = await self.strict_view()
            seen = seen_by(view, statements, acting)
            history = None if self._catalog is None else self._catalog.history
        outcome = await self._leading.execute(
            statements, acting, asked, history=history, seen=seen, repeated=token is not None, timeout=seconds(deadline)
        )
        # SUBTLE: it is done, whatever keeps this from showing it, such as a store that is away: the next look says so.
        shown = Deadline(self._location.runtime, max(deadline.remaining(), SHOWN_SECONDS))
        with contextlib.suppress(PersistError):
            async with within(shown):
                catalog = await self._opened()
                if catalog.upper < outcome.upper:
                    await self._sync(catalog)
        return outcome.executed

    async def adopt(
        self, name: str, *, shard: ShardId | None = None, timeline: str = "", timeout: float | None = None
    ) -> Executed:
        """The shard that has this name without an environment becomes its item; or ``shard``, whatever that is called.

        Everything of it stays readable, and its writers may go on. ``timeline``: of a shard whose id does not
        say it. Raises ShardNotFound, AmbiguousName (give the shard that is meant), UniquenessViolation,
        InvalidArgument, and as ``execute``.
        """
        deadline = self._location.attempts.deadline(timeout)
        statement = await adoption(self.access.client, name, shard=shard, timeline=timeline, deadline=deadline)
        (executed,) = await self.execute(statement, timeout=deadline.slice())
        return executed

    async def leave(self, name: str, *, cascade: bool = False, timeout: float | None = None) -> Executed:
        """The item of a name is forgotten, and its shard given back as it is: the reverse of ``adopt``.

        ``cascade``: with all that depends on it. Raises UnknownObject, DependentObjects, and as ``execute``.
        """
        (executed,) = await self.execute(Leave(name_of(name), cascade), timeout=timeout)
        return executed

    async def items(self, kind: ObjectType | None = None) -> tuple[Described, ...]:
        """All items, or those of a kind, as of now: those of the system first. Raises Uninitialized."""
        return tuple((await self.strict_view()).items(kind))

    # ---- reading -----------------------------------------------------------------------------------------------------

    @property
    def reads(self) -> Reads:
        """Its names as they are read: for what is built on top of it."""
        return self._reads

    async def read(
        self,
        name: str | QualifiedName,
        *,
        as_of: TimeLike | None = None,
        at_least: TimeLike | None = None,
        isolation: Isolation | str = Isolation.STRICT_SERIALIZABLE,
        columns: Sequence[str] | None = None,
        where: PredicateLike = None,
        timeout: float | None = None,
    ) -> Contents:
        """The rows of a name at one time of its timeline, held until they are released: nothing is read yet.

        Without a time: everything that was written before this call is in it (``isolation`` ``serializable``: what is
        complete already). ``as_of``: at this time or an error; ``at_least``: at it or later. ``columns``, ``where``: as
        of ``Contents``. About five RPCs; of a table in a log six more for what was not copied yet. Raises
        UnknownObject, BelowHold, HoldOverdue and NotReadable (``as_of`` is before what is kept; details name both
        boundaries), NotYetAvailable (not complete in time; ``details['objects']``: what lags), MultipleTimelines,
        ShardClosed, InvalidArgument (it has no rows of its own, no such column).
        """
        return await self._reads.read(
            name,
            as_of=as_of,
            at_least=at_least,
            isolation=isolation,
            columns=columns,
            where=where,
            timeout=timeout,
        )

    async def read_together(
        self,
        names: Sequence[str | QualifiedName],
        *,
        as_of: TimeLike | None = None,
        at_least: TimeLike | None = None,
        isolation: Isolation | str = Isolation.STRICT_SERIALIZABLE,
        timeout: float | None = None,
    ) -> dict[str, Contents]:
        """The rows of several names at one time, by the names as they were given. Raises as ``read``.

        MultipleTimelines comes at once, and names each object, its timeline and the way to it.
        """
        return await self._reads.read_together(
            names, as_of=as_of, at_least=at_least, isolation=isolation, timeout=timeout
        )

    async def explain_timestamp(
        self,
        names: Sequence[str | QualifiedName],
        *,
        as_of: TimeLike | None = None,
        at_least: TimeLike | None = None,
        isolation: Isolation | str = Isolation.STRICT_SERIALIZABLE,
        timeout: float | None = None,
    ) -> Explanation:
        """The time at which these would be read together now, and why. Waits for nothing. Raises as ``read``."""
        return await self._reads.explain(names, as_of=as_of, at_least=at_least, isolation=isolation, timeout=timeout)

    async def subscribe(
        self,
        name: str | QualifiedName,
        *,
        as_of: TimeLike | None = None,
        at_least: TimeLike | None = None,
        isolation: Isolation | str = Isolation.STRICT_SERIALIZABLE,
        snapshot: bool = True,
        progress: bool = True,
        up_to: int | None = None,
        columns: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> Subscription:
        """The rows of a name at one time, and every update after it, as Updates and Progress; held while it runs.

        ``snapshot`` False: only the updates after ``as_of``. ``up_to``: ends when all before this time was given.
        ``timeout``: for the beginning. For what goes on after restarts make a cursor. Raises as ``read``.
        """
        return await self._reads.subscribe(
            name,
            as_of=as_of,
            at_least=at_least,
            isolation=isolation,
            snapshot=snapshot,
            progress=progress,
            up_to=up_to,
            columns=columns,
            timeout=timeout,
        )

    async def cursor(
        self, name: str | QualifiedName, *, position: int | None = None, history: int | None = None
    ) -> Cursor:
        """A way along a cursor, from where it was acknowledged up to, or from ``position``, which its subscriber keeps.

        ``history``: ``Cursor.history``, kept beside the position: a restore may take back what is before that. Raises
        UnknownObject, InvalidArgument (no cursor; its query is more than one collection as a whole), BelowHold,
        HoldOverdue and NotReadable (what comes after the position is gone), HistoryRewound (the position is of another
        history: begin with the contents, by a new cursor).
        """
        return await open_cursor(self._reads, self.execute, name, position=position, history=history)

    @property
    def is_over(self) -> bool:
        """The location was restored, and this goes on with nothing: take another environment from a client."""
        return self._failure is not None

    async def exists(self) -> bool:
        """Whether there is one of this name, as of now. Raises IncompatibleDataVersion, LocationError."""
        try:
            await self._opened()
        except Uninitialized:
            return False
        return True

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener``, on the event loop, whenever the catalog went on. Raises nothing."""
        self._listeners.append(listener)

    async def close(self) -> None:
        """Stop following, and leading: the next process that writes leads then. Raises nothing."""
        await self._tasks.close()
        await self._bringing.close()
        await self._leading.close()
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            await catalog.close()
        if self._openable is not None:
            await self._openable.close()

    def _known(self) -> CatalogView:
        """As ``view``, of what is asked once that is known, also while this is closed."""
        assert self._view is not None
        return self._view

    async def _names(self, strict: bool) -> CatalogView:
        if strict:
            return await self.strict_view()
        await self._opened()
        return self.view

    async def _opened(self) -> ReadOnlyCatalog:
        """The catalog, open for reading and followed. Raises Uninitialized, HistoryRewound."""
        if self._failure is not None:
            raise copy.copy(self._failure)
        self._check_not_closed()
        if self._catalog is not None:
            return self._catalog
        openable = self._openable or await self._found()
        if self._is_closing:
            await openable.close()
        self._check_not_closed()
        self._openable = openable
        try:
            catalog = await openable.open_read_only()
        except Uninitialized:
            raise self._missing() from None
        if self._is_closing:
            await catalog.close()
        self._check_not_closed()
        if self._catalog is None:
            self._catalog, self._view = catalog, CatalogView(catalog)
            self._tasks.spawn(self._follow(catalog), "following an environment")
        return self._catalog

    async def _found(self) -> OpenableCatalog:
        """The catalog; nothing is made by looking for it. Raises Uninitialized."""
        if self._endpoints:
            with extra("grpc"):
                from persist.client.catalog.remote import RemoteCatalog

            location = self._location
            return RemoteCatalog(
                self._endpoints, environment=self.name, settings=location.settings, runtime=location.runtime
            )
        try:
            await self.access.client.recent_upper(catalog_shard(self.name))
        except ShardNotFound:
            raise self._missing() from None
        return await find_catalog(self.access.client, self.name)

    async def _follow(self, catalog: ReadOnlyCatalog) -> None:
        """Take over what is committed, as long as that is possible; what ends it is raised by the next look."""
        runtime, pause, trouble = self._location.runtime, self._location.settings.retry_max_ms / 1000, ""
        while True:
            upper = catalog.upper
            try:
                await self._sync(catalog, upper + 1, FOLLOW_SECONDS)
            except TimeoutError:
                continue
            except HistoryRewound:
                return
            except PersistError as error:
                # It may pass: files that were replaced for a while are there again, and a lease is taken anew.
                if str(error) != trouble:
                    _log.warning("the environment %s is not followed at present: %s", self.name, error)
                trouble = str(error)
                await runtime.sleep(pause)
            else:
                trouble = ""

    async def _sync(self, catalog: ReadOnlyCatalog, target: int | None = None, timeout: float | None = None) -> None:
        """Take over what was committed, into memory and what is shown of it, without a pause between the two."""
        try:
            told = await catalog.sync(target, timeout=timeout)
        except HistoryRewound as error:
            self._failure = error
            raise
        assert self._view is not None
        for _, changes in told:
            self._view.apply(changes)
        if told:
            for listener in self._listeners:
                listener()

    def _missing(self) -> Uninitialized:
        return no_environment(environment=self.name)

    def __repr__(self) -> str:
        return f"<Environment {self.name} of {self._location}>"
