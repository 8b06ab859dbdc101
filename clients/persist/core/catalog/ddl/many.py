"""Indexes from one to many that can be forked: a fork shares what it does not change."""

from bisect import bisect_left, insort
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


class Ordered(Generic[A, B]):
    """Which ones go with one, each under a number, and which of these is first. Forked as ``Many``."""

    def __init__(self) -> None:
        self._lists: dict[A, list[tuple[int, B]]] = {}
        self._mine: set[A] | None = None

    def fork(self) -> Self:
        """Another one with the same in it. Costs one step for each key, whatever goes with it."""
        other = type(self)()
        other._lists, other._mine = dict(self._lists), set()
        return other

    def first(self, one: A, but: AbstractSet[B] = frozenset()) -> B | None:
        """The one under the least number, ``but`` none of these; of several the least."""
        return next((other for _, other in self._lists.get(one, ()) if other not in but), None)

    def add(self, ones: Iterable[A], number: int, other: B) -> None:
        """From now on it goes with each of these, under this number."""
        for one in ones:
            insort(self._own(one), (number, other))

    def discard(self, ones: Iterable[A], number: int, other: B) -> None:
        """It goes with none of these any more."""
        for one in ones:
            at = bisect_left(self._lists.get(one, []), (number, other))
            if self._lists.get(one, [])[at : at + 1] == [(number, other)]:
                del self._own(one)[at]

    def _own(self, one: A) -> list[tuple[int, B]]:
        found = self._lists.get(one)
        if found is None:
            found = self._lists[one] = []
        elif self._mine is not None and one not in self._mine:
            found = self._lists[one] = list(found)
        if self._mine is not None:
            self._mine.add(one)
        return found
