"""One gRPC server with everything around it: guard, health, reflection, side port, and an orderly end.

The order of the end: health says NOT_SERVING, a pause so that load balancers notice, no new calls, calls in flight
finish within the grace, services close in the order they were given, stores close.
Source: reliability.md section 5, drain.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from persist.errors import Determinate
from persist.retry.tasks import Tasks
from persist.runtime import Runtime
from persist.settings import Settings
from persist_host.address import Address, Socket
from persist_host.durability import Durability, DurableStore
from persist_host.guard.interceptor import CallGuard
from persist_host.guard.scan import check_bounds
from persist_host.http_endpoint import SidePort
from persist_host.options import server_options
from persist_host.pulse import StorePulse
from persist_host.telemetry import Telemetry

DURABLE: Final = "persist.durable"
NOTICE_SECONDS: Final = 1.0
GRACE_SECONDS: Final = 20.0

AnyListen = TypeVar("AnyListen", Address, Socket)

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Service(Protocol):
    """A service that a host runs."""

    @property
    def name(self) -> str:
        """The full gRPC service name."""
        ...

    @property
    def undated(self) -> frozenset[str]:
        """Full names of methods that need no deadline of their own."""
        ...

    def register(self, server: grpc.aio.Server) -> None:
        """Add the servicer to a server."""
        ...

    async def drain(self) -> None:
        """End long streams so that clients go elsewhere."""
        ...

    async def close(self) -> None:
        """Release everything. No call is in flight any more."""
        ...


class Host:
    """Runs services on one port. ``start``, then ``wait`` until ``stop`` is called."""

    def __init__(
        self,
        services: Sequence[Service],
        *,
        settings: Settings,
        runtime: Runtime,
        telemetry: Telemetry,
        durability: Durability | None = None,
        pulse: StorePulse | None = None,
        with_reflection: bool = True,
    ) -> None:
        for service in services:
            check_bounds(service.name, settings)
        self._services = tuple(services)
        self._runtime = runtime
        self._telemetry = telemetry
        self._durability = durability
        self._pulse = pulse
        undated = frozenset().union(*(service.undated for service in services))
        guard = CallGuard(settings=settings, runtime=runtime, telemetry=telemetry, undated=undated)
        # The guard bounds calls: gRPC's own bound (maximum_concurrent_rpcs) counts streams and health among them.
        self._server = grpc.aio.server(interceptors=[guard], options=server_options(settings))
        self._health = health.aio.HealthServicer()
        self._with_reflection = with_reflection
        self._side = SidePort(telemetry, lambda: self._ready, lambda: () if pulse is None else pulse.remarks())
        self._tasks = Tasks(telemetry)
        self._ready = False
        self._parts: dict[str, bool] = {}
        self._stopped = asyncio.Event()

    @classmethod
    async def open(
        cls,
        services: Sequence[Service],
        stores: Sequence[DurableStore],
        listen: str,
        *,
        settings: Settings,
        runtime: Runtime,
        telemetry: Telemetry,
        side_listen: str = "",
        with_reflection: bool = True,
    ) -> "tuple[Host, Address]":
        """A host of services that answers, once their stores were found safe; and where it listens.

        The services are closed when that fails: UnsafeConfiguration, InvalidArgument, Determinate (a port is taken).
        """
        durability = Durability(stores, settings=settings, runtime=runtime, telemetry=telemetry)
        host: Host | None = None
        try:
            await durability.check()
            host = cls(
                services,
                settings=settings,
                runtime=runtime,
                telemetry=telemetry,
                durability=durability,
                pulse=StorePulse(stores, settings=settings, runtime=runtime, telemetry=telemetry),
                with_reflection=with_reflection,
            )
            address = await host.start(Address.parse(listen))
            if side_listen:
                await host.open_side(Address.parse(side_listen))
        except BaseException:
            if host is not None:
                host._ready = False
                await host._server.stop(None)
                await host._tasks.close()
            for service in services:
                await service.close()
            raise
        return host, address

    async def start(self, listen: AnyListen) -> AnyListen:
        """Listen and answer. Returns the address with its real port. Raises Determinate when the port is taken."""
        for service in self._services:
            service.register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if self._with_reflection:
            names = (*(service.name for service in self._services), health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        try:
            port = self._server.add_insecure_port(str(listen))
        except RuntimeError as error:
            raise Determinate("cannot listen", hint="is another server on this port?", address=listen) from error
        await self._server.start()
        await self._set_health(_SERVING)
        if self._durability is not None:
            self._tasks.spawn(self._durability.remind(), "reminding of unsafe settings")
        if self._pulse is not None:
            self._tasks.spawn(self._pulse.beat(), "asking the stores whether they are there")
        self._ready = True
        return listen.at(port)

    async def open_side(self, listen: Address) -> Address:
        """Answer ``/healthz``, ``/readyz`` and ``/metrics`` over HTTP. Returns the address with its real port.

        Raises Determinate, as a side port.
        """
        return await self._side.start(listen)

    async def tell(self, part: str, *, serving: bool) -> None:
        """Set the health of a part that a service does not always serve, under its own name."""
        self._parts[part] = serving
        await self._health.set(part, _SERVING if serving and self._ready else _NOT_SERVING)

    async def wait(self) -> None:
        """Return once the host has stopped."""
        await self._stopped.wait()

    async def stop(self, *, notice: float = NOTICE_SECONDS, grace: float = GRACE_SECONDS) -> None:
        """Leave in order: ``notice`` seconds for load balancers, ``grace`` seconds for calls in flight."""
        self._ready = False
        await self._set_health(_NOT_SERVING)
        await self._runtime.sleep(notice)
        for service in self._services:
            await service.drain()
        await self._server.stop(grace)
        await self._tasks.close()
        for service in self._services:
            await service.close()
        await self._side.close()
        self._telemetry.close()
        self._stopped.set()

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", *(service.name for service in self._services)):
            await self._health.set(name, status)
        durable = self._durability is None or self._durability.durable
        await self._health.set(DURABLE, status if durable else _NOT_SERVING)
        for part, serving in self._parts.items():
            await self._health.set(part, status if serving else _NOT_SERVING)
