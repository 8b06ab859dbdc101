"""CatalogService as something a host hosts."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import grpc.aio

from persist.client.catalog.addresses import Addresses, AddressRows, KeptInShard, KeptInStash
from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.implementation import Implementation
from persist.client.catalog.log.shard_log import open_shard_log
from persist.client.catalog.log.stash_log import open_stash_log
from persist.client.catalog.port import OpenableCatalog, RowLog
from persist.client.catalog.shadow.catalog import ShadowCatalog
from persist.client.collections.access import Access
from persist.client.collections.seat import Occupied, Seat, take_seat
from persist.client.shard.client import ShardClient
from persist.core.catalog.ddl.asking.seen import Seen
from persist.core.catalog.ddl.described import SUPERUSER, Session
from persist.core.catalog.ddl.statements import Statement
from persist.core.catalog.errors import Fenced, FencedByGeneration, NotWritable
from persist.core.catalog.kinds import ROLE
from persist.core.catalog.objects import FenceToken, RoleKey
from persist.core.ids import Token
from persist.errors import CorruptData, HistoryRewound, PersistError
from persist.retry.tasks import Tasks
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.open import MEMORY
from persist.v1.catalog_pb2_grpc import add_CatalogServiceServicer_to_server
from persist.wire.catalog.ddl import DdlOutcome
from persist.wire.catalog.rows import CODEC
from persist_catalog.describing import Describing
from persist_catalog.executing import Executing
from persist_catalog.leadership import CatalogRole, Leadership
from persist_catalog.mirror import Mirror, TappedLog
from persist_catalog.servicer import CatalogServicer, Serving
from persist_catalog.sessions import LEASE_SECONDS, ServedSessions
from persist_catalog.stages import Stages
from persist_catalog.writes import Writes
from persist_host import Telemetry

AGAIN_SECONDS: Final = 0.5
AGAIN_SECONDS_MAX: Final = 5.0
"""How long after a restore was met, or was not over yet, the catalog is opened again."""

NAME: Final = "persist.v1.CatalogService"
SEAT_SECONDS: Final = 0.5
LEADER: Final = "persist.catalog.leader"
"""The health of leading: SERVING where writes are taken."""

_log = logging.getLogger("persist.catalog")


class Tells(Protocol):
    """Where the health of a part is reported: ``Host.tell``."""

    def __call__(self, part: str, *, serving: bool) -> Awaitable[None]:
        """Report it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogDuty:
    """What a server is to do with its catalog.

    ``generation``: lead with it at once. Otherwise follow, and lead when a session asks for it unless ``follow``.
    ``advertise``: where clients reach it; empty: where it listens. ``lease``: seconds a session lives unused.
    ``implementation``: what keeps the catalog; a stash, or a shadow, at ``stash``. Readers of a shadow are shown its
    shard; what its leader does is done to both, and compared.
    """

    environment: str
    generation: int | None = None
    follow: bool = False
    advertise: str = ""
    lease: float = LEASE_SECONDS
    implementation: Implementation = Implementation.PERSIST
    stash: str = ""


