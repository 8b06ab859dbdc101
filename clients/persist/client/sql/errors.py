"""What is wrong with a statement, and where it stands. Nothing has happened then.

Statements are parsed and bound where they are typed, so none of these crosses a wire: to others they are
InvalidArgument.
"""

from persist.errors import InvalidArgument


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
