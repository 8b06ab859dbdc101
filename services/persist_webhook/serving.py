"""Webhooks as a process: what is served until SIGTERM, and its side port."""

import asyncio
import json as jsons
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from persist_host import logs
from persist_host.address import Address
from persist_host.http_endpoint import SidePort
from persist_host.process import run_service
from persist_host.telemetry import Telemetry
from persist_ingest import Location
from persist_ingest.receiving.receiver import HELP, Figure, Receiver, ReceiverOptions
from persist_webhook.certificates import Certificates
from persist_webhook.server import Limits, WebhookServer

GRACE_SECONDS: Final = 20.0


def serve_webhooks(
    location: Location,
    names: Sequence[str],
    listen: str,
    *,
    options: ReceiverOptions | None = None,
    limits: Limits | None = None,
    certificates: Certificates | None = None,
    side_listen: str = "",
    log_level: str = "warning",
    json: bool = False,
) -> int:
    """Serve until SIGTERM and return the exit code (0, 1, 2). Says when it is ready, and where it listens."""
    logs.configure(log_level)
    served = Served(location, names, options=options, limits=limits, certificates=certificates)

    async def begin() -> Served:
        address = await served.start(Address.parse(listen), side_listen)
        told = {"webhook": str(address), "sources": list(names)}
        print(jsons.dumps(told) if json else f"persist webhook listening on {address}", flush=True)
        return served

    return run_service(begin)


class Served:
    """Receivers and their server, from beginning to end."""

    def __init__(
        self,
        location: Location,
        names: Sequence[str],
        *,
        options: ReceiverOptions | None = None,
        limits: Limits | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self._location, self._names, self._options, self._limits = location, tuple(names), options, limits
        self._certificates = certificates
        self._receivers: list[Receiver] = []
        self._server: WebhookServer | None = None
        self._side: SidePort | None = None

    async def start(self, listen: Address, side_listen: str) -> Address:
        """Begin; where it listens. Raises as Receiver, and Determinate (a port is taken)."""
        try:
            for name in self._names:
                receiver = await asyncio.to_thread(Receiver, self._location, name, options=self._options)
                self._receivers.append(receiver)
                await asyncio.to_thread(receiver.begin)
            by_name = {each.source.name: each for each in self._receivers}
            self._server = WebhookServer(by_name, self._limits, self._certificates)
            address = await self._server.start(listen)
            if side_listen:
                counted = _Counted([self._server.figures, *(each.figures for each in self._receivers)])
                self._side = SidePort(counted, lambda: True, lambda: ())
                await self._side.start(Address.parse(side_listen))
        except BaseException:
            await self.stop()
            raise
        return address

    async def stop(self) -> None:
        """Answer what came, then end."""
        if self._server is not None:
            await self._server.stop(GRACE_SECONDS)
        for receiver in self._receivers:
            await asyncio.to_thread(receiver.close)
        if self._side is not None:
            await self._side.close()


class _Counted(Telemetry):
    """What receivers count, at the moment at which it is asked for."""

    def __init__(self, figures: Sequence[Callable[[], Iterator[Figure]]]) -> None:
        super().__init__(service="persist webhook", help=HELP)
        self._figures = figures

    def prometheus(self) -> str:
        self._counts.clear()
        self._gauges.clear()
        for figures in self._figures:
            for name, labels, value in figures():
                (self._counts if name.endswith("_total") else self._gauges)[name, labels] = value
        return super().prometheus()
