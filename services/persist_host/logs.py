"""JSON logs, one object per line on standard error, without credentials.

Loggers below ``persist``; ``persist.mutations`` has one line per mutation at INFO. Source: reliability.md section 5.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from persist.redaction import beneath, scrub

SHOWN_CHARS_MAX: Final = 8 << 10
"""Characters of one text in a line: strangers have a part in some of them."""
TRACEBACK_CHARS_MAX: Final = 64 << 10
"""Characters of a traceback: frames of chained failures come before what was said last."""

_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

_BELOW: Final = ("asyncio", "grpc")


class JsonFormatter(logging.Formatter):
    """A record as one JSON object: time, level, logger, message, and what was given as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": scrub(record.getMessage(), SHOWN_CHARS_MAX),
        }
        for name, value in vars(record).items():
            if name not in _OWN:
                plain = isinstance(value, int | float | bool)
                line[name] = value if plain else scrub(str(value), SHOWN_CHARS_MAX)
        if record.exc_info:
            line["exception"] = scrub(self.formatException(record.exc_info), TRACEBACK_CHARS_MAX)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str = "warning") -> None:
    """Log ``persist`` and below as JSON lines to standard error, and so the warnings of what it stands on."""
    # Beneath: the formatter scrubs values, and so leaves the names in a line alone.
    handler = logging.StreamHandler(beneath(sys.stderr))
    handler.setFormatter(JsonFormatter())
    for name, least in (("persist", level.upper()), *((name, "WARNING") for name in _BELOW)):
        logger = logging.getLogger(name)
        for earlier in [each for each in logger.handlers if isinstance(each.formatter, JsonFormatter)]:
            logger.removeHandler(earlier)
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(least)
