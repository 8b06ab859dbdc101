"""One history of a catalog: who has seen one goes on with no other.

A restore begins another history under the same names and address, also of the leader there. A client that was away
meanwhile meets answers that fit what it knows by their numbers alone. So a reader keeps which history it
reads, and names it in whatever it asks for next. Source: docs/guarantees.md, of backups.
"""

from persist.errors import HistoryRewound


def check_same(asked: int | None, found: int | None, where: object) -> None:
    """Nothing, where both are the same history, or one is not known. Raises HistoryRewound."""
    if asked is not None and found is not None and asked != found:
        raise rewound(where)


def rewound(where: object) -> HistoryRewound:
    """What a reader of an earlier history is refused with, for good."""
    return HistoryRewound(
        "the location was restored from a backup since this catalog was opened",
        hint="take the catalog from a client again, and open it: what was known of it is of another history",
        catalog=where,
    )
