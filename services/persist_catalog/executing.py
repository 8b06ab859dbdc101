"""Executing: statements on the catalog that this server leads.

What they commit goes through the same turn as what sessions commit: between looking at what came meanwhile and the
commit nothing else writes. Source: collections: the flow of DDL.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from persist.client.catalog.port import LedCatalog, ReadWriteCatalog
from persist.client.collections.access import Access
from persist.client.collections.control.duty import Gauges
from persist.client.collections.leader import Leader
from persist.core.catalog.ddl.asking.seen import Seen
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.statements import Statement
from persist.core.catalog.errors import Fenced
from persist.core.catalog.objects import FenceToken
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.ids import Token
from persist.errors import InvalidArgument
from persist.wire.catalog.ddl import DdlOutcome
from persist_catalog.leadership import CatalogRole, Leadership


class Executing:
    """Of one server. ``access`` None: the catalog is in no location, and has no collections."""

    def __init__(
        self,
        access: Access | None,
        environment: str,
        leadership: Leadership,
        check_seat: Callable[[], None],
        gauges: Gauges,
    ) -> None:
        """``check_seat`` raises NotWritable where a program beside this server leads."""
        self._check_seat = check_seat
        self._access = access
        self._environment = environment
        self._leadership = leadership
        self._gauges = gauges
        self._leader: Leader | None = None
        self._token: FenceToken | None = None
        self._turn = asyncio.Lock()

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
        """See Leads. A server that follows leads from now on where no other can. Raises NotWritable, Fenced."""
        leader = await self.led()
        return await leader.execute(statements, session, token, history, seen, repeated=repeated)

    async def led(self) -> Leader:
        """What executes, as long as this server leads. Raises NotWritable."""
        async with self._turn:
            if self._access is None:
                raise InvalidArgument(
                    "a catalog in a stash alone has no collections",
                    hint="keep it in a location: --implementation persist",
                )
            leadership = self._leadership
            if leadership.role is not CatalogRole.LEADER:
                self._check_seat()
                await leadership.lead_if_nobody_can()
            own, catalog = leadership.own, leadership.catalog()
            assert own is not None
            assert catalog is not None
            if self._leader is None or self._token != own:
                if self._leader is not None:
                    await self._leader.close()
                gated = cast(LedCatalog, _Gated(leadership, catalog, own))
                self._leader = Leader(self._access, self._environment, gated, gauges=self._gauges)
                self._token = own
            return self._leader

    async def close(self) -> None:
        """End what is under way."""
        if self._leader is not None:
            await self._leader.close()


class _Gated:
    """A catalog whose commits take their turn among all that write."""

    def __init__(self, leadership: Leadership, catalog: ReadWriteCatalog, own: FenceToken) -> None:
        self._leadership = leadership
        self._catalog = catalog
        self._own = own

    async def commit(self, transaction: CatalogTransaction, *, ts: int = 0) -> int:
        """See ReadWriteCatalog."""
        try:
            async with self._leadership.writing(self._own) as catalog:
                return await catalog.commit(transaction, ts=ts)
        except Fenced:
            self._leadership.look()
            raise

    def __getattr__(self, name: str) -> object:
        found: object = getattr(self._catalog, name)
        return found
