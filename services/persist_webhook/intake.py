"""A delivery on its way in: its body, as it was before it was compressed, from who may send, and durable.

It is checked from the outside in: what it says of its size, whether there is room for it, its signature over all bytes;
and only then is anything of the body parsed. Source: RFC 9110; reliability.md section 5, overload.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Final

from persist.errors import InvalidArgument
from persist.runtime import system
from persist_ingest.receiving.receiver import Receiver
from persist_ingest.receiving.room import Room
from persist_ingest.sources.webhook.definition import KEY_LETTERS
from persist_ingest.sources.webhook.refusals import (
    IN_DOUBT,
    KEY_MISSING,
    KEY_TOO_LONG,
    UNAVAILABLE,
    WRONG_SIGNATURE,
    Refused,
)
from persist_ingest.sources.webhook.rows import Delivery
from persist_ingest.sources.webhook.signatures import SLACK
from persist_webhook.encodings import IDENTITY, encoding_of, inflated
from persist_webhook.exchange import BodyTimes, Exchange, Reply, announced, too_large
from persist_webhook.guests import Guest

_log = logging.getLogger(__name__)

LATE_SECONDS: Final = 2.0
"""After the time at which a receiver was to answer."""
CHALLENGE_BYTES: Final = 4096


async def taken(
    exchange: Exchange, guest: Guest, receiver: Receiver, headers: Mapping[str, str], times: BodyTimes
) -> Reply:
    """Take the delivery whose head was read, and answer it. Raises Refused, ConnectionError."""
    definition = receiver.definition
    key = _key(definition.once_by, headers)
    encoding = encoding_of(headers.get("content-encoding", ""))
    with receiver.room(announced(headers, definition.body_bytes)) as room:
        sent = await exchange.body(room, definition.body_bytes, times, guest.active)
        body = await _checked(receiver, headers, bytes(sent), encoding, room)
        del sent
        room.keep()
        guest.know()
        if definition.check.kind == SLACK and (challenge := _challenge(body)) is not None:
            return Reply(200, challenge, "text/plain; charset=utf-8")
        delivery = Delivery(body, headers, system().now_ms(), key)
        guest.is_answering = True
        try:
            async with asyncio.timeout(receiver.options.answer_seconds + LATE_SECONDS):
                answer = await asyncio.wrap_future(receiver.offer(delivery))
        except TimeoutError:
            raise Refused(IN_DOUBT, "it may be in the table: repeat it under the same key") from None
    told = {"rows": answer.rows, "repeated": answer.repeated}
    return Reply.of({**told, "time": answer.time} if answer.time else told)


async def _checked(receiver: Receiver, headers: Mapping[str, str], sent: bytes, encoding: str, room: Room) -> bytes:
    """The body, once it is known to be from who may send. Raises Refused.

    Some senders sign what they send, and some what they compress: who can do either has the secret.
    """
    verified = _verifying(receiver, headers)
    try:
        verified(sent)
        is_right = True
    except Refused as refusal:
        if encoding == IDENTITY or refusal.kind is not WRONG_SIGNATURE:
            raise
        is_right = False
    if encoding == IDENTITY:
        return sent
    body, most = bytearray(), receiver.definition.body_bytes
    for piece in inflated(sent, encoding):
        if len(body) + len(piece) > most:
            raise too_large(most)
        body += piece
        room.grow(len(piece))
        await system().sleep(0)  # others have their turn
    whole = bytes(body)
    if not is_right:
        verified(whole)
    room.shrink(len(sent))
    return whole


def _verifying(receiver: Receiver, headers: Mapping[str, str]) -> Callable[[bytes], None]:
    """Raises Refused where a body is not from who may send."""

    def verify(body: bytes) -> None:
        try:
            receiver.checker.verify(headers, body)
        except InvalidArgument as error:
            _log.error("webhook %s: %s", receiver.source.name, error)
            raise Refused(UNAVAILABLE, "signatures cannot be checked here now") from error

    return verify


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
