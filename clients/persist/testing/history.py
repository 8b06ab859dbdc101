"""Histories of calls on a Consensus, and the check that they are linearizable and every seqno was won once.

Seqnos are totally ordered, so no search is needed: one sweep in time order decides. Source: reliability.md section 2,
I1 and I2.
"""

import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from persist.errors import Indeterminate, PersistError
from persist.storage.ports import Consensus, Entry, Finding


@dataclass(slots=True, kw_only=True)
class Operation:
    """One call: when it began and returned on one clock, and what came of it.

    ``returned`` None: the answer never came, it may happen any time after ``invoked``. ``kind``: ``cas`` (won if
    ``ok``, lost the comparison if not ``ok``), ``head``, ``scan``. ``seen``: (seqno, data) read, or written by the cas.
    """

    kind: str
    key: str
    invoked: int
    returned: int | None = None
    expected: int = -1
    data: bytes = b""
    ok: bool = False
    seen: tuple[tuple[int, bytes], ...] = ()


class History:
    """Everything that was called, in the order of calling. The clock counts calls and returns of one process."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._clock = itertools.count()

    def tick(self) -> int:
        """The next instant."""
        return next(self._clock)

    def begin(self, kind: str, key: str, *, expected: int = -1, data: bytes = b"") -> Operation:
        """A call begins. Remains unanswered until it is given a ``returned``."""
        operation = Operation(kind=kind, key=key, invoked=self.tick(), expected=expected, data=data)
        self.operations.append(operation)
        return operation

    def forget(self, operation: Operation) -> None:
        """The call certainly did not happen."""
        self.operations.remove(operation)


class RecordingConsensus:
    """A Consensus that writes a history of head, compare_and_set and scan; the rest passes."""

    def __init__(self, consensus: Consensus, history: History) -> None:
        self._consensus = consensus
        self._history = history

    @property
    def uri(self) -> str:
        """That of the store."""
        return self._consensus.uri

    async def head(self, key: str, *, timeout: float) -> Entry | None:
        """Recorded when it answers."""
        operation = self._history.begin("head", key)
        try:
            entry = await self._consensus.head(key, timeout=timeout)
        except PersistError:
            self._history.forget(operation)
            raise
        operation.seen = ((entry.seqno, entry.data),) if entry else ()
        operation.returned = self._history.tick()
        return entry

    async def compare_and_set(
        self, key: str, expected: int, data: bytes, *, after: bytes = b"", timeout: float
    ) -> bool:
        """Recorded; unanswered when Indeterminate, forgotten when it certainly did not happen."""
        operation = self._history.begin("cas", key, expected=expected, data=data)
        try:
            operation.ok = await self._consensus.compare_and_set(key, expected, data, after=after, timeout=timeout)
        except Indeterminate:
            raise
        except PersistError:
            self._history.forget(operation)
            raise
        operation.returned = self._history.tick()
        return operation.ok

    async def scan(self, key: str, from_seqno: int, limit: int, *, timeout: float) -> list[Entry]:
        """Recorded when it answers."""
        operation = self._history.begin("scan", key)
        try:
            entries = await self._consensus.scan(key, from_seqno, limit, timeout=timeout)
        except PersistError:
            self._history.forget(operation)
            raise
        operation.seen = tuple((entry.seqno, entry.data) for entry in entries)
        operation.returned = self._history.tick()
        return entries

    async def truncate(self, key: str, below: int, *, after: bytes = b"", timeout: float) -> int:
        """Not recorded: it changes no seqno."""
        return await self._consensus.truncate(key, below, after=after, timeout=timeout)

    def list_keys(self, *, timeout: float) -> AsyncIterator[str]:
        """Not recorded."""
        return self._consensus.list_keys(timeout=timeout)

    def changes(self, key: str) -> AsyncIterator[int]:
        """Not recorded: hints prove nothing."""
        return self._consensus.changes(key)

    async def findings(self) -> Sequence[Finding]:
        """Those of the store."""
        return await self._consensus.findings()

    async def close(self) -> None:
        """Close the store."""
        await self._consensus.close()


def violations(operations: Sequence[Operation]) -> list[str]:
    """Every way in which a history breaks I1 (each seqno won once, from the one before it) or I2 (linearizable).

    The keys must have been absent at the beginning. Empty: nothing is wrong.
    """
    by_key: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_key[operation.key].append(operation)
    return [f"{key}: {text}" for key, some in by_key.items() for text in (*_write_once(some), *_in_order(some))]


def _write_once(operations: Sequence[Operation]) -> list[str]:
    """I1: winners and readers agree on the bytes of each seqno, and nothing was read that was not written."""
    found: list[str] = []
    won: dict[int, bytes] = {}
    maybe: dict[int, set[bytes]] = defaultdict(set)
    for operation in operations:
        if operation.kind != "cas":
            continue
        seqno = operation.expected + 1
        if operation.returned is None:
            maybe[seqno].add(operation.data)
        elif operation.ok and seqno in won:
            found.append(f"seqno {seqno} was won twice")
        elif operation.ok:
            won[seqno] = operation.data
    read: dict[int, bytes] = {}
    for operation in operations:
        for earlier, later in itertools.pairwise(operation.seen):
            if later[0] != earlier[0] + 1:
                found.append(f"a scan has a gap between {earlier[0]} and {later[0]}")
        for seqno, data in operation.seen:
            if read.setdefault(seqno, data) != data:
                found.append(f"seqno {seqno} was read with different bytes")
            if data != won.get(seqno, data) or (seqno not in won and data not in maybe[seqno]):
                found.append(f"seqno {seqno} was read with bytes that no writer won it with")
    top = max([*won, *read], default=-1)
    found += [f"seqno {seqno} was skipped" for seqno in range(top) if seqno not in won and not maybe[seqno]]
    return found


def _in_order(operations: Sequence[Operation]) -> list[str]:
    """I2: whatever returned before a call began is seen by it; a lost comparison had a reason."""
    found: list[str] = []
    began: dict[int, int] = {}
    done: dict[int, int] = {}
    for operation in operations:
        if operation.kind == "cas" and (operation.ok or operation.returned is None):
            seqno = operation.expected + 1
            began[seqno] = min(began.get(seqno, operation.invoked), operation.invoked)
            if operation.returned is not None:
                done[seqno] = operation.returned
    answered = [operation for operation in operations if operation.returned is not None]
    ends = sorted((operation.returned or 0, _reached(operation)) for operation in answered)
    newest, at = -1, 0
    for operation in sorted(answered, key=lambda each: each.invoked):
        while at < len(ends) and ends[at][0] < operation.invoked:
            newest = max(newest, ends[at][1])
            at += 1
        if operation.kind == "head" and _reached(operation) < newest:
            found.append(f"a head saw {_reached(operation)} after {newest} was known")
        if operation.kind == "cas" and operation.ok and operation.expected < newest:
            found.append(f"seqno {operation.expected + 1} was won after {newest} was known")
        if operation.kind == "cas" and not operation.ok and _matched(operation, began, done):
            found.append(f"a cas from {operation.expected} was refused while {operation.expected} was the newest")
        for seqno, _ in operation.seen:
            if began.get(seqno, 0) > (operation.returned or 0):
                found.append(f"seqno {seqno} was read before it was written")
    return found


def _reached(operation: Operation) -> int:
    """The largest seqno an answered call proves to exist."""
    if operation.kind == "cas":
        return operation.expected + 1 if operation.ok else -1
    return operation.seen[-1][0] if operation.seen else -1


def _matched(operation: Operation, began: dict[int, int], done: dict[int, int]) -> bool:
    """The newest seqno was the expected one for as long as the refused call took."""
    expected = operation.expected
    there = expected == -1 or done.get(expected, operation.invoked) < operation.invoked
    gone = began.get(expected + 1)
    return there and (gone is None or gone > (operation.returned or 0))
