"""A checker of strict serializability for histories in which transactions only add rows, and readers see sets of them.

A transaction adds its number to some tables. A read of all tables sees a set of numbers in each. The history is
strictly serializable iff reads see whole transactions, their sets form a chain, and real time is kept: a transaction
that had returned before a read began is in it, and none that began after the read had returned.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Wrote:
    """A transaction, from when it was begun to when it returned (None: it never did)."""

    number: int
    tables: frozenset[str]
    began: float
    ended: float | None


@dataclass(frozen=True)
class Read:
    """What a read of these tables saw, and at what time of their timeline."""

    seen: Mapping[str, frozenset[int]]
    began: float
    ended: float
    ts: int = field(default=0)


def violations(writes: Iterable[Wrote], reads: Iterable[Read]) -> list[str]:
    """What is wrong with a history; nothing: it is strictly serializable."""
    writes, reads = list(writes), list(reads)
    return [*_torn(writes, reads), *_late(writes, reads), *_unordered(reads)]


def _torn(writes: list[Wrote], reads: list[Read]) -> Iterable[str]:
    for read in reads:
        for write in writes:
            there = {write.number in read.seen[table] for table in write.tables if table in read.seen}
            if len(there) > 1:
                yield f"transaction {write.number} is seen in part by the read at {read.ts}"


def _late(writes: list[Wrote], reads: list[Read]) -> Iterable[str]:
    for read in reads:
        for write in writes:
            tables = [table for table in write.tables if table in read.seen]
            seen = any(write.number in read.seen[table] for table in tables)
            if tables and not seen and write.ended is not None and write.ended < read.began:
                yield f"transaction {write.number} had returned before the read at {read.ts}, which misses it"
            if seen and write.began > read.ended:
                yield f"transaction {write.number} is seen by the read at {read.ts}, which had returned before"


def _unordered(reads: list[Read]) -> Iterable[str]:
    for one, other in itertools.combinations(reads, 2):
        if not _within(one, other) and not _within(other, one):
            yield f"the reads at {one.ts} and {other.ts} see transactions in different orders"
        for first, second in ((one, other), (other, one)):
            if first.ts < second.ts and not _within(first, second):
                yield f"the read at {second.ts} misses what that at {first.ts} saw"
            if first.ended < second.began and not _within(first, second):
                yield f"the read at {second.ts} misses what one that had returned before it saw"
            if first.ended < second.began and first.ts > second.ts:
                yield f"a later read is at {second.ts}, before {first.ts}"


def _within(one: Read, other: Read) -> bool:
    return all(seen <= other.seen[table] for table, seen in one.seen.items() if table in other.seen)
