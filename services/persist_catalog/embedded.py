"""A leader in a program's own process, which serves CatalogService to the other processes of its directory.

``persist.client.collections.leading`` looks this module up by its name: services stand above the library.
Source: docs/adr/0017-who-leads-embedded.md.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from persist.client.catalog.implementation import find_catalog
from persist.client.collections.access import Access
from persist.client.collections.seat import Seat
from persist.core.catalog.ddl.asking.seen import Seen
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.statements import Statement
from persist.core.ids import Token
from persist.wire.catalog.ddl import DdlOutcome
from persist_catalog.service import CatalogDuty, CatalogService
from persist_host import Host, Telemetry
from persist_host.address import Socket

GRACE_SECONDS: Final = 5.0
"""For statements of others that are under way when this process ends in order."""


class Embedded:
    """Leads, and is found by others, until it is closed."""

    def __init__(self, service: CatalogService, host: Host) -> None:
        self._service = service
        self._host = host

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
        """See ``Leads``."""
        return await self._service.execute(statements, session, token, history, seen, repeated=repeated)

    async def close(self) -> None:
        """Serve no more, and close the catalog."""
        await self._host.stop(notice=0, grace=GRACE_SECONDS)


async def lead(access: Access, environment: str, seat: Seat) -> Embedded:
    """Lead the environment and serve it on the socket of the seat. Raises what opening the catalog raises."""
    location = access.client.location
    catalog = await find_catalog(access.client, environment)
    try:
        token = await catalog.fence_token()
    finally:
        await catalog.close()
    telemetry = Telemetry(service="persist-embedded")
    duty = CatalogDuty(environment=environment, generation=0 if token is None else token.deploy_generation)
    service = CatalogService(
        access.client,
        duty,
        settings=location.settings,
        runtime=location.runtime,
        telemetry=telemetry,
        access=access,
        owns=False,
    )
    host = Host(
        [service],
        settings=location.settings,
        runtime=location.runtime,
        telemetry=telemetry,
        with_reflection=False,
    )
    path = seat.socket()
    socket = Socket(path)
    service.listens(str(socket), host.tell)
    try:
        await service.leads()
        await host.start(socket)
        _only_owner(path)
    except BaseException:
        await host.stop(notice=0, grace=0)
        raise
    seat.say(str(socket), host=location.runtime.hostname)
    return Embedded(service, host)


def _only_owner(path: Path) -> None:
    os.chmod(path, 0o700)
