"""What callers see of failures: what happened and what to do. Addresses and users of stores go to the log only.

A caller gets an error id instead; the log has a line with that id and everything else. The same failure again has the
same id for a while and no second line: a store that is away does not fill the log.
Source: reliability.md section 5, errors.
"""

import logging
import re
import traceback
from collections import OrderedDict
from typing import Final

from persist.errors import LocationError, PersistError
from persist.redaction import scrub
from persist.retry.methods import NO_ANSWER
from persist.runtime import Runtime
from persist_host.logs import SHOWN_CHARS_MAX

SAME_SECONDS: Final = 10.0
"""For so long a failure that repeats itself keeps its id."""
_REMEMBERED_MAX: Final = 1000

_SHOWN: Final = frozenset(
    {
        "actual", "as_of", "code", "count", "epoch", "expected", "kind", "leader", "limit", "method", "needs",
        "retry_after_ms", "rpc", "seqno", "setting", "shard", "since", "sqlstate", "timeout", "upper",
    }
)  # fmt: skip
"""Details of a failure of stores and servers that callers get: values they need, no places, no text of others."""
_WITHHELD: Final = frozenset({"address", "detail", "endpoint", "error", "path", "uri", "url"})
"""Details that no caller gets, whatever failed."""

# What gRPC says of a connection it could not make.
_ADDRESSES: Final = re.compile(r"\b(ipv4|ipv6|unix|dns|vsock):[^\s,;]+")

# What our own clients say of servers that they asked.
_ASKED: Final = re.compile(rf"\b({NO_ANSWER}|no connection to) \S+")

_log = logging.getLogger("persist.host")


class Strangers:
    """Turns errors into what callers may see."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._ids: OrderedDict[tuple[str, ...], tuple[str, float]] = OrderedDict()

    def shown(self, error: PersistError, method: str) -> PersistError:
        """The error as its caller gets it. Logs what is kept back, under the id the caller gets."""
        kept = {name: value for name, value in error.details.items() if _is_shown(error, name)}
        message = _ASKED.sub(r"\1 ***", _ADDRESSES.sub(r"\1:***", error.message))
        if len(kept) == len(error.details) and message == error.message:
            return error
        id_, known = self._id(error)
        if not known:
            _log.warning(
                "a call failed: %s",
                error.message,
                extra={"error_id": id_, "method": method, "reason": error.reason, **_extras(error)},
            )
        return type(error)(message, hint=error.hint, **{**kept, "error_id": id_})

    def unexpected(self, error: Exception, method: str) -> str:
        """The id of an unexpected failure. Logs it with its traceback."""
        # Its text may hold what a caller sent: by that alone, every repetition would be another one.
        id_, known = self._same((type(error).__name__, method, _raised_at(error)))
        if not known:
            _log.error("unexpected failure in %s", method, exc_info=error, extra={"error_id": id_})
        return id_

    def _id(self, error: PersistError) -> tuple[str, bool]:
        """An id for a failure, and whether the log has it already."""
        return self._same(
            (error.reason, error.message, *sorted(f"{name}={value}" for name, value in error.details.items()))
        )

    def _same(self, key: tuple[str, ...]) -> tuple[str, bool]:
        now = self._runtime.monotonic()
        id_, until = self._ids.get(key, ("", now))
        if now < until:
            return id_, True
        id_ = self._fresh()
        self._ids[key] = id_, now + SAME_SECONDS
        self._ids.move_to_end(key)
        if len(self._ids) > _REMEMBERED_MAX:
            self._ids.popitem(last=False)
        return id_, False

    def _fresh(self) -> str:
        return "e" + self._runtime.random_bytes(6).hex()


def _is_shown(error: PersistError, name: str) -> bool:
    return name in _SHOWN if isinstance(error, LocationError) else name not in _WITHHELD


def _raised_at(error: Exception) -> str:
    """File and line."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _extras(error: PersistError) -> dict[str, str]:
    # Names of its own: some details are called as attributes of log records are.
    return {f"error_{name}": scrub(value, SHOWN_CHARS_MAX) for name, value in error.details.items()}
