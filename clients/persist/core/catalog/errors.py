"""Why the catalog refuses. All are definite: nothing happened, and repeating the request changes nothing.

Source: catalog-semantics.md sections 1.2 and 1.4.
"""

from typing import ClassVar

from persist.errors import UsageError


class NotWritable(UsageError):
    """The catalog is open for reading only. Ask the leader, or open it writable."""

    reason = "CATALOG_NOT_WRITABLE"


class Uninitialized(UsageError):
    """There is no catalog yet. Opening it writable makes one."""

    reason = "CATALOG_UNINITIALIZED"


def no_environment(**details: object) -> Uninitialized:
    """The error for an environment that no statement has begun yet. ``details``: what was asked for."""
    return Uninitialized(
        "this environment does not exist yet",
        hint="CREATE TABLE makes it, or persist catalog adopt NAME for a shard or source that is there; "
        "or check the name and the location",
        **details,
    )


class DuplicateKey(UsageError):
    """There is an object with this key already. ``details``: kind, key."""

    reason = "CATALOG_DUPLICATE_KEY"


class UniquenessViolation(UsageError):
    """Another object has the name. ``details``: kind, key, name, clashing_key."""

    reason = "CATALOG_UNIQUENESS_VIOLATION"


class UnknownObject(UsageError):
    """Nothing has this name here. ``details``: name, near (names that are like it), path (where was looked)."""

    reason = "CATALOG_UNKNOWN_OBJECT"


class NameChanged(UsageError):
    """A name means another object by now than when the statement was given. Nothing happened: give it again.

    ``details``: name, id (what has the name), seen (what had it; empty: nothing).
    """

    reason = "CATALOG_NAME_CHANGED"


class PrivilegeMissing(UsageError):
    """The role may not do this. ``details``: role, privilege, kind, name, owner. Ask the owner to grant it."""

    reason = "CATALOG_PRIVILEGE_MISSING"


class OutOfSync(UsageError):
    """What the transaction depends on was changed. Refresh and run it again. ``details``: updates, upper, keys."""

    reason = "CATALOG_OUT_OF_SYNC"


class IdExhaustion(UsageError):
    """An allocator has no ids left. ``details['allocator']`` names it."""

    reason = "CATALOG_ID_EXHAUSTION"


class IncompatibleDataVersion(UsageError):
    """The catalog has a data version this release does not know. ``details``: found, min, current. Use another one."""

    reason = "CATALOG_INCOMPATIBLE_DATA_VERSION"


class IncompatibleContentVersion(UsageError):
    """The catalog was last opened by a newer release, or by one too old to go on from. ``details``: found, running."""

    reason = "CATALOG_INCOMPATIBLE_CONTENT_VERSION"


class Fenced(UsageError):
    """Another process leads. Open the catalog again, or leave it to that. The highest ``rank`` says most."""

    reason = "CATALOG_FENCED"
    rank: ClassVar[int] = -1


class FencedByMigration(Fenced):
    """Another process moved the catalog while this one migrated it. ``details``: expected, upper."""

    reason = "CATALOG_FENCED_BY_MIGRATION"
    rank = 0


class FencedByEpoch(Fenced):
    """Another process opened the catalog later. ``details``: generation and epoch of both, ours first."""

    reason = "CATALOG_FENCED_BY_EPOCH"
    rank = 1


class FencedByGeneration(Fenced):
    """A newer deployment leads. ``details``: generation and epoch of both, ours first. Do not open it again: stop."""

    reason = "CATALOG_FENCED_BY_GENERATION"
    rank = 2
