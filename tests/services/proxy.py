"""A TCP proxy that loses connections, answers and everything else on request."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """Forwards to one endpoint. ``deaf``: what the server answers is dropped, as if the reply was lost.

    ``silent``: connections are taken, and nothing goes through them in either direction.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.deaf = False
        self.silent = False
        self.connections = 0
        self.endpoint = ""

    async def open(self) -> None:
        """Take connections; at the port it had before, if it had one."""
        port = int(self.endpoint.rpartition(":")[2] or 0)
        self._server = await asyncio.start_server(self.serve, "127.0.0.1", port)
        self.endpoint = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def shut(self) -> None:
        """Break every connection and take no more."""
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Break every connection."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            back_reader, back_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back_writer}
        up = asyncio.ensure_future(self._pump(reader, back_writer, answers=False))
        down = asyncio.ensure_future(self._pump(back_reader, writer, answers=True))
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        for task, end in ((up, writer), (down, back_writer)):
            task.cancel()
            end.transport.abort()
        self._writers -= {writer, back_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(65536):
                if not (self.silent or (answers and self.deaf)):
                    writer.write(data)
                    await writer.drain()


@asynccontextmanager
async def proxy_to(endpoint: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(endpoint)
    await proxy.open()
    try:
        yield proxy
    finally:
        proxy.shut()


@asynccontextmanager
async def black_hole() -> AsyncIterator[str]:
    """An endpoint that takes connections and never says a word, like a frozen server."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def free_endpoint() -> str:
    """An endpoint where no server listens."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    endpoint = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()
    return endpoint
