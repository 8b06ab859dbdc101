"""Who leads an environment: found, or, where none does and this process may, begun here.

In a directory the process that has the seat leads (see ``seat``) and serves the rest on a socket. In the memory of a
process it leads. Everywhere else servers of the catalog lead; a program may where no other ever did, or the last one
ended in order, and is in the way of the next one until it does. Nothing here deposes a leader that is only silent.
Source: docs/adr/0017-who-leads-embedded.md; collections: who leads.
"""

import asyncio
import contextlib
import importlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast

from persist.client.catalog.addresses import EMBEDDED, ENDED, Addresses, KeptInShard
from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.implementation import find_catalog
from persist.client.collections.access import Access
from persist.client.collections.leader import Leads, LoneLeader
from persist.client.collections.reading.ticking import Attended
from persist.client.collections.seat import Occupied, Seat, take_seat
from persist.core.catalog.ddl.asking.seen import Seen
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.statements import Statement
from persist.core.catalog.errors import Fenced, FencedByGeneration, NotWritable
from persist.core.catalog.objects import FenceToken
from persist.core.ids import Token
from persist.errors import (
    Determinate,
    Indeterminate,
    LocationError,
    MissingExtra,
    PersistError,
    StoreReadOnly,
    UsageError,
)
from persist.extras import extra
from persist.retry.deadline import Deadline
from persist.storage.open import MEMORY, READ_ONLY
from persist.wire.catalog.ddl import DdlOutcome

if TYPE_CHECKING:
    from persist.client.remote.catalog_ddl import DdlServers

SERVER: Final = "persist_catalog.embedded"
"""The module that serves a leader to other processes: it is above this one, so it is looked up by its name."""
PAUSE_SECONDS: Final = 0.05
"""Between two looks at who leads."""
STATUS_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 5.0
"""Between two looks whether who led at shared stores ended in order."""


_log = logging.getLogger(__name__)


class Serves(Protocol):
    """What the module SERVER offers."""

    async def lead(self, access: Access, environment: str, seat: Seat) -> Leads:
        """Lead and serve, on the socket of the seat."""
        ...


