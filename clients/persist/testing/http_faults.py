"""An HTTP proxy that answers in the server's stead: with an error, before or after the server did as asked, or late.

Each request goes to a fresh connection, so a lost answer costs no other request anything. Source: reliability.md
section 3.
"""

import asyncio
import random
import re
from collections import Counter
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qsl, urlencode, urlsplit

_BODY = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>injected</Message></Error>'


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An answer in place of the server's. ``done``: the server is asked first, and its answer thrown away."""

    status: int
    code: str
    done: bool = False


class HeldRequests:
    """Requests that wait. ``reached`` is set by the first; all go on to the server with ``release``."""

    def __init__(self, first_lines: str, after: int) -> None:
        self._first_lines = re.compile(first_lines.encode())
        self._left = after
        self._released = asyncio.Event()
        self.reached = asyncio.Event()

    def release(self) -> None:
        """Let them go on, and hold no more of them."""
        self._released.set()

    async def pass_on(self, head: bytes) -> None:
        """Return when the request may go on."""
        if self._released.is_set() or not self._first_lines.match(head):
            return
        if self._left:
            self._left -= 1
            return
        self.reached.set()
        await self._released.wait()


def through(uri: str, endpoint: str, **options: str) -> str:
    """The place an ``s3:`` URI names, by way of another endpoint, with more options."""
    split = urlsplit(uri)
    query = urlencode({**dict(parse_qsl(split.query)), **options, "endpoint": endpoint}, safe=":/")
    return split._replace(query=query).geturl()


def port_of(uri: str) -> int:
    """The port of the endpoint an ``s3:`` URI names."""
    port = urlsplit(dict(parse_qsl(urlsplit(uri).query))["endpoint"]).port
    assert port is not None
    return port


class HttpFaultProxy:
    """Listens on a free port of 127.0.0.1 in front of ``port``. An async context manager; repeatable by seed.

    ``probability``: how many requests are refused, each with one of ``refusals``. ``fired`` counts them by code,
    ``asked`` all requests by their method, those for lists as LIST.
    """

    def __init__(
        self, port: int, refusals: tuple[Refusal, ...] = (), *, probability: float = 0.0, seed: int = 0
    ) -> None:
        self._target = port
        self._refusals = refusals
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._holds: list[HeldRequests] = []
        self.probability = probability
        self.fired: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()

    @property
    def endpoint(self) -> str:
        """Where clients connect."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def hold(self, first_lines: str, *, after: int = 0) -> HeldRequests:
        """From here on keep requests whose first line matches this expression, but for so many at first."""
        hold = HeldRequests(first_lines, after)
        self._holds.append(hold)
        return hold

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        for hold in self._holds:
            hold.release()
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head, body = await _request(reader)
                self.asked["LIST" if b"list-type=" in head.split(b"\r\n")[0] else head.split(b" ")[0].decode()] += 1
                for hold in self._holds:
                    await hold.pass_on(head)
                refusal = self._random.choice(self._refusals) if self._random.random() < self.probability else None
                if refusal is None or refusal.done:
                    answer = await self._ask(head, body)
                if refusal is not None:
                    self.fired[f"{refusal.code}{' done' if refusal.done else ''}"] += 1
                    answer = _refused(refusal)
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client is gone
        finally:
            writer.close()

    async def _ask(self, head: bytes, body: bytes) -> bytes:
        """The server's whole answer, asked on a connection that ends with it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
            writer.write(b"\r\n".join([lines[0], b"Connection: close", *lines[1:]]) + b"\r\n\r\n" + body)
            await writer.drain()
            answer = await reader.read(-1)
        finally:
            writer.close()
        # The client's connection goes on, and the length is in the answer's own head.
        return answer.replace(b"onnection: close", b"onnection: keep-alive", 1)


async def _request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head without its empty line, and body as it stands on the wire."""
    head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in head.split(b"\r\n"))
    }
    if headers.get(b"transfer-encoding", b"").lower() != b"chunked":
        return head, await reader.readexactly(int(headers.get(b"content-length", 0)))
    body = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        body += line + await reader.readexactly(size + 2)
        if size == 0:
            return head, body


def _refused(refusal: Refusal) -> bytes:
    body = _BODY.format(code=refusal.code).encode()
    head = f"HTTP/1.1 {refusal.status} {refusal.code}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body
