"""Statements that define, sent to the leader: at servers of a catalog, or at one very address.

Source: protos/persist/v1/catalog_ddl.proto; reliability.md section 5.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from persist.client.remote.catalog import CatalogCalls
from persist.client.remote.channel import Channel, Metadata, offering
from persist.client.remote.endpoints import Endpoints
from persist.core.catalog.ddl.asking.seen import Seen
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.statements import Statement
from persist.core.catalog.objects import FenceToken
from persist.core.ids import Token
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.v1 import catalog_ddl_pb2 as pb_ddl
from persist.v1 import catalog_pb2 as pb
from persist.v1.catalog_pb2_grpc import CatalogServiceStub
from persist.wire.catalog.ddl import DdlOutcome, outcome_of, request_message
from persist.wire.catalog.rpc import answers, leads, optional_token

ROLE_HEADER: Final = "persist-role"
"""Names the role in whose name statements are executed."""


class DdlServers:
    """The servers of a catalog, of which one leads. Raises InvalidArgument (no endpoint)."""

    def __init__(self, endpoints: str, *, settings: Settings, runtime: Runtime) -> None:
        self._calls = CatalogCalls(endpoints, settings=settings, runtime=runtime)

    async def execute(
        self,
        statements: Sequence[Statement],
        session: Session,
        token: Token,
        deadline: Deadline,
        history: int | None = None,
        seen: Sequence[Seen] = (),
        *,
        repeated: bool = False,
    ) -> DdlOutcome:
        """What became of the statements, asked until it is known. Raises what executing raises, LocationError.

        ``history`` of the catalog that they come of; None: any. ``seen``: what names meant. ``repeated``: an earlier
        attempt under the token may have been sent. Raises HistoryRewound where there is another one.
        """
        request = request_message(statements, session, str(token), history, seen)
        again = pb_ddl.ExecuteRequest()
        again.CopyFrom(request)
        again.repeated = True
        told = await self._calls.write(
            "Execute",
            again if repeated else request,
            again=again,
            settled=True,
            timeout=deadline.slice(),
            metadata=_role(session),
        )
        with answers():
            return outcome_of(told)

    async def close(self) -> None:
        """Close the connections."""
        await self._calls.close()


class DdlLeader:
    """Who listens at one address, as gRPC has it. Every call is one attempt."""

    def __init__(self, address: str, *, settings: Settings, runtime: Runtime) -> None:
        self.address = address
        self._endpoints = Endpoints(address, CatalogServiceStub, settings=settings, runtime=runtime)

    async def leads(self, environment: str, token: FenceToken | None, seconds: float) -> bool:
        """Whether it leads this environment with this very token. Raises LocationError."""

        async def attempt(channel: Channel, left: float) -> pb.GetStatusResponse:
            with _offered(self.address):
                told: pb.GetStatusResponse = await channel.unary("GetStatus", pb.GetStatusRequest(), None, left)
            return told

        status = await self._endpoints.at(self._endpoints.endpoints[0], attempt, seconds)
        own = optional_token(status, "own")
        return status.environment == environment and leads(status) and own is not None and own == token

    async def execute(
        self,
        statements: Sequence[Statement],
        session: Session,
        token: Token,
        seconds: float,
        history: int | None = None,
        seen: Sequence[Seen] = (),
        *,
        repeated: bool = False,
    ) -> DdlOutcome:
        """As ``DdlServers.execute``, in one attempt. Raises NotWritable, Fenced besides."""
        request = request_message(statements, session, str(token), history, seen)
        request.repeated = repeated

        async def attempt(channel: Channel, left: float) -> pb_ddl.ExecuteResponse:
            with _offered(self.address):
                told: pb_ddl.ExecuteResponse = await channel.unary(
                    "Execute", request, None, left, metadata=_role(session)
                )
            return told

        told = await self._endpoints.at(self._endpoints.endpoints[0], attempt, seconds)
        with answers():
            return outcome_of(told)

    async def close(self) -> None:
        """Close the connection."""
        await self._endpoints.close()


def _role(session: Session) -> Metadata:
    # Metadata is printable ASCII; any text goes as bytes.
    if session.role.isascii() and session.role.isprintable():
        return ((ROLE_HEADER, session.role),)
    return ((f"{ROLE_HEADER}-bin", session.role.encode()),)


def _offered(endpoint: str) -> AbstractContextManager[None]:
    return offering("CatalogService", "catalog", endpoint)
