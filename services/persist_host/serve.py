"""One way to serve: what differs between services is a value.

Source: architecture.md sections 6 and 8.
"""

import json as jsons
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from persist.runtime import Runtime, system
from persist.settings import Settings
from persist_host import logs
from persist_host.address import Address
from persist_host.durability import DurableStore
from persist_host.host import Host, Service
from persist_host.process import run_service
from persist_host.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a process serves, over stores or clients that are open.

    ``services`` are registered, drained and closed in this order, and own what they work on. ``stores`` are checked.
    ``begin`` starts what works in the background, once the host listens; when it raises, the host is stopped.
    """

    services: Sequence[Service]
    stores: Sequence[DurableStore]
    begin: Callable[[Host, Address], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """A kind of process: its name, what it is built from, and what it says when it is ready.

    ``ready``: the line for people, in which ``{address}`` is where it listens. ``facts``: what programs are given
    beside the address, which stands under each of ``names``.
    """

    name: str
    build: Callable[[Settings, Runtime, Telemetry], Awaitable[Built]]
    ready: str = ""
    names: tuple[str, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)

    def telemetry(self, otlp_endpoint: str = "") -> Telemetry:
        """Telemetry of such a process."""
        return Telemetry(service=f"persist-{self.name}", otlp_endpoint=otlp_endpoint)

    def said(self, address: Address, *, json: bool) -> str:
        """The line a process prints when it is ready."""
        if json:
            return jsons.dumps({**dict.fromkeys(self.names or (self.name,), str(address)), **self.facts})
        line = self.ready or f"persist {self.name} listening on {{address}}"
        return line.replace("{address}", str(address))


def serve(
    spec: ServiceSpec,
    listen: str,
    settings: Settings,
    *,
    side_listen: str = "",
    otlp_endpoint: str = "",
    with_reflection: bool = True,
    log_level: str = "warning",
    json: bool = False,
) -> int:
    """Serve until SIGTERM and return the exit code (0, 1, 2, 78). Says when it is ready.

    ``listen`` and ``side_listen`` (``/healthz /readyz /metrics``; empty: none) are HOST:PORT; port 0 is any free one.
    """
    logs.configure(log_level)

    async def begin() -> Host:
        host, address = await start(
            spec,
            listen,
            settings,
            telemetry=spec.telemetry(otlp_endpoint),
            side_listen=side_listen,
            with_reflection=with_reflection,
        )
        print(spec.said(address, json=json), flush=True)
        return host

    return run_service(begin)


async def start(
    spec: ServiceSpec,
    listen: str,
    settings: Settings,
    *,
    telemetry: Telemetry | None = None,
    runtime: Runtime | None = None,
    side_listen: str = "",
    with_reflection: bool = True,
) -> tuple[Host, Address]:
    """A process of this kind in this event loop, and where it listens. ``host.stop()`` ends it and closes all it has.

    Raises UnsafeConfiguration, InvalidArgument, InvalidUri, LocationError (no endpoint said where the parts are, or
    the port is taken), and what the beginning of its background work raises.
    """
    for given in filter(None, (listen, side_listen)):
        Address.parse(given)  # before anything is reached: who mistyped it should not have to wait
    runtime = runtime or system()
    telemetry = telemetry or spec.telemetry()
    built = await spec.build(settings, runtime, telemetry)
    host, address = await Host.open(
        built.services,
        built.stores,
        listen,
        settings=settings,
        runtime=runtime,
        telemetry=telemetry,
        side_listen=side_listen,
        with_reflection=with_reflection,
    )
    if built.begin is not None:
        try:
            await built.begin(host, address)
        except BaseException:
            await host.stop(notice=0, grace=0)
            raise
    return host, address
