"""Arguments every adapter refuses in the same way, before anything is sent.

Source: persist-semantics.md section 2.8.
"""

import re
from typing import Final

from persist.errors import Determinate, InvalidArgument, InvalidId, RequestTooLarge
from persist.storage.ports import VALUE_BYTES_MAX

SEQNO_MAX: Final = 2**63 - 1

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_key(key: object) -> str:
    """The Consensus key when it is one short plain word. Raises InvalidId."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidId("malformed consensus key", hint="a key is a shard id", got=repr(key)[:120])
    return key


def check_expected(expected: int) -> int:
    """The seqno when another can follow it: in [-1, 2^63-2]. Raises InvalidArgument."""
    if not -1 <= expected < SEQNO_MAX:
        raise InvalidArgument("expected seqno out of range", hint="-1, or the seqno of the head", expected=expected)
    return expected


def check_seqno(seqno: int) -> int:
    """The seqno when it lies in [0, 2^63-1]. Raises InvalidArgument."""
    if not 0 <= seqno <= SEQNO_MAX:
        raise InvalidArgument("seqno out of range", hint="seqnos lie in [0, 2^63)", seqno=seqno)
    return seqno


def check_limit(limit: int) -> int:
    """The limit when it is at least 1. Raises InvalidArgument."""
    if limit < 1:
        raise InvalidArgument("a limit is at least 1", limit=limit)
    return limit


def check_value(data: bytes) -> bytes:
    """The value when Consensus takes it. Raises RequestTooLarge."""
    if len(data) > VALUE_BYTES_MAX:
        raise RequestTooLarge(
            "value too large for consensus", hint="large data goes to blob", bytes=len(data), max=VALUE_BYTES_MAX
        )
    return data


def check_truncation(key: str, below: int, newest: int | None) -> None:
    """Nothing, when entries below ``below`` may go while ``newest`` is the head. Raises InvalidArgument."""
    if newest is None:
        raise InvalidArgument("cannot truncate a key that was never set", key=key)
    if below > newest:
        raise InvalidArgument("cannot truncate beyond the newest seqno", key=key, below=below, newest=newest)


def check_range(byte_range: tuple[int, int] | None) -> tuple[int, int] | None:
    """The range when it is ``0 <= start <= end``. Raises InvalidArgument."""
    if byte_range is not None and not 0 <= byte_range[0] <= byte_range[1]:
        raise InvalidArgument("a byte range is 0 <= start <= end", got=byte_range)
    return byte_range


def check_timeout(timeout: float) -> float:
    """The timeout when some time is left. Raises Determinate: nothing was sent."""
    if timeout <= 0:
        raise Determinate("no time left before the call", hint="give a larger timeout", timeout=timeout)
    return timeout
