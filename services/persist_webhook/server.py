"""The HTTP server of webhooks: ``POST /NAME`` for each source that it serves.

A request is checked from the outside in: its path and method, what it says of its size, whether there is room for it,
its signature over all bytes; and only then is anything of the body parsed.
Source: RFC 9110; reliability.md section 5, overload and drain.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from persist.errors import Determinate, InvalidArgument
from persist.runtime import system
from persist_host.address import Address
from persist_ingest.receiving.receiver import Receiver
from persist_ingest.sources.webhook.definition import KEY_LETTERS
from persist_ingest.sources.webhook.refusals import (
    BUSY,
    IN_DOUBT,
    KEY_MISSING,
    KEY_TOO_LONG,
    NOT_FOUND,
    NOT_POST,
    TOO_SLOW,
    UNAVAILABLE,
    Refused,
)
from persist_ingest.sources.webhook.rows import Delivery
from persist_ingest.sources.webhook.signatures import SLACK
from persist_webhook.exchange import FAILURE, Exchange, Reply, announced, headers_of

_log = logging.getLogger(__name__)

LINGER_SECONDS: Final = 1.0
LATE_SECONDS: Final = 2.0
"""After the time at which a receiver was to answer."""
CHALLENGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a sender may take. Seconds: ``idle`` between requests, ``head`` for a head, ``body`` for a body."""

    connections: int = 1_000
    idle: float = 75.0
    head: float = 10.0
    body: float = 20.0


class WebhookServer:
    """Takes requests for receivers, by the names of their sources, on one event loop."""

    def __init__(self, receivers: Mapping[str, Receiver], limits: Limits | None = None) -> None:
        self._receivers = dict(receivers)
        self._limits = limits or Limits()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._closing = False

    async def start(self, address: Address) -> Address:
        """Listen; where, with the real port. Raises Determinate: another process listens there."""
        try:
            self._server = await asyncio.start_server(self._accept, address.host, address.port, backlog=256)
        except OSError as error:
            raise Determinate("cannot listen", hint="is another process on this port?", address=address) from error
        return address.at(self._server.sockets[0].getsockname()[1])

    async def stop(self, grace: float) -> None:
        """Take no more requests, and return when those that came have their answers, or after ``grace`` seconds."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        for task in self._connections - self._answering:
            task.cancel()
        if self._answering:
            await asyncio.wait(self._answering, timeout=grace)
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(Exchange(reader, writer)))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, exchange: Exchange) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            while not self._closing and await self._one(exchange, task) and exchange.goes_on:
                pass
        except ConnectionError:
            pass  # the sender left
        except Exception:
            _log.exception("a request failed")
        finally:
            self._answering.discard(task)
            await exchange.close(LINGER_SECONDS)

    async def _one(self, exchange: Exchange, task: "asyncio.Task[None]") -> bool:
        """Take a request and answer it; whether there was one."""
        receiver: Receiver | None = None
        try:
            request = await exchange.request(self._limits.idle, self._limits.head)
            if request is None:
                return False
            self._answering.add(task)
            if len(self._connections) > self._limits.connections:
                raise Refused(BUSY, "too many senders are connected")
            receiver = self._receiver(request.target)
            if request.method != b"POST":
                raise Refused(NOT_POST, "send it by POST")
            reply = await self._taken(exchange, receiver, headers_of(request))
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
        self._answering.discard(task)
        return True

    def _receiver(self, target: bytes) -> Receiver:
        path = unquote(target.decode("latin-1").partition("?")[0])
        found = self._receivers.get(path.removeprefix("/"))
        if found is None:
            raise Refused(NOT_FOUND, "no webhook of this name is served here")
        return found

    async def _taken(self, exchange: Exchange, receiver: Receiver, headers: Mapping[str, str]) -> Reply:
        definition = receiver.definition
        key = _key(definition.once_by, headers)
        size = announced(headers, definition.body_bytes)
        receiver.reserve(size)
        try:
            try:
                async with asyncio.timeout(self._limits.body):
                    body = await exchange.body(definition.body_bytes)
            except TimeoutError:
                raise Refused(TOO_SLOW, "the body did not come in time") from None
            try:
                receiver.checker.verify(headers, body)
            except InvalidArgument as error:
                _log.error("webhook %s: %s", receiver.source.name, error)
                raise Refused(UNAVAILABLE, "signatures cannot be checked here now") from error
            if definition.check.kind == SLACK and (challenge := _challenge(body)) is not None:
                return Reply(200, challenge, "text/plain; charset=utf-8")
            delivery = Delivery(body, headers, system().now_ms(), key)
            try:
                async with asyncio.timeout(receiver.options.answer_seconds + LATE_SECONDS):
                    answer = await asyncio.wrap_future(receiver.offer(delivery))
            except TimeoutError:
                raise Refused(IN_DOUBT, "it may be in the table: repeat it under the same key") from None
        finally:
            receiver.release(size)
        told = {"rows": answer.rows, "repeated": answer.repeated}
        return Reply.of({**told, "time": answer.time} if answer.time else told)


def _key(header: str, headers: Mapping[str, str]) -> str:
    """Which delivery a request is. Raises Refused."""
    if not header:
        return ""
    key = headers.get(header, "")
    if not key:
        raise Refused(KEY_MISSING, f"header {header} says which delivery it is, and is missing")
    if len(key) > KEY_LETTERS:
        raise Refused(KEY_TOO_LONG, f"header {header} is at most {KEY_LETTERS} letters")
    return key


def _challenge(body: bytes) -> bytes | None:
    """What Slack wants back when a URL is entered there, which is no delivery."""
    if len(body) > CHALLENGE_BYTES:
        return None
    with contextlib.suppress(ValueError, RecursionError):
        asked = json.loads(body)
        if isinstance(asked, dict) and asked.get("type") == "url_verification":
            return str(asked.get("challenge", "")).encode()
    return None
