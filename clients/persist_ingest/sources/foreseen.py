"""What a reader raises is one of persist's errors: any other becomes one, in one place."""

import contextlib
import logging
from collections.abc import Iterator

from persist import Determinate, PersistError
from persist_ingest.sources.port import Unforeseen

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def foreseen() -> Iterator[None]:
    """Any error inside that is none of persist's is raised as Unforeseen: so it is a state of the source, and named."""
    try:
        yield
    except PersistError:
        raise
    except MemoryError as cause:
        raise Determinate("a source's reader has too little memory", hint="it is tried again", cause=cause) from cause
    except Exception as cause:
        _log.exception("reading a source failed")
        raise Unforeseen.of(cause) from cause
