"""The HTTP server of webhooks: ``POST /NAME`` for each source that it serves, by TLS where it has a certificate.

Source: RFC 9110; reliability.md section 5, overload and drain.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from persist.errors import Determinate
from persist.runtime import system
from persist_host.address import Address
from persist_ingest.receiving.receiver import Figure, Receiver
from persist_ingest.sources.webhook.refusals import BUSY, NOT_FOUND, NOT_POST, Refused
from persist_webhook.certificates import Certificates
from persist_webhook.exchange import FAILURE, BodyTimes, Exchange, Reply, headers_of
from persist_webhook.guests import Guest, Guests
from persist_webhook.intake import taken

_log = logging.getLogger(__name__)

LINGER_SECONDS: Final = 1.0
BACKLOG: Final = 256
_FULL_SECONDS: Final = 0.1
"""Until a connection is taken again where this process has no files left for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a sender may take. Seconds: ``idle`` between requests, ``head`` for a head, ``body`` for a body.

    ``first``: for the first head, from connecting on, and for each further one of a sender of whom no request was
    right yet. ``stalled``: within which a body that is not whole has to advance by 16 KiB. ``connections``: of which
    strangers have half at most.
    """

    connections: int = 1_000
    first: float = 5.0
    idle: float = 75.0
    head: float = 10.0
    body: float = 20.0
    stalled: float = 5.0


class WebhookServer:
    """Takes requests for receivers, by the names of their sources, on one event loop."""

    def __init__(
        self, receivers: Mapping[str, Receiver], limits: Limits | None = None, certificates: Certificates | None = None
    ) -> None:
        """``receivers``: looked up for each request. ``certificates``: TLS is spoken by them; None: none is spoken."""
        self._receivers = receivers
        self._limits = limits or Limits()
        self._times = BodyTimes(self._limits.body, self._limits.stalled)
        self._certificates = certificates
        self._guests = Guests(self._limits.connections)
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._closing = False

    async def start(self, address: Address) -> Address:
        """Listen; where, with the real port. Raises Determinate: another process listens there."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, *_, where in dict.fromkeys(found):
                place = (str(where[0]), int(where[1]) or address.port)
                self._listening.append(socket.create_server(place, family=family, backlog=BACKLOG))
                address = address.at(int(self._listening[0].getsockname()[1]))
        except OSError as error:
            raise Determinate("cannot listen", hint="is another process on this port?", address=address) from error
        for listening in self._listening:
            listening.setblocking(False)
            self._accepting.append(loop.create_task(self._accept(listening)))
        return address

    async def stop(self, grace: float) -> None:
        """Take no more requests, and return when those that came have their answers, or after ``grace`` seconds."""
        self._closing = True
        for accepting in self._accepting:
            accepting.cancel()
        if self._accepting:
            await asyncio.wait(self._accepting)
        for listening in self._listening:
            listening.close()
        for task in self._connections - self._answering:
            task.cancel()
        if self._answering:
            await asyncio.wait(self._answering, timeout=grace)
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def figures(self) -> Iterator[Figure]:
        """Who is connected."""
        for known, count in (("false", self._guests.strangers), ("true", self._guests.known)):
            yield "persist_webhook_connections", (("known", known),), count
        yield "persist_webhook_sent_away_total", (), self._guests.sent_away

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:
                # Of a sender that left already, or this process has no file left for one more.
                _log.warning("a connection was not taken: %s", error)
                self._guests.send_one_away()
                await system().sleep(_FULL_SECONDS)
                continue
            if len(self._connections) >= self._limits.connections + BACKLOG:
                connection.close()
                continue
            task = loop.create_task(self._connected(connection))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _connected(self, connection: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        guest = self._guests.enter(task)
        try:
            exchange = await self._opened(connection)
        except (OSError, TimeoutError):
            pass  # the sender left, or does not speak TLS
        else:
            await self._serve(exchange, guest, task)
        finally:
            if guest is not None:
                self._guests.leave(guest)

    async def _opened(self, connection: socket.socket) -> Exchange:
        """Raises OSError, TimeoutError."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        context: ssl.SSLContext | None = None
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = None if self._certificates is None else self._certificates.context()
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=context,
                ssl_handshake_timeout=None if context is None else self._limits.first,
                ssl_shutdown_timeout=None if context is None else LINGER_SECONDS,
            )
        except BaseException:
            connection.close()
            raise
        return Exchange(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def _serve(self, exchange: Exchange, guest: Guest | None, task: "asyncio.Task[None]") -> None:
        try:
            while not self._closing and await self._one(exchange, guest, task) and exchange.goes_on:
                pass
        except asyncio.CancelledError:
            exchange.abort()
            raise
        except ConnectionError:
            pass  # the sender left
        except Exception:
            _log.exception("a request failed")
        finally:
            self._answering.discard(task)
        try:
            await exchange.close(LINGER_SECONDS)
        except asyncio.CancelledError:
            exchange.abort()
            raise

    async def _one(self, exchange: Exchange, guest: Guest | None, task: "asyncio.Task[None]") -> bool:
        """Take a request and answer it; whether there was one."""
        receiver: Receiver | None = None
        limits = self._limits
        is_known = guest is not None and guest.is_known
        try:
            request = await exchange.request(
                limits.idle if is_known else limits.first,
                limits.head if is_known else min(limits.head, limits.first),
            )
            if request is None:
                return False
            self._answering.add(task)
            if guest is None:
                raise Refused(BUSY, "too many senders are connected")
            guest.active()
            receiver = self._receiver(request.target)
            if request.method != b"POST":
                raise Refused(NOT_POST, "send it by POST")
            reply = await taken(exchange, guest, receiver, headers_of(request), self._times)
        except Refused as refusal:
            reply = Reply.refused(refusal.kind, refusal.message)
        except ConnectionError:
            raise
        except Exception:
            _log.exception("a request failed")
            reply = FAILURE
        if receiver is not None:
            receiver.answered(reply.status, reply.reason)
        await exchange.reply(reply)
        if guest is not None:
            guest.is_answering = False
        self._answering.discard(task)
        return True

    def _receiver(self, target: bytes) -> Receiver:
        path = unquote(target.decode("latin-1").partition("?")[0])
        found = self._receivers.get(path.removeprefix("/"))
        if found is None:
            raise Refused(NOT_FOUND, "no webhook of this name is served here")
        return found
