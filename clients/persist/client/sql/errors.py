"""What is wrong with a statement, and where it stands. Nothing has happened then: guarantee 12.

Statements are parsed and bound where they are typed, so none of these crosses a wire: to others they are
InvalidArgument.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from persist.errors import Indeterminate, InvalidArgument, PersistError

TOO_LONG: Final = "the statement took too long"
NOT_WHOLE: Final = "a text is no whole number"
WHOLE_HINT: Final = "such as '5'; '5.5'::numeric::int rounds"
REFUSED_MARK: Final = "\x01"
"""What is put into a text that is no whole number, so that no cast takes it for one."""


class SqlError(InvalidArgument):
    """A statement cannot be run as it stands. ``details`` have its line and column, from 1, where they are known."""


class SqlSyntax(SqlError):
    """A text is no statement. ``details``: ``line``, ``column`` and the token ``at`` which it stops being one."""


class SqlNotSupported(SqlError):
    """A statement, or a part of one, is not understood here, though others do."""


class SqlFailed(SqlError):
    """A query ran into an error of its own: a division, a cast, two rows where one may be."""


class SqlLimit(SqlError):
    """A query needed more memory or time than it may have."""


class SqlConflict(SqlError):
    """Another transaction changed what this one read, and was first: nothing of this one happened. Repeat it."""


class Sent:
    """Whether the statement that a session runs has sent what it changes, which was not refused."""

    def __init__(self) -> None:
        self._may_have_happened = False
        self._doubt: Indeterminate | None = None

    def begin(self) -> None:
        """Another statement begins."""
        self._may_have_happened, self._doubt = False, None

    @contextmanager
    def sending(self) -> Iterator[None]:
        """A block that changes something. What it raises says whether it did; where it is cut short nothing does."""
        self._may_have_happened = True
        try:
            yield
        except Indeterminate as error:
            self._doubt = error
            raise
        except PersistError:
            self._may_have_happened = False
            raise

    def timed_out(self) -> PersistError:
        """What is raised for a statement whose time was up. Raises nothing.

        SUBTLE: a doubt stays one when time is up behind it, as while what was read is released. A caller who gets an
        error that says that nothing happened writes it again.
        """
        if self._doubt is not None:
            return self._doubt
        if self._may_have_happened:
            hint = "look whether it happened before you repeat it; SET statement_timeout = '10m' gives it longer"
            return Indeterminate(f"{TOO_LONG}: whether it happened is not known", hint=hint)
        return SqlLimit(TOO_LONG, hint="SET statement_timeout = '10m', or ask for less")
