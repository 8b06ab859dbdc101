"""Immutable maps that may be large: one with an entry changed, and what two of them differ in, cost next to nothing.

A fixed number of small dicts, none ever changed: a new version copies one and shares the rest, and two versions differ
only in dicts that are not the same object. Source: persist-semantics.md section 2.1; performance.md A3.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from persist.typed import Record

V = TypeVar("V")

_BUCKETS: Final = 64
_NONE: Final[Record] = {}


class Table(Mapping[str, V]):
    """A map from ids to values. With 10,000 entries a change copies about 160 of them."""

    __slots__ = ("_buckets", "_size")

    def __init__(self, entries: Mapping[str, V] | Iterable[tuple[str, V]] = ()) -> None:
        buckets: list[dict[str, V]] = [_NONE] * _BUCKETS
        for key, value in dict(entries).items():
            at = hash(key) % _BUCKETS
            if buckets[at] is _NONE:
                buckets[at] = {}
            buckets[at][key] = value
        self._buckets = tuple(buckets)
        self._size = sum(map(len, buckets))

    def with_entry(self, key: str, value: V) -> "Table[V]":
        """This table with one entry added or replaced."""
        at = hash(key) % _BUCKETS
        bucket = self._buckets[at]
        return self._with(at, {**bucket, key: value}, self._size + (key not in bucket))

    def with_entries(self, entries: Mapping[str, V]) -> "Table[V]":
        """This table with some entries added or replaced; the same object for none."""
        table = self
        for key, value in entries.items():
            table = table.with_entry(key, value)
        return table

    def without(self, keys: Iterable[str]) -> "Table[V]":
        """This table without some keys; those that are not there are passed over."""
        table = self
        for key in keys:
            at = hash(key) % _BUCKETS
            bucket = table._buckets[at]
            if key in bucket:
                left = {name: value for name, value in bucket.items() if name != key}
                table = table._with(at, left or _NONE, table._size - 1)
        return table

    def changes(self, newer: "Table[V]") -> dict[str, tuple[V | None, V | None]]:
        """For each key that is not the same in both: the value here and in ``newer``; None: not there."""
        found: dict[str, tuple[V | None, V | None]] = {}
        if self is newer:
            return found
        for before, after in zip(self._buckets, newer._buckets, strict=True):
            if before is after:
                continue
            for key in before.keys() | after.keys():
                old, new = before.get(key), after.get(key)
                if old is not new and old != new:
                    found[key] = (old, new)
        return found

    def _with(self, at: int, bucket: dict[str, V], size: int) -> "Table[V]":
        table: Table[V] = object.__new__(Table)
        table._buckets = (*self._buckets[:at], bucket, *self._buckets[at + 1 :])
        table._size = size
        return table

    def __getitem__(self, key: str) -> V:
        return self._buckets[hash(key) % _BUCKETS][key]

    def __contains__(self, key: object) -> bool:
        return key in self._buckets[hash(key) % _BUCKETS]

    def __iter__(self) -> Iterator[str]:
        for bucket in self._buckets:
            yield from bucket

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Table):
            return self._size == other._size and self._buckets == other._buckets
        return dict(self) == other if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to dicts, which have none

    def __repr__(self) -> str:
        return f"Table({dict(self)!r})"