class CatalogService:
    """Owns the catalog and the client it is reached with, if any, and closes them. ``begin`` starts it."""

    name = NAME
    undated: frozenset[str] = frozenset()

    def __init__(
        self,
        client: ShardClient | None,
        duty: CatalogDuty,
        *,
        settings: Settings,
        runtime: Runtime,
        telemetry: Telemetry,
        access: Access | None = None,
        owns: bool = True,
    ) -> None:
        """``access``: what statements need; None: they are not executed. ``owns`` False: the client is borrowed."""
        self._client = client
        self._access = access
        self._owns = owns
        self._leads = False
        self._seat: Seat | None = None
        self._settings = settings
        self._duty = duty
        self._runtime = runtime
        self._telemetry = telemetry
        self._tasks = Tasks(telemetry)
        self._opening = asyncio.Lock()
        self._serving: Serving | None = None
        self._tells: Tells | None = None
        self._address = duty.advertise
        self._former: FenceToken | None = None
        self._servicer = CatalogServicer(
            self.serving, limit=settings.max_message_bytes, telemetry=telemetry, runtime=runtime
        )

    def listens(self, address: str, tells: Tells) -> None:
        """Say where it listens, and where the health of leading is reported."""
        self._address = self._duty.advertise or address
        self._tells = tells
        self._become(CatalogRole.FOLLOWER)

    async def serving(self) -> Serving:
        """What it serves, opened when it is first asked for. Raises what opening raises."""
        if self._serving is not None:
            return self._serving
        async with self._opening:
            if self._serving is None:
                self._serving = await self._open()
        return self._serving

    def register(self, server: grpc.aio.Server) -> None:
        """Add the servicer to a server."""
        add_CatalogServiceServicer_to_server(self._servicer, server)

    async def drain(self) -> None:
        """End the streams of changes."""
        self._servicer.drain()

    async def close(self) -> None:
        """Close the catalog, then the client."""
        await self._tasks.close()
        serving, self._serving = self._serving, None
        if serving is not None:
            await self._let_go(serving)
        if self._seat is not None:
            self._seat.leave()
        if self._client is not None and self._owns:
            await self._client.close()

    async def execute(
        self,
        statements: Sequence[Statement],
        session: Session,
        token: Token | None,
        history: int | None = None,
        seen: Sequence[Seen] = (),
        *,
        repeated: bool = False,
    ) -> DdlOutcome:
        """Carry out statements, as ``Execute`` does."""
        return await (await self.serving()).executing.execute(
            statements, session, token, history, seen, repeated=repeated
        )

    async def leads(self) -> None:
        """Raises NotWritable unless it leads."""
        await (await self.serving()).executing.led()

    async def _open(self) -> Serving:
        duty, codec = self._duty, CODEC
        followed = await self._log()
        try:
            mirror = await Mirror.open(followed, codec, runtime=self._runtime)
        except BaseException:
            # A damaged catalog: it is tried again with every call, and must not leave a lease behind each time.
            await followed.close()
            raise
        durable = await self._catalog(mirror)
        addresses = Addresses(await self._kept(), self._runtime)
        leadership = Leadership(
            durable, mirror, addresses, may_lead=not duty.follow, above=self._former, told=self._become
        )
        leadership.address = self._address
        sessions = ServedSessions(runtime=self._runtime, lease=duty.lease)
        writes = Writes(leadership, mirror, sessions, codec)
        stages = Stages(runtime=self._runtime, tasks=self._tasks)
        if duty.generation is not None:
            try:
                await self._lead(leadership, duty.generation)
            except BaseException:
                await durable.close()
                await mirror.close()
                raise
        self._tasks.spawn(mirror.follow(), "following the catalog")
        self._tasks.spawn(self._keep_looking(mirror, leadership), "looking for leaders")
        executing = Executing(self._access, duty.environment, leadership, self._check_seat, self._telemetry)
        describing = Describing(mirror, codec)
        return Serving(duty.environment, durable, mirror, leadership, sessions, writes, stages, executing, describing)

    async def _log(self) -> RowLog:
        """The rows that readers are shown."""
        if self._client is None:
            return await self._stash(self._duty.environment)
        return await open_shard_log(self._client, self._duty.environment)

    async def _catalog(self, mirror: Mirror) -> OpenableCatalog:
        durable = DurableCatalog(TappedLog(await self._log(), mirror))
        if self._duty.implementation is not Implementation.SHADOW:
            return durable
        second = DurableCatalog(await self._stash(self._duty.environment))
        return ShadowCatalog(durable, second, runtime=self._runtime)

    async def _kept(self) -> AddressRows:
        if self._client is None:
            return KeptInStash(self._duty.environment, self._stash)
        return KeptInShard(self._client, self._duty.environment)

    async def _stash(self, environment: str) -> RowLog:
        return await open_stash_log(self._duty.stash, environment, settings=self._settings, runtime=self._runtime)

    async def _keep_looking(self, mirror: Mirror, leadership: Leadership) -> None:
        """Learn of a new leader also while nothing is asked for. Ends when the catalog is damaged, or restored."""
        try:
            while True:
                upper = mirror.upper
                leadership.look()
                await mirror.changed(upper)
        except HistoryRewound as error:
            _log.warning("the catalog of %s was restored, beginning anew: %s", self._duty.environment, error)
            await self._begin_anew(mirror, leadership)
        except CorruptData as error:
            # Every call raises it, for ever: a person has to look at it, and start this process again.
            _log.error("the catalog of %s is damaged, serving nothing but dumps: %s", self._duty.environment, error)
            self._telemetry.gauge("persist_catalog_leads", (), 0.0)
            await self._tell(LEADER, serving=False)
            await self._tell(NAME, serving=False)

    async def _begin_anew(self, mirror: Mirror, leadership: Leadership) -> None:
        """Give up what was served and led, and open what the restore brought, however long that takes."""
        tokens = [each for each in (self._former, mirror.token, leadership.own) if each is not None]
        self._former = max(tokens, key=lambda token: token.epoch, default=None)
        await self._tell(NAME, serving=False)
        async with self._opening:
            serving, self._serving = self._serving, None
        self._become(CatalogRole.FOLLOWER)
        if serving is not None:
            await self._let_go(serving)
        pause = AGAIN_SECONDS
        while True:
            await self._runtime.sleep(pause)
            try:
                await self.serving()
            except Exception as error:
                if not isinstance(error, PersistError):
                    _log.exception("opening the catalog of %s failed; trying again", self._duty.environment)
                _log.info("the catalog of %s cannot be opened yet: %s", self._duty.environment, error)
                pause = min(2 * pause, AGAIN_SECONDS_MAX)
                continue
            await self._tell(NAME, serving=True)
            _log.warning("serving the catalog of %s again", self._duty.environment)
            return

    async def _let_go(self, serving: Serving) -> None:
        await serving.executing.close()
        await serving.sessions.end()
        await serving.durable.close()
        await serving.mirror.close()
        await serving.leadership.close()

    async def _sit(self) -> None:
        """In a directory: have the seat while this server leads, so that programs there find it, and none leads."""
        assert self._client is not None
        home, host = self._client.location.home, self._runtime.hostname
        while self._leads:
            if self._seat is None:
                seat = take_seat(home, self._duty.environment, host=host)
                self._seat = seat if isinstance(seat, Seat) else None
            if self._seat is not None:
                self._seat.say(self._address, host=host)
                return
            # The former leader gives it back once it learns that it does not lead.
            await self._runtime.sleep(SEAT_SECONDS)

    def _check_seat(self) -> None:
        """Raises NotWritable where a program in this directory leads."""
        home = "" if self._client is None else self._client.location.home
        if not self._owns or self._seat is not None or home in ("", MEMORY):
            return
        seat = take_seat(home, self._duty.environment, host=self._runtime.hostname)
        if isinstance(seat, Occupied):
            raise NotWritable("another process of this directory leads", hint="ask the leader", leader=seat)
        self._seat = seat

    async def _control(self) -> None:
        """Where there is an environment, not only a catalog: care for its collections from the beginning on."""
        serving = await self.serving()
        catalog = serving.leadership.catalog()
        if catalog is not None and catalog.get(ROLE, RoleKey(SUPERUSER)) is not None:
            with contextlib.suppress(NotWritable, Fenced):
                await serving.executing.led()

    async def _tell(self, part: str, *, serving: bool) -> None:
        if self._tells is not None:
            await self._tells(part, serving=serving)

    async def _lead(self, leadership: Leadership, generation: int) -> None:
        try:
            await leadership.lead(generation)
        except FencedByGeneration as error:
            # A newer deployment leads, and this process is of use as a follower.
            _log.error("not leading: %s", error)

    def _become(self, role: CatalogRole) -> None:
        self._telemetry.gauge("persist_catalog_leads", (), float(role is CatalogRole.LEADER))
        self._leads = role is CatalogRole.LEADER
        if self._leads and self._owns and self._client is not None and self._client.location.home not in ("", MEMORY):
            self._tasks.spawn(self._sit(), "taking the seat of a directory")
        if self._leads and self._access is not None:
            self._tasks.spawn(self._control(), "controlling an environment")
        elif not self._leads and self._seat is not None:
            self._seat.leave()
            self._seat = None
        if role is CatalogRole.FENCED:
            _log.warning("fenced: another process leads the catalog of %s; following", self._duty.environment)
        if self._tells is not None:
            self._tasks.spawn(_tell(self._tells, serving=role is CatalogRole.LEADER), "reporting health")


async def _tell(tells: Tells, *, serving: bool) -> None:
    await tells(LEADER, serving=serving)
