"""All objects of a catalog at one moment, in memory, kept up with what is committed.

Objects of append-only kinds are counted, never kept: memory does not grow with them. Source: catalog-semantics.md
sections 1.2.3 and 1.2.8.
"""

import copy
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from persist.core.catalog.kinds import KINDS, AnyKind, Kind, Name, kind_of
from persist.core.catalog.rows import Row, RowCodec, RowUpdate, contents, is_append_only
from persist.errors import CorruptData, PersistError, check
from persist.typed import AnyKey, AnyValue

K = TypeVar("K")
V = TypeVar("V")

LOG_CHANGES: Final = 10_000
"""How many changes are remembered besides the newest ones, whether any transaction began before them or not."""
LOG_CHANGES_HELD: Final = 1_000_000
"""How many are while a transaction is there that began before them: the largest ones take 500,000."""


class Change(NamedTuple):
    """An object that appears (no ``before``), changes, or goes (no ``after``), in the group of operations ``op``."""

    kind: AnyKind
    key: Any
    before: Any
    after: Any
    op: int = 0


class Net(NamedTuple):
    """The net changes of one time that fit a snapshot: by kind and key the value that goes, and the one that comes."""

    before: Mapping[tuple[AnyKind, Any], Any]
    after: Mapping[tuple[AnyKind, Any], Any]


class Begun:
    """As of which version one looked last at what others did. What changed since is remembered while it is there."""

    __slots__ = ("__weakref__", "version")

    def __init__(self, version: int) -> None:
        self.version = version


