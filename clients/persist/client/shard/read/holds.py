"""Which states of a shard are in use by reads of this process, counted.

The event loop alone counts. Reads end in any thread and at any moment, also within another count, when Python drops
them: they only leave word, and the loop counts it before it next asks what is in use.
"""

from collections import Counter, deque


class SeqnoHold:
    """One user of a seqno. Moved by the event loop, released when its user drops it."""

    __slots__ = ("counted", "seqno")

    def __init__(self, seqno: int) -> None:
        self.seqno = seqno
        self.counted = True


class SeqnoHolds:
    """The seqnos that are in use. ``let_go`` from any thread, everything else on the event loop."""

    def __init__(self) -> None:
        self._users: Counter[int] = Counter()
        # SUBTLE: neither a count nor a lock. A finalizer may run in the midst of either, in the very thread that is at
        # it; to append is one step.
        self._gone: deque[SeqnoHold] = deque()

    def take(self, seqno: int) -> SeqnoHold:
        """Count one more user."""
        self._settle()
        self._users[seqno] += 1
        return SeqnoHold(seqno)

    def move(self, hold: SeqnoHold, seqno: int) -> None:
        """Use a newer seqno instead. Does nothing for a released one."""
        if hold.counted and seqno > hold.seqno:
            self._users[seqno] += 1
            self._drop(hold.seqno)
            hold.seqno = seqno

    def rest(self, hold: SeqnoHold) -> None:
        """Count it no more until ``wake``: its user needs nothing for now."""
        if hold.counted:
            hold.counted = False
            self._drop(hold.seqno)

    def wake(self, hold: SeqnoHold, seqno: int) -> None:
        """Count one that rests again, as a user of this seqno."""
        if not hold.counted:
            hold.counted, hold.seqno = True, seqno
            self._users[seqno] += 1

    def let_go(self, hold: SeqnoHold) -> None:
        """Count one user less, soon. Once for each hold."""
        self._gone.append(hold)

    def oldest(self, otherwise: int) -> int:
        """The oldest seqno in use; ``otherwise`` when none is."""
        self._settle()
        return min(self._users, default=otherwise)

    def _settle(self) -> None:
        while self._gone:
            hold = self._gone.popleft()
            if hold.counted:
                hold.counted = False
                self._drop(hold.seqno)

    def _drop(self, seqno: int) -> None:
        self._users[seqno] -= 1
        if not self._users[seqno]:
            del self._users[seqno]
