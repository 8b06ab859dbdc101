"""Leadership: whether this process leads its catalog, and what it answers when it does not.

A server leads from the moment it opened the catalog for writing until another one did. From then on it refuses every
write of every session it had, for ever, and follows the new leader like any other follower. It leads again only when it
is asked to, with a generation above that of the server that fenced it: two servers of one generation never take the
catalog from each other by turns. What no server did, an edit by hand, is no hindrance. Source: catalog-semantics.md
sections 1.2.1 and 1.2.7; reliability.md I16.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from enum import StrEnum

from persist.client.catalog.addresses import ENDED, Addresses
from persist.client.catalog.port import LedCatalog, OpenableCatalog, ReadWriteCatalog
from persist.core.catalog.errors import Fenced, NotWritable
from persist.core.catalog.kinds import AnyKind
from persist.core.catalog.leadership.fencing import FenceClaim, open_step
from persist.core.catalog.objects import FenceToken
from persist.errors import CorruptData, Determinate, LocationError, UsageError
from persist.typed import AnyKey, AnyValue
from persist_catalog.mirror import Mirror


class CatalogRole(StrEnum):
    """What a server is to its catalog."""

    FOLLOWER = "follower"
    LEADER = "leader"
    FENCED = "fenced"


class Leadership:
    """Of one server over one catalog. ``may_lead`` False: it follows for ever. ``told`` gets every change of role.

    ``address`` is where the server listens, as clients reach it. ``begun`` is the upper at which its leadership began:
    what sessions read before was read under another leader, if not in another form. ``above``: the newest token known
    of a history that ended by a restore: epochs begin anew there, and no session of then may take this for its own.
    """

    def __init__(
        self,
        durable: OpenableCatalog,
        mirror: Mirror,
        addresses: Addresses,
        *,
        may_lead: bool,
        above: FenceToken | None = None,
        told: Callable[[CatalogRole], None] = lambda role: None,
    ) -> None:
        self.address = ""
        self.role = CatalogRole.FOLLOWER
        self.own: FenceToken | None = None
        self.begun = 0
        self._durable = durable
        self._mirror = mirror
        self._addresses = addresses
        self._may_lead = may_lead
        self._above = above
        self._told = told
        self._announced: FenceToken | None = None
        self._catalog: LedCatalog | None = None
        self._unsure = False
        self._turn = asyncio.Lock()

    async def lead(self, generation: int) -> FenceToken:
        """Open the catalog for writing, fencing the leader, this server's own sessions too. Raises as ``open``.

        Raises NotWritable when this server follows only, or was fenced by another server of this generation or a later
        one.
        """
        async with self._turn:
            await self._mirror.sync()
            self.look()
            if not self._may_lead:
                raise await self._not_writable("this server only follows", "ask the leader")
            seen = self._mirror.token
            if (
                self.role is CatalogRole.FENCED
                and seen is not None
                and not await self._may_lead_again(generation, seen)
            ):
                raise await self._not_writable("this server was fenced", "a higher generation lets it lead again")
            await self._announce(generation, seen)
            self._unsure = True
            try:
                catalog = await self._opened(generation)
            except UsageError:
                self._unsure = False
                raise
            self._unsure = False
            assert catalog.token is not None
            self.begun = catalog.upper
            self._become(CatalogRole.LEADER, catalog, catalog.token)
            with contextlib.suppress(LocationError):
                # Only those who look for the leader would miss it.
                await self._addresses.tell(catalog.token, self.address, catalog.claim.incarnation)
            return catalog.token

    async def _announce(self, generation: int, seen: FenceToken | None) -> None:
        """Say, before it is fenced for, where the one listens who leads next. Raises as ``open``."""
        token = open_step(seen, generation).token
        if self.address and token != self._announced:
            with contextlib.suppress(LocationError):
                await self._addresses.announce(token, self.address, self._mirror.raw.incarnation)
                self._announced = token

    async def _opened(self, generation: int) -> LedCatalog:
        while True:
            catalog = await self._durable.open(generation)
            assert isinstance(catalog, LedCatalog)
            if self._above is None or catalog.token is None or catalog.token.epoch > self._above.epoch:
                return catalog

    async def join(self, token: FenceToken | None) -> FenceToken:
        """The token to write with, which is ``token`` if given. Raises Fenced, NotWritable."""
        async with self._turn:
            if self.role is CatalogRole.LEADER and self.own is not None and token in (None, self.own):
                return self.own
            await self._mirror.sync()
            self.look()
            if self.role is not CatalogRole.LEADER or self.own is None or (token is not None and token != self.own):
                raise await self._refusal(token)
            return self.own

    @contextlib.asynccontextmanager
    async def writing(self, token: FenceToken) -> AsyncIterator[ReadWriteCatalog]:
        """The catalog, for who has this token, alone until the end of the block. Raises Fenced, NotWritable."""
        async with self._turn:
            self._mirror.check()
            if self._catalog is None or token != self.own:
                await self._mirror.sync()
                self.look()
            if self._catalog is None or token != self.own:
                raise await self._refusal(token)
            try:
                yield self._catalog
            except Fenced:
                self._end()
                raise

    async def lead_if_nobody_can(self) -> None:
        """Lead where no other process ever did, or this address did, or who did ended in order. Raises NotWritable.

        A leader that is only silent is not deposed: a generation does that, which a person gives.
        """
        await self._mirror.sync()
        self.look()
        seen = self._mirror.token
        if self.role is CatalogRole.LEADER:
            return
        if seen is not None:
            told = await self._addresses.told(seen, self._mirror.raw.incarnation, fresh=True)
            if told != ENDED and not (told and told == self.address):
                raise await self._not_writable(
                    "this server does not lead, and another process may",
                    "ask the leader; if it is gone for good, persist serve catalog --generation leads instead",
                )
        await self.lead(0 if seen is None else seen.deploy_generation)

    async def edit(self, kind: AnyKind, key: AnyKey, value: AnyValue) -> AnyValue:
        """See OpenableCatalog.edit. If this server led, it does not any more, and may be asked to lead again."""
        async with self._turn:
            if not self._may_lead:
                raise await self._not_writable("this server only follows", "ask another one")
            unsure, self._unsure = self._unsure, True
            try:
                previous = await self._durable.edit(kind, key, value)
            except (UsageError, Determinate, CorruptData):
                # Nothing was appended: the leader still leads.
                self._unsure = unsure
                raise
            except BaseException:
                self._step_down()
                raise
            self._step_down()
            return previous

    def look(self) -> None:
        """Whether the mirror shows that another process leads."""
        seen = self._mirror.raw
        if self._catalog is not None and self._catalog.claim.fenced_by(seen.token, seen.incarnation) is not None:
            self._end()

    def catalog(self) -> ReadWriteCatalog | None:
        """The catalog as it is in memory while this server leads: to look at, not to write to."""
        return self._catalog

    async def close(self) -> None:
        """Close what addresses are published in."""
        await self._addresses.close()

    async def leader(self) -> str:
        """Where the leader listens, as far as that is known; empty if it is not."""
        if self.role is CatalogRole.LEADER:
            return self.address
        token = self._mirror.token
        return "" if token is None else await self._addresses.of(token, self._mirror.raw.incarnation)

    async def _refusal(self, token: FenceToken | None) -> Exception:
        seen = self._mirror.token
        fenced = None if token is None else FenceClaim(token.deploy_generation, token).fenced_by(seen)
        return fenced or await self._not_writable("this server does not lead", "ask the leader")

    async def _not_writable(self, message: str, hint: str) -> NotWritable:
        seen = self._mirror.token
        who: dict[str, object] = {}
        if seen is not None:
            who = {"generation": seen.deploy_generation, "epoch": seen.epoch}
            with contextlib.suppress(LocationError):
                who["leader"] = await self.leader()
        return NotWritable(message, hint=hint, **who)

    def _step_down(self) -> None:
        if self.role is CatalogRole.LEADER:
            self._become(CatalogRole.FOLLOWER, None, None)

    async def _may_lead_again(self, generation: int, seen: FenceToken) -> bool:
        """Whether a server that was fenced may lead: not if that would take the catalog from its equal.

        A later epoch of its own generation without an address is no server's: the catalog was edited by hand,
        or its leader has none. Who asks to lead fences that. A generation below its own was set back by hand.
        """
        if generation > seen.deploy_generation:
            return True
        own = self.own
        same = own is not None and own.deploy_generation >= seen.deploy_generation == generation
        at = await self._addresses.of(seen, self._mirror.raw.incarnation, fresh=True)
        return same and at in ("", self.address)

    def _end(self) -> None:
        # What this server did itself may be what fenced it, which is no reason not to lead again.
        self._become(CatalogRole.FOLLOWER if self._unsure else CatalogRole.FENCED, None, self.own)

    def _become(self, role: CatalogRole, catalog: LedCatalog | None, own: FenceToken | None) -> None:
        self.role, self._catalog, self.own = role, catalog, own
        self._told(role)