class Snapshot:
    """Objects by kind and key, names by kind, and how many objects the append-only kinds have.

    ``version`` counts the batches that changed something since this snapshot was made. ``ended`` says why it is not
    kept up any more: transactions over it raise that, too. ``derived``: what is made from it, by those that made it and
    keep it up by ``since``.
    """

    def __init__(self) -> None:
        self.version = 0
        self.ended: PersistError | None = None
        self.derived: dict[type, Any] = {}
        self._objects: dict[AnyKind, dict[Any, Any]] = {kind: {} for kind in KINDS if not kind.append_only}
        self._names: dict[AnyKind, dict[Name, Any]] = {kind: {} for kind in KINDS if not kind.append_only}
        self._counts = _no_counts()
        self._oids: dict[int, int] = {}
        self._log: deque[tuple[int, tuple[Change, ...]]] = deque()
        self._logged = 0
        self._begun: weakref.WeakSet[Begun] = weakref.WeakSet()

    @classmethod
    def of(cls, codec: RowCodec, updates: Iterable[RowUpdate]) -> "Snapshot":
        """What all updates up to some time sum to. Raises CorruptData unless that is exactly one value per key."""
        snapshot, counts = cls(), dict[str, int]()
        kept = contents(_counting(updates, counts))
        for tag, rows in kept.items():
            snapshot.load(codec, tag, rows.items())
        snapshot.recount(counts)
        return snapshot

    def load(self, codec: RowCodec, tag: str, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Some of the objects that a new snapshot begins with, by bytes of key and value. Raises CorruptData."""
        for key, value in rows:
            kind, decoded = _decode(codec, Row(tag, key, value))
            self._put(kind, *decoded)

    def recount(self, counts: Mapping[str, int]) -> None:
        """Say how many objects the append-only kinds have, by tag; what is missing has none. Raises CorruptData."""
        for tag, count in counts.items():
            check(count >= 0, "no more goes than was there", kind=tag, count=count)
        self._counts = {kind: counts.get(kind.tag, 0) for kind in self._counts}

    def get(self, kind: Kind[K, V], key: K) -> V | None:
        """The value of a key. Not for append-only kinds."""
        value: V | None = self._objects[kind].get(key)
        return value

    def objects(self, kind: Kind[K, V]) -> Mapping[K, V]:
        """All objects of a kind: the live mapping, not a copy. Not for append-only kinds."""
        return self._objects[kind]

    def holder(self, kind: Kind[K, V], name: Name) -> K | None:
        """The key of the object that has a name."""
        key: K | None = self._names[kind].get(name)
        return key

    def count(self, kind: AnyKind) -> int:
        """How many objects there are of a kind, append-only ones too."""
        return self._counts[kind] if kind.append_only else len(self._objects[kind])

    def oid_taken(self, oid: int) -> bool:
        """Whether an object has this oid."""
        return oid in self._oids

    def check(self) -> None:
        """Nothing, while it is kept up. Raises what ended that."""
        if self.ended is not None:
            raise copy.copy(self.ended)

    def fitting(self, codec: RowCodec, changes: Iterable[tuple[Row, int]], beside: Net | None = None) -> Net:
        """The net changes of one time, when they fit what is here. Raises CorruptData; either way nothing changes.

        ``beside``: changes of other keys at that time, decoded already.
        """
        before, after = _by_key(codec, changes)
        if beside is not None:
            before, after = {**beside.before, **before}, {**beside.after, **after}
        counts: Counter[AnyKind] = Counter()
        for (kind, key), value in before.items():
            if kind.append_only:
                counts[kind] += 1
                check(counts[kind] <= self._counts[kind], "no more goes than was there", kind=kind.tag)
            elif self._objects[kind].get(key) != value:
                raise CorruptData("a retraction of what is not there", hint="stop and report it", kind=kind, key=key)
        taken: dict[tuple[AnyKind, Name], Any] = {}
        for at, value in after.items():
            kind, key = at
            if kind.append_only:
                continue
            if at not in before and key in self._objects[kind]:
                raise CorruptData("an insertion over what is there", hint="stop and report it", kind=kind, key=key)
            for name in kind.names(value):
                holder = self._names[kind].get(name)
                kept = holder is not None and (kind, holder) not in before
                if kept or taken.setdefault((kind, name), key) != key:
                    raise CorruptData("a name is unique", hint="stop and report it", kind=kind, name=name, key=key)
        return Net(before, after)

    def apply(self, codec: RowCodec, changes: Iterable[tuple[Row, int]]) -> tuple[Change, ...]:
        """Take over the net changes of one time; what changed, by object. Raises CorruptData as ``fitting``."""
        return self.take(self.fitting(codec, changes))

    def take(self, net: Net) -> tuple[Change, ...]:
        """Take over what ``fitting`` returned of this snapshot as it is; what changed, by object."""
        before, after = net
        for (kind, key), value in before.items():
            if kind.append_only:
                self._counts[kind] -= 1
            else:
                self._drop(kind, key, value)
        for (kind, key), value in after.items():
            if kind.append_only:
                self._counts[kind] += 1
            else:
                self._put(kind, key, value)
        told = tuple(Change(*at, before.get(at), after.get(at)) for at in {**before, **after})
        self._remember(told)
        return told

    def begin(self) -> Begun:
        """What a transaction keeps while it is there."""
        begun = Begun(self.version)
        self._begun.add(begun)
        return begun

    def since(self, version: int) -> list[Change] | None:
        """All changes after a version, in order; None when they are forgotten."""
        if version < self.version and (not self._log or self._log[0][0] > version + 1):
            return None
        return [change for at, changes in self._log if at > version for change in changes]

    def _remember(self, changes: tuple[Change, ...]) -> None:
        if not changes:
            return
        self.version += 1
        self._log.append((self.version, changes))
        self._logged += len(changes)
        # The newest stay however many they are: those who did something else meanwhile are no worse off for it.
        if self._logged <= LOG_CHANGES or len(self._log) < 2:
            return
        oldest = min([begun.version for begun in self._begun], default=self.version)
        while self._logged > LOG_CHANGES and len(self._log) > 1:
            if self._log[0][0] > oldest and self._logged <= LOG_CHANGES_HELD:
                return
            self._logged -= len(self._log.popleft()[1])

    def _put(self, kind: AnyKind, key: object, value: object) -> None:
        objects, names = self._objects[kind], self._names[kind]
        if key in objects:
            raise CorruptData("an insertion over what is there", hint="stop and report it", kind=kind, key=key)
        objects[key] = value
        for name in kind.names(value):
            holder = names.setdefault(name, key)
            if holder is not key and holder != key:
                raise CorruptData("a name is unique", hint="stop and report it", kind=kind, name=name, key=key)
        if kind.oid_of is not None:
            oid = kind.oid_of(value)
            self._oids[oid] = self._oids.get(oid, 0) + 1

    def _drop(self, kind: AnyKind, key: object, value: object) -> None:
        del self._objects[kind][key]
        for name in kind.names(value):
            del self._names[kind][name]
        if kind.oid_of is not None:
            oid = kind.oid_of(value)
            self._oids[oid] -= 1
            if not self._oids[oid]:
                del self._oids[oid]


def _no_counts() -> dict[AnyKind, int]:
    return {kind: 0 for kind in KINDS if kind.append_only}


def _counting(updates: Iterable[RowUpdate], counts: dict[str, int]) -> Iterable[RowUpdate]:
    for update in updates:
        if is_append_only(update.row.kind):
            counts[update.row.kind] = counts.get(update.row.kind, 0) + update.diff
        else:
            yield update


def _decode(codec: RowCodec, row: Row) -> tuple[AnyKind, tuple[AnyKey, AnyValue]]:
    decoded = codec.decode(row)
    return kind_of(row.kind), decoded


def _by_key(
    codec: RowCodec, changes: Iterable[tuple[Row, int]]
) -> tuple[dict[tuple[AnyKind, AnyValue], AnyValue], dict[tuple[AnyKind, AnyValue], AnyValue]]:
    before: dict[tuple[AnyKind, Any], Any] = {}
    after: dict[tuple[AnyKind, Any], Any] = {}
    for row, diff in changes:
        check(diff in (1, -1), "a row of the catalog is there once", kind=row.kind, diff=diff)
        kind, (key, value) = _decode(codec, row)
        side = before if diff < 0 else after
        check((kind, key) not in side, "a key has one value", kind=kind, key=key)
        side[kind, key] = value
    return before, after
