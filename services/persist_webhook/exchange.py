"""One HTTP/1.1 connection of a sender: its requests, one after the other, each within limits of time and size.

What is read is parsed by h11, which no sender makes hold more than the limits say. A body whose length is said and is
too much is not read. Source: RFC 9112; reliability.md section 5, overload.
"""

import asyncio
import http
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import h11

from persist_ingest.sources.webhook.refusals import (
    ENCODED,
    FAILED,
    HEAD_TOO_LARGE,
    MALFORMED,
    NOT_POST,
    RETRY_SECONDS,
    TOO_LARGE,
    TOO_SLOW,
    Kind,
    Refused,
)

HEAD_BYTES: Final = 16 << 10
_READ_BYTES: Final = 64 << 10
_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Reply:
    """What a sender is answered. ``reason``: of what was refused."""

    status: int
    body: bytes
    content_type: str = _JSON
    reason: str = ""
    retry: bool = False

    @classmethod
    def of(cls, record: Mapping[str, object]) -> "Reply":
        """A success."""
        return cls(200, json.dumps(record).encode() + b"\n")

    @classmethod
    def refused(cls, kind: Kind, message: str) -> "Reply":
        """A refusal."""
        error = {"reason": kind.reason, "message": message, "retry": kind.again}
        return cls(kind.status, json.dumps({"error": error}).encode() + b"\n", reason=kind.reason, retry=kind.again)


class Exchange:
    """A connection, as the server's task has it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._is_head_read = False

    @property
    def goes_on(self) -> bool:
        """Whether another request may come over this connection; makes it ready for that."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    async def request(self, idle_seconds: float, head_seconds: float) -> h11.Request | None:
        """The head of the next request; None: no more comes. Raises Refused, ConnectionError."""
        try:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                async with asyncio.timeout(idle_seconds):
                    if not await self._receive():
                        return None
            async with asyncio.timeout(head_seconds):
                while event is h11.NEED_DATA:
                    event = self._http.next_event()
                    if event is h11.NEED_DATA and not await self._receive():
                        return None
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 431:
                raise Refused(HEAD_TOO_LARGE, f"the head of a request is at most {HEAD_BYTES:,} bytes") from None
            raise Refused(MALFORMED, str(error)) from None
        except TimeoutError:
            if self._http.trailing_data[0]:
                raise Refused(TOO_SLOW, "the head did not come in time") from None
            return None
        return event if isinstance(event, h11.Request) else None

    async def body(self, most: int) -> bytes:
        """All of the body. Raises Refused (it has more than ``most`` bytes, or is malformed), ConnectionError."""
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        parts: list[bytes] = []
        size = 0
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise Refused(MALFORMED, str(error)) from None
            if event is h11.NEED_DATA:
                if not await self._receive():
                    raise ConnectionResetError("the sender left amid the body")
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if size > most:
                    raise too_large(most)
                parts.append(bytes(event.data))
            else:
                return b"".join(parts)

    async def reply(self, reply: Reply) -> None:
        """Send it. What was not read of the request ends the connection."""
        headers = [("Content-Type", reply.content_type), ("Content-Length", str(len(reply.body)))]
        if reply.retry:
            headers.append(("Retry-After", str(RETRY_SECONDS)))
        if reply.status == NOT_POST.status:
            headers.append(("Allow", "POST"))
        if self._http.their_state is not h11.DONE:
            headers.append(("Connection", "close"))
        phrase = http.HTTPStatus(reply.status).phrase.encode()
        try:
            await self._send(
                h11.Response(status_code=reply.status, headers=headers, reason=phrase),
                h11.Data(data=reply.body),
                h11.EndOfMessage(),
            )
        except h11.LocalProtocolError as error:
            raise ConnectionResetError("this connection cannot be answered any more") from error

    async def close(self, linger_seconds: float) -> None:
        """End the connection so that the sender gets what was answered, also amid a body that is not read."""
        try:
            if self._writer.can_write_eof():
                self._writer.write_eof()
            async with asyncio.timeout(linger_seconds):
                while await self._reader.read(_READ_BYTES):
                    pass
        except (TimeoutError, OSError):
            pass
        finally:
            self._writer.close()

    async def _receive(self) -> bool:
        data = await self._reader.read(_READ_BYTES)
        self._http.receive_data(data)
        return bool(data)

    async def _send(self, *events: h11.Event) -> None:
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))
        await self._writer.drain()


def headers_of(request: h11.Request) -> dict[str, str]:
    """By names in lower case; what comes several times is joined as RFC 9110 section 5.3 has it."""
    found: dict[str, str] = {}
    for name, value in request.headers:
        named, text = name.decode("latin-1").lower(), value.decode("latin-1")
        found[named] = f"{found[named]}, {text}" if named in found else text
    return found


def announced(headers: Mapping[str, str], most: int) -> int:
    """How many bytes of body to keep room for. Raises Refused: it says that it is too large, or encoded."""
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(ENCODED, "send the body as it is")
    said = headers.get("content-length")
    if said is None:
        return most if "transfer-encoding" in headers else 0
    if int(said) > most:
        raise too_large(most)
    return int(said)


def too_large(most: int) -> Refused:
    """The refusal of a body."""
    return Refused(TOO_LARGE, f"a body is at most {most:,} bytes")


FAILURE: Final = Reply.refused(FAILED, "the server failed: see its log")
