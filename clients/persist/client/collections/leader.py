"""Leader: one process at the head of one environment: its catalog open for writing, and what executes statements on it.

Source: collections: who leads; the flow of DDL.
"""

from collections.abc import Sequence
from typing import Protocol

from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.implementation import find_catalog
from persist.client.catalog.port import LedCatalog
from persist.client.catalog.same_history import check_same
from persist.client.collections.access import Access
from persist.client.collections.control.controller import Controller
from persist.client.collections.control.duty import Gauges
from persist.client.collections.executor import Executor
from persist.core.catalog.ddl.asking.seen import Seen
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.statements import Statement
from persist.core.ids import Token
from persist.wire.catalog.ddl import DdlOutcome


class Leads(Protocol):
    """The leader in this process."""

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
        """See Executor. ``history`` of the catalog that the statements come of; None: any.

        Raises Fenced once another process opened the catalog, HistoryRewound.
        """
        ...

    async def close(self) -> None:
        """Lead no more."""
        ...


class Leader:
    """Executes statements on a catalog that its caller opened, and closes, and controls its collections meanwhile.

    Borrows both. One that met a later leader executes nothing any more: every call raises Fenced.
    """

    def __init__(self, access: Access, environment: str, catalog: LedCatalog, *, gauges: Gauges | None = None) -> None:
        """``gauges``: where a service reports what its controller does."""
        location = access.client.location
        self.environment = environment
        self.catalog = catalog
        self.controller = Controller(access, environment, catalog, gauges=gauges)
        self._executor = Executor(
            catalog, self.controller.storage, environment, settings=location.settings, runtime=location.runtime
        )
        self.controller.start()

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
        """See Leads."""
        check_same(history, self.catalog.history, self.environment)
        return await self._executor.execute(statements, session, token=token, seen=seen, repeated=repeated)

    async def close(self) -> None:
        """End what is under way. The catalog stays open."""
        await self._executor.close()
        await self.controller.close()


class LoneLeader:
    """Leads in this process only: no other process finds it. Owns the catalog it opened."""

    def __init__(self, durable: DurableCatalog, leader: Leader) -> None:
        self._durable = durable
        self._leader = leader

    @classmethod
    async def open(cls, access: Access, environment: str) -> "LoneLeader":
        """Lead, with the generation there is. Raises what opening a catalog for writing raises."""
        durable = await find_catalog(access.client, environment)
        assert isinstance(durable, DurableCatalog)
        try:
            token = await durable.fence_token()
            catalog = await durable.open(0 if token is None else token.deploy_generation)
        except BaseException:
            await durable.close()
            raise
        return cls(durable, Leader(access, environment, catalog))

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
        """See Leads."""
        return await self._leader.execute(statements, session, token, history, seen, repeated=repeated)

    @property
    def catalog(self) -> LedCatalog:
        """The catalog, open for writing."""
        return self._leader.catalog

    async def close(self) -> None:
        """See Leads."""
        await self._leader.close()
        await self._leader.catalog.close()
        await self._durable.close()
