"""What is known of a write that failed: whether it happened, and what had happened before it."""

from collections.abc import Sequence
from typing import Final

from persist.errors import LocationError, PersistError, UsageError
from persist_cli.output import EXIT_HAPPENED

NO: Final = "no"
MAYBE: Final = "maybe"
YES: Final = "yes"

SAID_OF: Final = {
    NO: "it did not happen",
    MAYBE: "it may have happened: look before it is repeated",
    YES: "it happened",
}


def happened(error: Exception) -> str:
    """Whether a write of one commit that failed with this error happened; empty: it is none of this library's."""
    if isinstance(error, LocationError):
        return NO if error.determinate else MAYBE
    if isinstance(error, UsageError):
        return NO
    return MAYBE if isinstance(error, PersistError) else ""


class PartlyDone(Exception):
    """A step failed, and some before it took effect. ``happened``: whether the failed one did."""

    def __init__(self, error: Exception, happened: str, done: Sequence[str]) -> None:
        super().__init__(str(error))
        self.error = error
        self.happened = happened
        self.done = tuple(done)

    def code_of(self, code: int) -> int:
        """The exit code, of a failure that alone would have this one."""
        return EXIT_HAPPENED if self.done or self.happened == YES else code
