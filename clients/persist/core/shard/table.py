"""Immutable maps that may be large: one with an entry changed, and what two of them differ in, cost next to nothing.

A fixed number of small dicts in groups, none ever changed: a new version copies one dict and the group it is in and
shares the rest, and two versions differ only in groups, and there in dicts, that are not the same object.
Source: persist-semantics.md section 2.1; performance.md A3.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from persist.typed import Record

V = TypeVar("V")

_WIDTH: Final = 64
"""Groups, and dicts in each."""
_BITS: Final = _WIDTH.bit_length() - 1
_NONE: Final[Record] = {}
_BARE: Final[tuple[Record, ...]] = (_NONE,) * _WIDTH


def _place(key: str) -> tuple[int, int]:
    # Not Python's own hash, which differs in each process: one history of changes gives one order everywhere. Within a
    # dict of the table that order is of the history, so two equal tables may differ in it.
    hashed = zlib.crc32(key.encode())
    return hashed % _WIDTH, (hashed >> _BITS) % _WIDTH


class Table(Mapping[str, V]):
    """A map from ids to values. A change copies 128 references and one dict, which has few entries up to 20,000."""

    __slots__ = ("_groups", "_size")

    def __init__(self, entries: Mapping[str, V] | Iterable[tuple[str, V]] = ()) -> None:
        groups: list[Any] = [_BARE] * _WIDTH
        for key, value in (known := dict(entries)).items():
            group, at = _place(key)
            if groups[group] is _BARE:
                groups[group] = [_NONE] * _WIDTH
            if groups[group][at] is _NONE:
                groups[group][at] = {}
            groups[group][at][key] = value
        self._groups: tuple[tuple[dict[str, V], ...], ...] = tuple(
            [group if group is _BARE else tuple(group) for group in groups]
        )
        self._size = len(known)

    def with_entry(self, key: str, value: V) -> "Table[V]":
        """This table with one entry added or replaced."""
        group, at = _place(key)
        bucket = self._groups[group][at]
        return self._with(group, at, {**bucket, key: value}, self._size + (key not in bucket))

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
            group, at = _place(key)
            bucket = table._groups[group][at]
            if key in bucket:
                left = {name: value for name, value in bucket.items() if name != key}
                table = table._with(group, at, left or _NONE, table._size - 1)
        return table

    def changes(self, newer: "Table[V]") -> dict[str, tuple[V | None, V | None]]:
        """For each key that is not the same in both: the value here and in ``newer``; None: not there."""
        found: dict[str, tuple[V | None, V | None]] = {}
        if self is newer:
            return found
        for mine, others in zip(self._groups, newer._groups, strict=True):
            if mine is others:
                continue
            for before, after in zip(mine, others, strict=True):
                if before is after:
                    continue
                for key in {**before, **after}:
                    old, new = before.get(key), after.get(key)
                    if old is not new and old != new:
                        found[key] = (old, new)
        return found

    def _with(self, group: int, at: int, bucket: dict[str, V], size: int) -> "Table[V]":
        table: Table[V] = object.__new__(Table)
        groups = self._groups
        mine = groups[group]
        changed = (*mine[:at], bucket, *mine[at + 1 :])
        table._groups = (*groups[:group], changed, *groups[group + 1 :])
        table._size = size
        return table

    def __getitem__(self, key: str) -> V:
        group, at = _place(key)
        return self._groups[group][at][key]

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        group, at = _place(key)
        return key in self._groups[group][at]

    def __iter__(self) -> Iterator[str]:
        for group in self._groups:
            if group is not _BARE:
                for bucket in group:
                    yield from bucket

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Table):
            return self._size == other._size and self._groups == other._groups
        return dict(self) == other if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to dicts, which have none

    def __repr__(self) -> str:
        return f"Table({dict(self)!r})"
