"""Which tokens of committed transactions a catalog still knows, and which ones the next commit forgets.

Requests that changed nothing, refusals above all, cost who asks nothing: so those of one role take a share at most, and
push out each other. Source: catalog-semantics.md section 1.3 (idempotent commits); ADR 24.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from persist.core.catalog.ddl.asking.outcomes import idle_of, made_key
from persist.core.catalog.kinds import COMMIT, SETTING
from persist.core.catalog.objects import CommitKey
from persist.core.catalog.rows import Row, RowCodec
from persist.core.catalog.snapshot import Change, Snapshot

KEPT: Final = 10_000
"""The newest so many are known: who repeats a commit does so before that many others were made."""

PRUNED_MAX: Final = 16
"""Rows that go with one token at most."""
SHARE: Final = 10
"""One in so many of them may be of requests of one role that changed nothing."""
IDLE: Final = 2
"""One in so many of them may be of all such requests."""


class Commits:
    """The tokens of a snapshot, oldest first. Costs nothing until the first commit that has one."""

    def __init__(self, snapshot: Snapshot, codec: RowCodec, kept: int = KEPT) -> None:
        self._snapshot = snapshot
        self._codec = codec
        self._kept = kept
        self._order: dict[CommitKey, str | None] | None = None
        """Whose request changed nothing; None: it changed something."""
        self._idle: dict[str, dict[CommitKey, None]] = {}

    def pruned(self, adding: int = 1) -> list[tuple[Row, int]]:
        """What to retract with a commit that adds a token, or several: with a token what was made under it."""
        if self._order is None:
            known = self._snapshot.objects(COMMIT).items()
            self._order = {}
            for key, _ in sorted(known, key=lambda each: each[1].ts):
                self._add(self._order, key)
        over = min(len(self._order) + adding - self._kept, PRUNED_MAX * adding)
        return [(row, -1) for key in self._oldest(self._order, over) for row in self._rows(key)]

    def saw(self, changes: Iterable[Change]) -> None:
        """The snapshot took these over."""
        for change in changes:
            if change.kind is COMMIT and self._order is not None:
                if change.before is not None and change.key in self._order:
                    role = self._order.pop(change.key)
                    if role is not None:
                        del self._idle[role][change.key]
                if change.after is not None:
                    self._add(self._order, change.key)

    def _add(self, order: dict[CommitKey, str | None], key: CommitKey) -> None:
        role = order[key] = idle_of(self._snapshot.get(SETTING, made_key(key.token)))
        if role is not None:
            self._idle.setdefault(role, {})[key] = None

    def _oldest(self, order: dict[CommitKey, str | None], count: int) -> list[CommitKey]:
        """The next ones to be forgotten: of who has more than a share, and then the oldest of all."""
        if count <= 0:
            return []
        found: dict[CommitKey, None] = {}
        left = {role: len(keys) for role, keys in self._idle.items() if keys}
        mine = {role: iter(keys) for role, keys in self._idle.items()}
        while len(found) < count and left:
            role = max(left, key=left.__getitem__)
            if left[role] < self._kept // SHARE and sum(left.values()) < self._kept // IDLE:
                break
            found[next(mine[role])] = None
            left[role] -= 1
        rest = (key for key in order if key not in found)
        return [*found, *islice(rest, count - len(found))]

    def _rows(self, key: CommitKey) -> Iterator[Row]:
        yield self._codec.encode(COMMIT.tag, key, self._snapshot.get(COMMIT, key))
        made = made_key(key.token)
        if (there := self._snapshot.get(SETTING, made)) is not None:
            yield self._codec.encode(SETTING.tag, made, there)
