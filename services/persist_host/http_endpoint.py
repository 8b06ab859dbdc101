"""The side port: /healthz (the loop runs), /readyz (take traffic?), /metrics (Prometheus). Plain HTTP, GET only."""

import asyncio
import errno
from collections.abc import Callable, Sequence
from typing import Final

from persist.errors import Determinate
from persist_host.address import Address
from persist_host.telemetry import Telemetry

_REQUEST_SECONDS: Final = 5.0
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


class SidePort:
    """A tiny HTTP server for load balancers and Prometheus.

    ``ready`` says whether to send traffic here; ``remarks`` what people should know all the same.
    """

    def __init__(self, telemetry: Telemetry, ready: Callable[[], bool], remarks: Callable[[], Sequence[str]]) -> None:
        self._telemetry = telemetry
        self._ready = ready
        self._remarks = remarks
        self._server: asyncio.Server | None = None

    async def start(self, address: Address) -> Address:
        """Listen. Returns where, with the real port. Raises Determinate: the port is taken, or the host is not here."""
        try:
            self._server = await asyncio.start_server(self._serve, address.host, address.port, limit=8192)
        except OSError as error:
            hint = (
                "is another process on this port?" if error.errno == errno.EADDRINUSE else "is this host's name right?"
            )
            raise Determinate(
                "cannot listen at the side port", hint=hint, address=address, detail=error.strerror or str(error)
            ) from error
        return address.at(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                line = (await reader.readline()).decode("latin-1").split()
                while (await reader.readline()).strip():
                    pass
                status, body = self._answer(line)
                data = body.encode()
                head = (
                    f"HTTP/1.1 {status}",
                    f"Content-Type: {_TEXT}",
                    f"Content-Length: {len(data)}",
                    "Connection: close",
                )
                writer.write("\r\n".join((*head, "", "")).encode() + data)
                await writer.drain()
        except (TimeoutError, ConnectionError, ValueError, asyncio.IncompleteReadError):
            pass  # a client that does not speak HTTP, or left
        finally:
            writer.close()

    def _answer(self, line: list[str]) -> tuple[str, str]:
        if len(line) < 2 or line[0] != "GET":
            return "405 Method Not Allowed", "GET only\n"
        path = line[1].partition("?")[0]
        if path == "/healthz":
            return "200 OK", "ok\n"
        if path == "/readyz":
            said = "".join(f"{remark}\n" for remark in self._remarks())
            return ("200 OK", f"ready\n{said}") if self._ready() else ("503 Service Unavailable", f"not ready\n{said}")
        if path == "/metrics":
            return "200 OK", self._telemetry.prometheus()
        return "404 Not Found", "try /healthz, /readyz, /metrics\n"
