"""Numbers for new objects: ids that are never given twice, oids that come round again, ids that are derived.

Source: catalog-semantics.md section 1.2.9.
"""

from collections.abc import Callable
from typing import Final

from persist.core.catalog.errors import IdExhaustion
from persist.core.catalog.values import U64_MAX
from persist.errors import InvalidArgument

FIRST_IDS: Final = {
    "user": 1,
    "system": 1,
    "database": 2,
    "schema": 7,
    "user_role": 1,
    "user_compute": 2,
    "system_compute": 1,
    "replica": 2,
    "system_replica": 1,
    "auditlog": 1,
    "storage_usage": 1,
    "oid": 20_000,
}
"""What every allocator gives out first: lower numbers are of objects that every catalog begins with."""

BOOTSTRAP_ONLY: Final = frozenset({"system"})
"""Allocators that only the opening of the catalog may use."""

OID: Final = "oid"
FIRST_OID: Final = FIRST_IDS[OID]
LAST_OID: Final = 2**32 - 1


def take_ids(name: str, next_id: int, count: int) -> tuple[range, int]:
    """The next ``count`` numbers, without gaps, and what comes next. Raises IdExhaustion, InvalidArgument."""
    if not _is_count(count):
        raise InvalidArgument("ids are counted from zero", allocator=name, count=count)
    if next_id + count > U64_MAX:
        raise IdExhaustion("this allocator has no more ids", allocator=name, next_id=next_id, count=count)
    return range(next_id, next_id + count), next_id + count


def take_oids(next_oid: int, count: int, taken: Callable[[int], bool], last: int = LAST_OID) -> tuple[list[int], int]:
    """The next ``count`` oids that are not taken, and what comes next; after ``last`` they begin anew.

    Raises IdExhaustion after one full lap, InvalidArgument.
    """
    if not _is_count(count):
        raise InvalidArgument("oids are counted from zero", count=count)
    found: list[int] = []
    lap = last - FIRST_OID + 1
    oid = next_oid if FIRST_OID <= next_oid <= last else FIRST_OID
    for _ in range(lap):
        if len(found) == count:
            break
        if not taken(oid):
            found.append(oid)
        oid = oid + 1 if oid < last else FIRST_OID
    if len(found) < count:
        raise IdExhaustion("all oids are taken", allocator=OID, count=count, free=len(found))
    return found, oid


def _is_count(count: object) -> bool:
    return isinstance(count, int) and count >= 0
