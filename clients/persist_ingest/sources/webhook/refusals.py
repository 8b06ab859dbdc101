"""Why a request is not taken, as its sender is answered: a status of HTTP, a reason that programs know, and words.

Source: RFC 9110 section 15; RFC 6585.
"""

from dataclasses import dataclass
from typing import Final

RETRY_SECONDS: Final = 2
"""What senders are asked to wait before they repeat what was refused for now."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of refusal. ``again``: the same request may be taken later; else it is wrong as it is."""

    status: int
    reason: str
    again: bool = False


MALFORMED: Final = Kind(400, "MALFORMED_REQUEST")
BAD_BODY: Final = Kind(400, "BAD_BODY")
BAD_ENCODING: Final = Kind(400, "BAD_ENCODING")
KEY_MISSING: Final = Kind(400, "KEY_MISSING")
KEY_TOO_LONG: Final = Kind(400, "KEY_TOO_LONG")
NOT_SIGNED: Final = Kind(401, "NOT_SIGNED")
WRONG_SIGNATURE: Final = Kind(401, "WRONG_SIGNATURE")
SIGNED_TOO_LONG_AGO: Final = Kind(401, "SIGNED_TOO_LONG_AGO")
NOT_FOUND: Final = Kind(404, "NOT_FOUND")
NOT_POST: Final = Kind(405, "METHOD_NOT_ALLOWED")
TOO_SLOW: Final = Kind(408, "TOO_SLOW", again=True)
DROPPED: Final = Kind(410, "SOURCE_DROPPED")
TOO_LARGE: Final = Kind(413, "BODY_TOO_LARGE")
ENCODED: Final = Kind(415, "ENCODING_NOT_SUPPORTED")
KEY_REUSED: Final = Kind(422, "KEY_REUSED")
HEAD_TOO_LARGE: Final = Kind(431, "HEADERS_TOO_LARGE")
FAILED: Final = Kind(500, "FAILED", again=True)
BUSY: Final = Kind(503, "BUSY", again=True)
IN_DOUBT: Final = Kind(503, "IN_DOUBT", again=True)
UNAVAILABLE: Final = Kind(503, "UNAVAILABLE", again=True)


class Refused(Exception):
    """A request that was not taken: nothing of it was appended, nor will be, unless it is IN_DOUBT or FAILED."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
