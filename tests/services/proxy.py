"""A TCP proxy that loses connections and answers on request."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """Forwards to one endpoint. ``deaf``: what the server answers is dropped, as if the reply was lost."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.deaf = False
        self.connections = 0
        self.endpoint = ""

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
                if not (answers and self.deaf):
                    writer.write(data)
                    await writer.drain()


@asynccontextmanager
async def proxy_to(endpoint: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(endpoint)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.endpoint = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()


@asynccontextmanager
async def black_hole() -> AsyncIterator[str]:
    """An endpoint that takes connections and never says a word, like a frozen server."""
    server = await asyncio.start_server(lambda reader, writer: asyncio.Event().wait(), "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def free_endpoint() -> str:
    """An endpoint where nobody listens."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    endpoint = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()
    return endpoint
