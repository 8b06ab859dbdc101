"""Whether what others committed matters to a transaction that began before.

Source: catalog-semantics.md sections 1.2.7 and 1.3 (footprints).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from persist.core.catalog.kinds import AnyKind, Name
from persist.core.catalog.snapshot import Change


@dataclass(slots=True)
class Footprint:
    """All that a transaction depends on: keys it read or wrote, kinds it went through, names it looked at or took.

    ``carried``: what another one depends on, which it carries out.
    """

    keys: set[tuple[AnyKind, Any]] = field(default_factory=set)
    kinds: set[AnyKind] = field(default_factory=set)
    names: set[tuple[AnyKind, Name]] = field(default_factory=set)
    carried: "Footprint | None" = None

    def meets(self, change: Change) -> bool:
        """Whether the transaction might have gone otherwise after this change."""
        kind = change.kind
        if kind in self.kinds or (kind, change.key) in self.keys:
            return True
        if self.carried is not None and self.carried.meets(change):
            return True
        sides = [side for side in (change.before, change.after) if side is not None]
        return any((kind, name) in self.names for side in sides for name in kind.names(side))


@dataclass(frozen=True, slots=True)
class ProgressOnly:
    """Nothing was committed, time went on: commit the same batch later."""


@dataclass(frozen=True, slots=True)
class Disjoint:
    """Something was committed that the transaction does not depend on: commit the same batch on top of it."""

    changes: int


@dataclass(frozen=True, slots=True)
class Overlapping:
    """Something was committed that the transaction depends on: run it again. ``keys`` names what, as (tag, key)."""

    changes: int
    keys: tuple[tuple[str, Any], ...]


Conflict: TypeAlias = ProgressOnly | Disjoint | Overlapping


def classify(footprint: Footprint, changes: Iterable[Change]) -> Conflict:
    """What changes of all kinds, committed since the transaction began, mean for it."""
    changes = list(changes)
    if not changes:
        return ProgressOnly()
    met = dict.fromkeys((change.kind.tag, change.key) for change in changes if footprint.meets(change))
    return Overlapping(len(changes), tuple(met)) if met else Disjoint(len(changes))