class Leading:
    """The way to the leader of one environment. ``endpoints``: CatalogService servers (HOST:PORT, commas).

    ``take_over``: lead even where a program led that did not end in order, and cannot be seen. Borrows the client.
    """

    def __init__(self, access: Access, environment: str, *, endpoints: str = "", take_over: bool = False) -> None:
        self._access = access
        self._location = access.client.location
        self._environment = environment
        self._take_over = take_over
        self._servers = _servers(endpoints, access) if endpoints else None
        self._own: Leads | None = None
        self._seat: Seat | None = None
        self._told: Addresses | None = None
        self._other: _Other | None = None
        self._told_as = FenceToken(0, 0), 0
        self._turn = asyncio.Lock()
        self._closed = False
        self._attended: tuple[Attended, float] | None = None

    async def execute(
        self,
        statements: Sequence[Statement],
        session: Session,
        token: Token,
        *,
        history: int | None = None,
        seen: Sequence[Seen] = (),
        repeated: bool = False,
        timeout: float | None = None,
    ) -> DdlOutcome:
        """What became of statements, executed once by the leader. Raises what executing raises.

        ``history`` of the catalog that they come of: in no other one are they executed. None: any. ``seen``: what
        names in them meant to who gave them. ``repeated``: there may have been a call under this token before.
        Raises NotWritable (none may lead here: it says what to do), Determinate and Indeterminate (the leader does
        not answer).
        """
        deadline = self._location.attempts.deadline(timeout)
        if self._servers is not None:
            return await self._servers.execute(statements, session, token, deadline, history, seen, repeated=repeated)
        unsure: list[Indeterminate] = []

        async def attempt(leader: "Leads | _Other") -> DdlOutcome:
            # SUBTLE: what a leader refuses is final only where the request says that an attempt before may still come.
            again = repeated or bool(unsure)
            if isinstance(leader, _Other):
                return await leader.execute(statements, session, token, deadline, history, seen, repeated=again)
            return await leader.execute(statements, session, token, history, seen, repeated=again)

        try:
            return await self._until_answered(attempt, deadline, unsure)
        except (Fenced, NotWritable, LocationError) as error:
            # Who refuses knows nothing of an earlier attempt, whose answer was lost.
            if unsure and not isinstance(error, Indeterminate):
                raise unsure[-1] from error
            raise

    async def _until_answered(
        self,
        attempt: "Callable[[Leads | _Other], Awaitable[DdlOutcome]]",
        deadline: Deadline,
        unsure: list[Indeterminate],
    ) -> DdlOutcome:
        """See ``execute``; ``unsure`` gets the attempts that may have happened."""
        again = False
        while True:
            try:
                found = await self._found()
                if not isinstance(found, Occupied):
                    return await attempt(found)
                failure: LocationError | UsageError = _absent(found, self._environment)
            except FencedByGeneration:
                await self._end()
                raise
            except (Fenced, NotWritable) as error:
                if self._own is None:
                    # Another one led, which ended, or lost the catalog, a moment ago.
                    if not self._location.home:
                        raise
                else:
                    # In a directory who holds the seat leads, whatever a tool did past it; but where a server led on
                    # purpose, that has the seat from now on.
                    await self._end(keep=self._seat is not None and not await self._served())
                    if again or not self._location.home:
                        raise
                    again = True
                failure = error
            except StoreReadOnly:
                raise
            except LocationError as error:
                if self._own is not None or self._closed:
                    raise
                unsure += [error] if isinstance(error, Indeterminate) else []
                failure = error
            if deadline.remaining() <= PAUSE_SECONDS:
                raise self._silent(unsure[-1] if unsure else None, failure)
            await self._location.runtime.sleep(PAUSE_SECONDS)

    async def attend(self) -> Attended:
        """See that a process leads, where that takes nothing but this one: in a directory, or in memory. At shared
        stores whether one may, by a look now and then: two RPCs.

        Raises nothing: a call that waits for what a leader does says what it waits for.
        """
        if self._servers is not None or self._closed:
            return Attended.NOWHERE
        if not self._location.home:
            return Attended.NOWHERE if self._own is not None else await self._shared_attended()
        led = self._own is not None
        try:
            found = await self._found()
        except PersistError as error:
            _log.debug("nothing leads the environment %s: %s", self._environment, error)
            return Attended.NOWHERE
        if found is not self._own:
            return Attended.ELSEWHERE
        return Attended.HERE if led else Attended.BEGUN

    async def _shared_attended(self) -> Attended:
        now = self._location.runtime.monotonic()
        if self._attended is None or now >= self._attended[1]:
            where = Attended.NOWHERE
            try:
                where = Attended.ENDED if await self._leader() is None else Attended.SILENT
            except PersistError as error:
                _log.debug("who leads the environment %s is not known: %s", self._environment, error)
            self._attended = where, now + LOOK_SECONDS
        return self._attended[0]

    async def close(self) -> None:
        """Lead no more, and let the next one. What is under way neither goes on nor begins to lead."""
        self._closed = True
        await self._end()
        if self._other is not None:
            await self._other.close()
        if self._servers is not None:
            await self._servers.close()

    @property
    def leads(self) -> bool:
        """Whether this process does."""
        return self._own is not None

    async def _found(self) -> "Leads | _Other | Occupied":
        async with self._turn:
            if self._own is not None:
                return self._own
            if self._closed:
                raise Determinate("the environment was closed meanwhile", hint="ask the client for it again")
            home = self._location.home
            if home == READ_ONLY:
                raise StoreReadOnly(
                    "this location is open for reading only, so nothing is executed here",
                    hint="open it without read_only=True",
                    environment=self._environment,
                )
            if home == MEMORY:
                self._own = await LoneLeader.open(self._access, self._environment)
            elif home:
                return await self._in_directory(home)
            else:
                self._own = await self._shared()
            return self._own

    async def _in_directory(self, home: str) -> "Leads | _Other | Occupied":
        host = self._location.runtime.hostname
        seat = self._seat or take_seat(home, self._environment, host=host)
        if isinstance(seat, Occupied):
            return await self._at(seat) if seat.address else seat
        self._seat = seat
        try:
            self._own = await self._lead(seat)
        except BaseException:
            seat.leave()
            self._seat = None
            raise
        return self._own

    async def _served(self) -> bool:
        """Whether who opened the catalog last is a server that says where it listens."""
        durable = await find_catalog(self._access.client, self._environment)
        assert isinstance(durable, DurableCatalog)
        addresses = Addresses(KeptInShard(self._access.client, self._environment), self._location.runtime)
        try:
            token, incarnation = await durable.fence()
            told = "" if token is None else await addresses.of(token, incarnation, fresh=True)
            return bool(told) and not told.startswith("unix:")
        finally:
            await addresses.close()
            await durable.close()

    async def _lead(self, seat: Seat) -> Leads:
        try:
            with extra("server"):
                server = cast(Serves, importlib.import_module(SERVER))
        except (MissingExtra, ModuleNotFoundError):
            return await LoneLeader.open(self._access, self._environment)
        return await server.lead(self._access, self._environment, seat)

    async def _at(self, seat: Occupied) -> "_Other":
        if self._other is None or self._other.seat != seat:
            if self._other is not None:
                await self._other.close()
            self._other = _Other(seat, self._access, self._environment)
        return self._other

    async def _shared(self) -> Leads:
        """Lead at stores that processes of other machines may use. Raises NotWritable unless no other can."""
        leader = None if self._take_over else await self._leader()
        if leader is not None:
            raise _led(self._environment, leader)
        own = await LoneLeader.open(self._access, self._environment)
        token, incarnation = own.catalog.token, own.catalog.claim.incarnation
        assert token is not None
        addresses = Addresses(KeptInShard(self._access.client, self._environment), self._location.runtime)
        try:
            await addresses.tell(token, EMBEDDED, incarnation)
        except BaseException:
            await own.close()
            raise
        self._told, self._told_as = addresses, (token, incarnation)
        return own

    async def _leader(self) -> str | None:
        """Where who opened the catalog last listens, empty where that is not said; None: it ended in order, or there
        was none. Raises LocationError.
        """
        durable = await find_catalog(self._access.client, self._environment)
        assert isinstance(durable, DurableCatalog)
        addresses = Addresses(KeptInShard(self._access.client, self._environment), self._location.runtime)
        try:
            token, incarnation = await durable.fence()
            told = ENDED if token is None else await addresses.told(token, incarnation, fresh=True)
            return None if told == ENDED else "" if told == EMBEDDED else told
        finally:
            await addresses.close()
            await durable.close()

    async def _end(self, *, keep: bool = False) -> None:
        own, self._own = self._own, None
        if own is not None:
            await own.close()
        if self._told is not None:
            told, self._told = self._told, None
            token, incarnation = self._told_as
            # Otherwise the next leader needs take_over.
            with contextlib.suppress(LocationError):
                await told.tell(token, ENDED, incarnation)
            await told.close()
        if self._seat is not None and not keep:
            self._seat.leave()
            self._seat = None

    def _silent(self, unsure: Indeterminate | None, failure: Exception) -> Exception:
        who = self._other.seat if self._other is not None else None
        if isinstance(failure, UsageError) or (who is None and unsure is None):
            return failure
        hint = (
            f"let {who} go on (kill -CONT) or end it, and repeat this: no other process may lead while it lives"
            if who is not None
            else "retry"
        )
        kind = Determinate if unsure is None else Indeterminate
        return kind(
            "the leader of the environment does not answer",
            hint=hint,
            environment=self._environment,
            leader=who or "unknown",
            detail=failure,
        )


