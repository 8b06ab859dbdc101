"""One HTTP/1.1 connection of a sender: its requests, one after the other, each within limits of time and size.

What is read is parsed by h11, which no sender makes hold more than the limits say. A body whose length is said and is
too much is not read, and one that stops coming is not waited for. Source: RFC 9112; reliability.md section 5, overload.
"""

import asyncio
import contextlib
import functools
import http
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import h11

from persist.runtime import system
from persist_ingest.receiving.room import Room
from persist_ingest.sources.webhook.refusals import (
    BUSY,
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
from persist_webhook.encodings import ENCODINGS

HEAD_BYTES: Final = 16 << 10
_READ_BYTES: Final = 64 << 10
_JSON: Final = "application/json"
_PIECES: Final = 1_024
_PIECE_BYTES: Final = 16
"""Of a body that comes in more pieces than that each has to have so many bytes on average: others wait meanwhile."""
_TURN: Final = 128
"""So many pieces are taken before others have their turn."""


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


@dataclass(frozen=True, slots=True)
class BodyTimes:
    """Seconds: for a ``whole`` body, and for one that has ``stalled``."""

    whole: float
    stalled: float


class Exchange:
    """A connection, as the server's task has it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._received = 0

    @property
    def _taken(self) -> int:
        """Bytes that were made something of."""
        return self._received - len(self._http.trailing_data[0])

    @property
    def goes_on(self) -> bool:
        """Whether another request may come over this connection; makes it ready for that."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    async def request(self, idle_seconds: float, head_seconds: float) -> h11.Request | None:
        """The head of the next request; None: no more comes. Raises Refused, ConnectionError."""
        before = self._taken
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
                raise _head_too_large() from None
            raise Refused(MALFORMED, str(error)) from None
        except TimeoutError:
            if self._http.trailing_data[0]:
                raise Refused(TOO_SLOW, "the head did not come in time") from None
            return None
        if self._taken - before > HEAD_BYTES:
            # It came at once: only what is not whole yet is measured before.
            raise _head_too_large()
        return event if isinstance(event, h11.Request) else None

    async def body(self, room: Room, most: int, times: BodyTimes, advanced: Callable[[], None]) -> bytearray:
        """All of the body, which has its place in ``room``; ``advanced`` is called as it goes on.

        Raises Refused (it has more than ``most`` bytes, is malformed, comes too slowly, or its room is taken back),
        ConnectionError.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + times.whole
        try:
            async with asyncio.timeout_at(min(until, loop.time() + times.stalled)) as clock:
                room.interrupt = functools.partial(_end, clock)
                if self._http.they_are_waiting_for_100_continue:
                    await self._send(h11.InformationalResponse(status_code=100, headers=[]))
                whole, pieces = bytearray(), 0
                while (data := await self._data()) is not None:
                    pieces += 1
                    if len(whole) + len(data) > most:
                        raise too_large(most)
                    if pieces > _PIECES + len(whole) // _PIECE_BYTES:
                        raise Refused(MALFORMED, "the body comes in too small pieces")
                    whole += data
                    if room.grow(len(data)):
                        advanced()
                        clock.reschedule(min(until, loop.time() + times.stalled))
                    if pieces % _TURN == 0:
                        await system().sleep(0)
                return whole
        except TimeoutError:
            if room.is_shed:
                raise Refused(BUSY, "others need the room that this body takes, and it came slowly") from None
            raise Refused(TOO_SLOW, "the body did not come in time") from None
        finally:
            room.interrupt = None

    async def _data(self) -> bytes | bytearray | None:
        """What comes next of the body; None: it is whole. Raises Refused, ConnectionError."""
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise Refused(MALFORMED, str(error)) from None
            if event is h11.NEED_DATA:
                if not await self._receive():
                    raise ConnectionResetError("the sender left amid the body")
            elif isinstance(event, h11.Data):
                return event.data
            else:
                return None

    async def reply(self, reply: Reply) -> None:
        """Send it. What was not read of the request ends the connection."""
        headers = [("Content-Type", reply.content_type), ("Content-Length", str(len(reply.body)))]
        if reply.retry:
            headers.append(("Retry-After", str(RETRY_SECONDS)))
        if reply.status == NOT_POST.status:
            headers.append(("Allow", "POST"))
        if reply.status == ENCODED.status:
            headers.append(("Accept-Encoding", ", ".join(ENCODINGS)))
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

    def abort(self) -> None:
        """End the connection at once."""
        self._writer.transport.abort()

    async def _receive(self) -> bool:
        data = await self._reader.read(_READ_BYTES)
        self._http.receive_data(data)
        self._received += len(data)
        return bool(data)

    async def _send(self, *events: h11.Event) -> None:
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))
        await self._writer.drain()


def _head_too_large() -> Refused:
    return Refused(HEAD_TOO_LARGE, f"the head of a request is at most {HEAD_BYTES:,} bytes")


def _end(clock: asyncio.Timeout) -> None:
    with contextlib.suppress(RuntimeError):  # it is ending already
        clock.reschedule(asyncio.get_running_loop().time())


def headers_of(request: h11.Request) -> dict[str, str]:
    """By names in lower case; what comes several times is joined as RFC 9110 section 5.3 has it."""
    found: dict[str, str] = {}
    for name, value in request.headers:
        named, text = name.decode("latin-1").lower(), value.decode("latin-1")
        found[named] = f"{found[named]}, {text}" if named in found else text
    return found


def announced(headers: Mapping[str, str], most: int) -> int:
    """How many bytes of body are announced; 0: it is not said. Raises Refused: it says that it is too large."""
    size = int(headers.get("content-length", 0))
    if size > most:
        raise too_large(most)
    return size


def too_large(most: int) -> Refused:
    """The refusal of a body."""
    return Refused(TOO_LARGE, f"a body is at most {most:,} bytes")


FAILURE: Final = Reply.refused(FAILED, "the server failed: see its log")
