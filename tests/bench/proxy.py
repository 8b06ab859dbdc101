"""A proxy that counts HTTP requests by kind and passes them on. It slows requests down: for counting only."""

import asyncio
import threading
from collections import Counter
from typing import Self


class Proxy:
    """Listens on a free port of 127.0.0.1 in a thread of its own. ``take`` returns the counts since the last one."""

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def take(self) -> Counter[str]:
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        rest = asyncio.all_tasks(self._loop)
        for task in rest:
            task.cancel()
        server.close()
        self._loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        back = asyncio.ensure_future(_copy(up_reader, writer))
        try:
            while await self._one_request(reader, up_writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the client is gone, or the proxy closes
        finally:
            back.cancel()
            up_writer.close()
            writer.close()

    async def _one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        method, target, _ = lines[0].split(" ", 2)
        with self._lock:
            self._counts[kind_of(method, target)] += 1
        writer.write(head)
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while (size := int((line := await reader.readuntil(b"\r\n")).split(b";")[0], 16)) >= 0:
                writer.write(line + await reader.readexactly(size + 2))
                if size == 0:
                    break
        else:
            left = int(headers.get("content-length", 0))
            while left:
                piece = await reader.read(min(left, 1 << 18))
                if not piece:
                    return False
                left -= len(piece)
                writer.write(piece)
                await writer.drain()
        await writer.drain()
        return True


def kind_of(method: str, target: str) -> str:
    """What a request is about: PUT rollup, GET part, LIST, ..."""
    path, _, query = target.partition("?")
    if method == "GET" and ("list-type" in query or "prefix=" in query):
        return "LIST"
    if "uploads" in query or "uploadId" in query:
        method = "MULTIPART"
    return f"{method} rollup" if "/rollup/" in path else method


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