class _Other:
    """Another process on this machine that leads, once it was seen to lead what is meant."""

    def __init__(self, seat: Occupied, access: Access, environment: str) -> None:
        with extra("grpc"):
            from persist.client.remote.catalog_ddl import DdlLeader

        location = access.client.location
        self.seat = seat
        self._access = access
        self._environment = environment
        self._leader = DdlLeader(seat.address, settings=location.settings, runtime=location.runtime)
        self._verified = False

    async def execute(
        self,
        statements: Sequence[Statement],
        session: Session,
        token: Token,
        deadline: Deadline,
        history: int | None,
        seen: Sequence[Seen],
        *,
        repeated: bool,
    ) -> DdlOutcome:
        """See Leading. One attempt."""
        if not self._verified:
            await self._verify(deadline)
            self._verified = True
        return await self._leader.execute(
            statements, session, token, deadline.slice(), history, seen, repeated=repeated
        )

    async def close(self) -> None:
        """Close the connection."""
        await self._leader.close()

    async def _verify(self, deadline: Deadline) -> None:
        """Raises NotWritable unless it leads this very catalog: of this environment, under the newest token here."""
        durable = await find_catalog(self._access.client, self._environment)
        try:
            token = await durable.fence_token()
        finally:
            await durable.close()
        if not await self._leader.leads(self._environment, token, min(deadline.slice(), STATUS_SECONDS)):
            raise NotWritable(
                "who listens there does not lead this catalog",
                hint="it may have ended a moment ago: repeat it",
                environment=self._environment,
                leader=self.seat,
            )


def _servers(endpoints: str, access: Access) -> "DdlServers":
    with extra("grpc"):
        from persist.client.remote.catalog_ddl import DdlServers

    location = access.client.location
    return DdlServers(endpoints, settings=location.settings, runtime=location.runtime)


def _absent(seat: Occupied, environment: str) -> Determinate:
    return Determinate(
        "another process leads this environment and cannot be reached",
        hint="it serves others once persist-tvc[server] is installed there; or let it end",
        environment=environment,
        leader=seat,
    )


def _led(environment: str, address: str) -> NotWritable:
    hint = (
        f"give endpoints={address!r} to environment() or session(), or Settings(catalog_endpoints=…) to connect(); "
        "commands take PERSIST_CATALOG_ENDPOINTS"
        if address
        else "start `persist serve catalog --generation 1` and give its address as endpoints=; if its leader is gone "
        "for good, take_over=True leads here instead"
    )
    return NotWritable(
        "another program leads this environment, or ended without saying so",
        hint=hint,
        environment=environment,
        leader=address or "unknown",
    )
