"""An index from one to many that can be forked: a fork shares what it does not change."""

from collections.abc import Hashable, Iterable
from collections.abc import Set as AbstractSet
from typing import Generic, Self, TypeVar

A = TypeVar("A", bound=Hashable)
B = TypeVar("B", bound=Hashable)


class Many(Generic[A, B]):
    """Which ones go with one. While a fork is used, what it was forked from stays as it is."""

    def __init__(self) -> None:
        self._sets: dict[A, set[B]] = {}
        self._mine: set[A] | None = None

    def fork(self) -> Self:
        """Another one with the same in it. Costs one step for each key, whatever goes with it."""
        other = type(self)()
        other._sets, other._mine = dict(self._sets), set()
        return other

    def of(self, one: A) -> AbstractSet[B]:
        """What goes with it."""
        return self._sets.get(one, frozenset())

    def add(self, ones: Iterable[A], other: B) -> None:
        """From now on it goes with each of these."""
        for one in ones:
            self._own(one).add(other)

    def discard(self, ones: Iterable[A], other: B) -> None:
        """It goes with none of these any more."""
        for one in ones:
            if one in self._sets:
                self._own(one).discard(other)

    def _own(self, one: A) -> set[B]:
        found = self._sets.get(one)
        if found is None:
            found = self._sets[one] = set()
        elif self._mine is not None and one not in self._mine:
            found = self._sets[one] = set(found)
        if self._mine is not None:
            self._mine.add(one)
        return found
