"""JSON logs, one object per line on standard error, without credentials.

Loggers below ``persist``; ``persist.mutations`` has one line per mutation at INFO. Source: reliability.md section 5.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from persist.wire.rpc_errors import redact

_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """A record as one JSON object: time, level, logger, message, and what was given as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name not in _OWN:
                line[name] = value if isinstance(value, int | float | bool) else redact(str(value))
        if record.exc_info:
            line["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


def configure(level: str = "warning") -> None:
    """Log ``persist`` and below as JSON lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("persist")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())
