"""Webhooks as a process: what is served until SIGTERM, and its side port."""

import asyncio
import json as jsons
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from persist.errors import PersistError
from persist.runtime import system
from persist_host import logs
from persist_host.address import Address
from persist_host.http_endpoint import SidePort
from persist_host.process import run_service
from persist_host.telemetry import Telemetry
from persist_ingest import Location
from persist_ingest.pipeline.records import SourceNotFound
from persist_ingest.receiving.receiver import HELP, Figure, Receiver, ReceiverOptions
from persist_webhook.certificates import Certificates
from persist_webhook.server import Limits, WebhookServer

GRACE_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 2.0
"""Between two looks whether a source that was dropped is there again."""

_log = logging.getLogger(__name__)


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
        self._receivers: dict[str, Receiver] = {}
        self._reviving: asyncio.Task[None] | None = None
        self._server: WebhookServer | None = None
        self._side: SidePort | None = None

    async def start(self, listen: Address, side_listen: str) -> Address:
        """Begin; where it listens. Raises as Receiver, and Determinate (a port is taken)."""
        try:
            for name in self._names:
                receiver = await asyncio.to_thread(Receiver, self._location, name, options=self._options)
                self._receivers[receiver.source.name] = receiver
                await asyncio.to_thread(receiver.begin)
            # One dictionary: a source that is made again is served from then on.
            self._server = WebhookServer(self._receivers, self._limits, self._certificates)
            address = await self._server.start(listen)
            self._reviving = asyncio.get_running_loop().create_task(self._revive())
            if side_listen:
                counted = _Counted(self._figures)
                self._side = SidePort(counted, self._is_ready, self._remarks)
                await self._side.start(Address.parse(side_listen))
        except BaseException:
            await self.stop()
            raise
        return address

    async def stop(self) -> None:
        """Answer what came, then end."""
        if self._reviving is not None:
            self._reviving.cancel()
            await asyncio.wait([self._reviving])
        if self._server is not None:
            await self._server.stop(GRACE_SECONDS)
        for receiver in self._receivers.values():
            await asyncio.to_thread(receiver.close)
        if self._side is not None:
            await self._side.close()

    def _is_ready(self) -> bool:
        """Some of what is sent here is taken: with all of its sources dropped a balancer may as well ask another."""
        return any(not each.is_dropped for each in tuple(self._receivers.values()))

    def _remarks(self) -> list[str]:
        return [f"source {name} was dropped" for name, each in tuple(self._receivers.items()) if each.is_dropped]

    def _figures(self) -> Iterator[Figure]:
        if self._server is not None:
            yield from self._server.figures()
        for receiver in tuple(self._receivers.values()):
            yield from receiver.figures()

    async def _revive(self) -> None:
        """Serve sources that were dropped and made again, in their new lives."""
        while True:
            await system().sleep(LOOK_SECONDS)
            for name, receiver in tuple(self._receivers.items()):
                if receiver.is_dropped:
                    try:
                        await self._served_again(name, receiver)
                    except SourceNotFound:
                        pass
                    except PersistError as error:
                        _log.warning("source %s cannot be served again: %s", name, error)

    async def _served_again(self, name: str, before: Receiver) -> None:
        again = await asyncio.to_thread(Receiver, self._location, name, options=self._options)
        try:
            if again.source.generation == before.source.generation:
                return
            await asyncio.to_thread(again.begin)
            again, self._receivers[name] = before, again
            _log.warning("source %s was dropped and made again, and is served", name)
        finally:
            await asyncio.to_thread(again.close)


class _Counted(Telemetry):
    """What receivers count, at the moment at which it is asked for."""

    def __init__(self, figures: Callable[[], Iterator[Figure]]) -> None:
        super().__init__(service="persist webhook", help=HELP)
        self._figures = figures

    def prometheus(self) -> str:
        self._counts.clear()
        self._gauges.clear()
        for name, labels, value in self._figures():
            (self._counts if name.endswith("_total") else self._gauges)[name, labels] = value
        return super().prometheus()
