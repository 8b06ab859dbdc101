"""Which tokens of committed transactions a catalog still knows, and which ones the next commit forgets.

Source: catalog-semantics.md section 1.3 (idempotent commits).
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from persist.core.catalog.ddl.asking.outcomes import made_key
from persist.core.catalog.kinds import COMMIT, SETTING
from persist.core.catalog.objects import CommitKey
from persist.core.catalog.rows import Row, RowCodec
from persist.core.catalog.snapshot import Change, Snapshot

KEPT: Final = 10_000
"""The newest so many are known: who repeats a commit does so before that many others were made."""

PRUNED_MAX: Final = 16
"""Rows that go with one token at most."""


class Commits:
    """The tokens of a snapshot, oldest first. Costs nothing until the first commit that has one."""

    def __init__(self, snapshot: Snapshot, codec: RowCodec, kept: int = KEPT) -> None:
        self._snapshot = snapshot
        self._codec = codec
        self._kept = kept
        self._order: deque[CommitKey] | None = None

    def pruned(self, adding: int = 1) -> list[tuple[Row, int]]:
        """What to retract with a commit that adds a token, or several: with a token what was made under it."""
        if self._order is None:
            known = self._snapshot.objects(COMMIT).items()
            self._order = deque(key for key, _ in sorted(known, key=lambda each: each[1].ts))
        over = min(len(self._order) + adding - self._kept, PRUNED_MAX * adding)
        return [(row, -1) for key in islice(self._order, max(over, 0)) for row in self._rows(key)]

    def saw(self, changes: Iterable[Change]) -> None:
        """The snapshot took these over."""
        for change in changes:
            if change.kind is COMMIT and self._order is not None:
                if change.before is not None:
                    self._order.remove(change.key)
                if change.after is not None:
                    self._order.append(change.key)

    def _rows(self, key: CommitKey) -> Iterator[Row]:
        yield self._codec.encode(COMMIT.tag, key, self._snapshot.get(COMMIT, key))
        made = made_key(key.token)
        if (there := self._snapshot.get(SETTING, made)) is not None:
            yield self._codec.encode(SETTING.tag, made, there)
