"""What the commits of this process released, so that it can be collected without reading those commits again.

Kept are keys, as far as the commits follow each other; a commit of another process begins it anew. All of it can be
lost at any time: diffs that are read say the same. Source: reliability.md I8.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from persist.core.shard.diff import StateDiff

KEYS_MAX: Final = 100_000
"""Keys that are kept for one shard; commits with more are read when they are collected."""


@dataclass(frozen=True, slots=True)
class _Commit:
    seqno: int
    let_go: frozenset[str]
    taken_up: frozenset[str]


class Released:
    """What one shard's commits released, in one history of the shard."""

    def __init__(self) -> None:
        self._incarnation = 0
        self._after = -1
        self._seqno = -1
        self._commits: deque[_Commit] = deque()
        self._keys = 0
        self._unrolled: deque[tuple[int, int]] = deque()

    def note(self, change: StateDiff, incarnation: int) -> None:
        """Remember what a commit of this process released."""
        if (change.seqno_from, incarnation) != (self._seqno, self._incarnation):
            self._begin(change.seqno_from, incarnation)
        commit = _Commit(change.seqno_to, frozenset(let_go(change)), frozenset(taken_up(change)))
        self._seqno = change.seqno_to
        self._keys += len(commit.let_go) + len(commit.taken_up)
        if commit.let_go:
            self._commits.append(commit)
            if replaced := _bytes(change, commit.taken_up):
                self._unrolled.append((change.seqno_to, replaced))
        if self._keys > KEYS_MAX:
            self._begin(change.seqno_to, incarnation)

    def replaced_bytes(self, newest_rollup: int) -> int:
        """Bytes that commits after the newest rollup replaced: nothing can delete them before there is a newer one."""
        while self._unrolled and self._unrolled[0][0] <= newest_rollup:
            self._unrolled.popleft()
        return sum(size for _, size in self._unrolled)

    def garbage(self, after: int, until: int, incarnation: int) -> set[str] | None:
        """Keys that the commits above ``after`` released, up to the one at ``until``; None: not all are known."""
        if incarnation != self._incarnation or not (self._after <= after and until <= self._seqno):
            return None
        return garbage_of((each.let_go, each.taken_up) for each in self._commits if after < each.seqno <= until)

    def forget(self, until: int) -> None:
        """Keep nothing of commits up to ``until``, which are collected."""
        while self._commits and self._commits[0].seqno <= until:
            gone = self._commits.popleft()
            self._keys -= len(gone.let_go) + len(gone.taken_up)
        self._after = max(self._after, min(until, self._seqno))

    def _begin(self, seqno: int, incarnation: int) -> None:
        if incarnation != self._incarnation:
            self._unrolled.clear()
        self._incarnation, self._after, self._seqno, self._keys = incarnation, seqno, seqno, 0
        self._commits.clear()


def garbage_of(commits: Iterable[tuple[Iterable[str], Iterable[str]]]) -> set[str]:
    """Keys that commits released, in their order, and took up no more."""
    garbage: set[str] = set()
    for gone, come in commits:
        garbage.update(gone)
        garbage.difference_update(come)
    return garbage


def let_go(change: StateDiff) -> set[str]:
    """Keys that the older state names and the newer one does not."""
    rollups = change.maps.get("rollups", {}).values()
    keys = {each.old.key for each in rollups if each.old is not None and each.old != each.new}
    if change.spine is not None:
        for splice in change.spine.splices:
            keys.update(key for each in splice.released for key in each.keys)
    return keys


def taken_up(change: StateDiff) -> set[str]:
    """Keys of parts that the newer state names in place of others."""
    keys: set[str] = set()
    if change.spine is not None:
        for splice in change.spine.splices:
            keys.update(part.key for part in splice.parts if part.key)
    return keys


def _bytes(change: StateDiff, come: frozenset[str]) -> int:
    """Bytes in Blob that a commit replaced: those of what went, without the parts that came again."""
    if change.spine is None:
        return 0
    went = {key for splice in change.spine.splices for each in splice.released for key in each.keys}
    kept = went & come
    again = [part.encoded_bytes for splice in change.spine.splices for part in splice.parts if part.key in kept]
    return max(0, sum(each.bytes for splice in change.spine.splices for each in splice.released) - sum(again))
