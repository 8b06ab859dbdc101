"""CatalogTransaction: changes to a snapshot that are committed together or not at all.

Source: catalog-semantics.md sections 1.2.6, 1.2.7, 1.2.9 and 1.2.10.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from persist.core.catalog.allocation import BOOTSTRAP_ONLY, FIRST_IDS, OID, take_ids, take_oids
from persist.core.catalog.conflicts import Conflict, Footprint, Overlapping, classify
from persist.core.catalog.errors import DuplicateKey, OutOfSync, UniquenessViolation
from persist.core.catalog.fingerprints import fingerprint
from persist.core.catalog.kept_settings import check_not_own
from persist.core.catalog.kinds import (
    COMMIT,
    CONFIG,
    FENCE_TOKEN,
    ID_ALLOCATOR,
    SETTING,
    AnyKind,
    Kind,
    Name,
    check_kind,
    check_object,
)
from persist.core.catalog.objects import Commit, CommitKey, IdAllocator, IdAllocatorKey, Setting, SettingKey
from persist.core.catalog.open_rules import CONTENT_VERSION, DATA_VERSION, FENCE_INCARNATION
from persist.core.catalog.prepared import LARGE, STEP, Prepared, Preparing, rows_of
from persist.core.catalog.rows import Row, RowCodec
from persist.core.catalog.snapshot import Change, Snapshot
from persist.core.catalog.values import Unit
from persist.core.ids import Token
from persist.errors import InvalidArgument
from persist.typed import AnyKey, AnyValue

K = TypeVar("K")
V = TypeVar("V")

RESERVED: Final = frozenset({FENCE_TOKEN, COMMIT})
"""Kinds that transactions may read, but only opening and committing write."""


def check_not_version(kind: AnyKind, key: AnyKey) -> None:
    """Nothing, unless the object says which release reads the catalog, or which fence holds: one that is wrong is the
    end of it.

    Raises InvalidArgument: only opening the catalog for writing changes the versions, and only a repair the fence.
    """
    if (kind, key) == (CONFIG, FENCE_INCARNATION):
        raise InvalidArgument("a fence is set back by a repair only", hint="leave it out", kind=kind, key=key)
    if (kind, key) in ((CONFIG, DATA_VERSION), (SETTING, CONTENT_VERSION)):
        raise InvalidArgument(
            "a version changes only when the catalog is opened for writing", hint="leave it out", kind=kind, key=key
        )


_Pending: TypeAlias = dict[AnyKind, dict[Any, Any]]
"""What objects are to be, by kind and key; None: gone."""
_Kept: TypeAlias = tuple[_Pending, dict[AnyKind, dict[Name, Any]], dict[tuple[AnyKind, Any], int], int, Counter[int]]
"""Changes, the names they give and take, and their groups."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a transaction comes down to: at most one change per key, and none that changes nothing."""

    changes: tuple[Change, ...]
    version: int
    token: Token | None = None
    prepared: Prepared | None = None
    always: bool = False

    def rows(self, codec: RowCodec, ts: int, body: bytes = b"") -> list[tuple[Row, int]]:
        """The rows that go (-1) and come (1) when the batch is committed at ``ts``; with a token also its row.

        No changes: no rows, not even that, unless it is kept ``always``. ``body``: the fingerprint that is kept with
        the token.
        """
        if self.prepared is not None:
            rows = list(self.prepared.rows)
        else:
            rows = [row for change in self.changes for row in rows_of(codec, change)]
        if (rows or self.always) and self.token is not None:
            rows.append((codec.encode(COMMIT.tag, CommitKey(self.token), Commit(ts, body)), 1))
        return rows


def foreign() -> InvalidArgument:
    """The refusal of a transaction by a catalog that did not make it."""
    return InvalidArgument(
        "a transaction of another open catalog",
        hint="make a new one with this catalog's transaction() and run it again; nothing was changed",
    )


class CatalogTransaction:
    """Reads its own writes. An operation that fails changes nothing, and the transaction goes on.

    It belongs to the open catalog that made it, and is committed to no other one: not to another environment, nor to
    the same catalog opened again. When the snapshot moved on since the last operation, every operation first looks
    whether that matters, and raises OutOfSync if so: run it again with a new transaction.
    Append-only kinds are written only. ``token`` makes committing it again a no-op; ``bootstrap`` lets it use all
    allocators. ``told_body`` is the fingerprint of the transaction that it carries out for another process. ``always``:
    its token is kept also if it changes nothing.
    """

    def __init__(self, snapshot: Snapshot, *, token: Token | None = None, bootstrap: bool = False) -> None:
        self.token = token
        self.told_body = b""
        self.always = False
        self.footprint = Footprint()
        self._snapshot = snapshot
        self._begun = snapshot.begin()
        self._bootstrap = bootstrap
        self._pending: dict[AnyKind, dict[Any, Any]] = {}
        self._names: dict[AnyKind, dict[Name, Any]] = {}
        self._ops: dict[tuple[AnyKind, Any], int] = {}
        self._op = 0
        self._oids: Counter[int] = Counter()
        self._kept: list[_Kept] = []
        self._prepared: Prepared | None = None
        if token is not None:
            self.name(token)

    def name(self, token: Token) -> None:
        """Give it a token. Raises nothing."""
        self.token = token
        self.footprint.keys.add((COMMIT, CommitKey(token)))

    def check_made_from(self, snapshot: Snapshot) -> None:
        """Nothing, when it was made from this snapshot. Raises InvalidArgument.

        Another one, of the same catalog too, shows another history: what was read there proves nothing here.
        """
        if self._snapshot is not snapshot:
            raise foreign()

    def next_op(self) -> int:
        """Begin another group of operations; its number goes with the changes it makes. Raises nothing."""
        self._op += 1
        return self._op

    def get(self, kind: Kind[K, V], key: K) -> V | None:
        """The value of a key. Raises InvalidArgument for append-only kinds, OutOfSync."""
        self._begin(kind)
        check_object(kind, key)
        self.footprint.keys.add((kind, key))
        value: V | None = self._get(kind, key)
        return value

    def objects(self, kind: Kind[K, V]) -> Mapping[K, V]:
        """All objects of a kind, which the transaction depends on from now on. Raises as ``get``."""
        self._begin(kind)
        self.footprint.kinds.add(kind)
        return dict(self._objects(kind))

    def find(self, kind: Kind[K, V], name: Name) -> K | None:
        """The key of the object that has a name. Raises as ``get``."""
        self._begin(kind)
        self.footprint.names.add((kind, name))
        key: K | None = self._holder(kind, name)
        return key

    def insert(self, kind: Kind[K, V], key: K, value: V) -> None:
        """A new object. Raises DuplicateKey, UniquenessViolation, InvalidArgument, OutOfSync."""
        check_kind(kind)
        if kind.append_only:
            self._append(kind, key, 1)
            return
        self._begin_write(kind)
        self._depend(kind, key, value)
        if self._get(kind, key) is not None:
            raise DuplicateKey("there is an object with this key", kind=kind, key=key)
        self._write(kind, [(key, value)])

    def set(self, kind: Kind[K, V], key: K, value: V | None) -> V | None:
        """Insert, change or (None) delete one object; the previous value. Raises UniquenessViolation and as ``get``."""
        self._begin_write(kind)
        self._depend(kind, key, value)
        previous: V | None = self._get(kind, key)
        self._write(kind, [(key, value)])
        return previous

    def keep(self, key: SettingKey, value: Setting | None) -> None:
        """Set (None: delete) a setting of the library's own, which ``set`` and all others refuse. Raises OutOfSync."""
        self._begin_write(SETTING)
        self._depend(SETTING, key, value)
        deque(self._writing(SETTING, [(key, value)], own=True), maxlen=0)

    def set_all(self, kind: Kind[K, V], objects: Iterable[tuple[K, V | None]]) -> None:
        """As ``set`` for each, all or none: names may change hands among them. The last value of a key counts.

        Raises as ``set``.
        """
        deque(self.setting(kind, objects), maxlen=0)

    def setting(self, kind: Kind[K, V], objects: Iterable[tuple[K, V | None]]) -> Iterator[None]:
        """As ``set_all``, in steps: others may commit between two of them. Raises as ``set``; nothing is set then."""
        self._begin_write(kind)
        yield from self._writing(kind, list(dict(objects).items()))

    def update(self, kind: Kind[K, V], change: Callable[[K, V], V | None]) -> int:
        """Change all objects for which ``change`` returns a value; how many. All or none. Raises as ``set``."""
        self._begin_write(kind)
        self.footprint.kinds.add(kind)
        wanted = [(key, new) for key, old in dict(self._objects(kind)).items() if (new := change(key, old)) is not None]
        self._write(kind, wanted)
        return len(wanted)

    def delete(self, kind: Kind[K, V], choose: Callable[[K, V], bool]) -> list[tuple[K, V]]:
        """Delete all objects chosen; which those were. Raises as ``get``."""
        self._begin_write(kind)
        self.footprint.kinds.add(kind)
        gone = [(key, value) for key, value in dict(self._objects(kind)).items() if choose(key, value)]
        self._write(kind, [(key, None) for key, _ in gone])
        return gone

    def retract(self, kind: Kind[K, Unit], key: K) -> None:
        """Delete an object of an append-only kind that was read from the shard. Raises InvalidArgument, OutOfSync."""
        check_kind(kind)
        if not kind.append_only:
            raise InvalidArgument("only what is append only is retracted", hint="use set or delete", kind=kind)
        self._append(kind, key, -1)

    def allocate(self, name: str, count: int = 1) -> range:
        """``count`` ids that were and will be given to no other. Raises IdExhaustion, InvalidArgument, OutOfSync."""
        known = sorted(FIRST_IDS.keys() - {OID})
        if name not in known:
            raise InvalidArgument("no such allocator of ids", allocator=name, known=known)
        if name in BOOTSTRAP_ONLY and not self._bootstrap:
            raise InvalidArgument("this allocator serves the opening of the catalog only", allocator=name)
        ids, next_id = take_ids(name, self._next(name), count)
        self._advance(name, next_id)
        return ids

    def allocate_oids(self, count: int = 1) -> list[int]:
        """``count`` oids that no object has. Raises IdExhaustion, InvalidArgument, OutOfSync."""
        start = self._next(OID)
        oids, next_oid = take_oids(start, count, lambda oid: self._oids[oid] > 0 or self._snapshot.oid_taken(oid))
        self._advance(OID, next_oid)
        return oids

    def refresh(self) -> Conflict:
        """Whether what was committed since matters: ProgressOnly or Disjoint. Raises OutOfSync naming the keys if so.

        It also raises OutOfSync when too much was committed to know.
        """
        snapshot = self._snapshot
        changes = snapshot.since(self._begun.version)
        if changes is None:
            raise OutOfSync(
                "too much was committed meanwhile", hint="run the transaction again", updates="many", keys="unknown"
            )
        conflict = classify(self.footprint, changes)
        if isinstance(conflict, Overlapping):
            keys = ", ".join(f"{tag} {key}" for tag, key in conflict.keys[:10])
            raise OutOfSync(
                "the catalog was changed meanwhile",
                hint="run the transaction again",
                updates=conflict.changes,
                keys=keys,
            )
        self._begun.version = snapshot.version
        return conflict

    @property
    def snapshot(self) -> Snapshot:
        """What it began from, without its own changes, as it is now. What is read there is in no footprint."""
        self._current()
        return self._snapshot

    def depend_on(self, kinds: Iterable[AnyKind]) -> None:
        """From now on every change of these kinds matters, as if all their objects were read. Raises nothing."""
        self.footprint.kinds.update(kinds)

    def carry(self, footprint: Footprint, body: bytes) -> None:
        """Carry out another's transaction: what that depends on matters, and ``body`` stands for it. Raises nothing."""
        self.footprint.carried = footprint
        self.told_body = body

    def savepoint(self) -> None:
        """Remember what was changed; ``rollback`` and ``release`` end that, the last one first. Raises nothing."""
        pending = {kind: dict(of) for kind, of in self._pending.items()}
        names = {kind: dict(of) for kind, of in self._names.items()}
        self._kept.append((pending, names, dict(self._ops), self._op, self._oids.copy()))

    def rollback(self) -> None:
        """Undo what was changed since the savepoint: ids that were taken since are given again.

        Raises IndexError: there is no savepoint.
        """
        self._pending, self._names, self._ops, self._op, self._oids = self._kept.pop()
        self._prepared = None

    def release(self) -> None:
        """What was changed since the savepoint stays. Raises IndexError: there is no savepoint."""
        self._kept.pop()

    def batch(self) -> Batch:
        """All changes, at most one per key, in the order of kinds and keys first written. Raises OutOfSync."""
        self._current()
        made = self._prepared
        return Batch(
            made.changes if made else tuple(self._changes()), self._begun.version, self.token, made, self.always
        )

    def preparing(self, codec: RowCodec) -> Iterator[None]:
        """Make what a large one comes down to, in steps: others may commit between two of them. ``batch`` has it then.

        Raises OutOfSync, InvalidArgument for what cannot be stored.
        """
        self._current()
        if self._prepared is not None or not self.is_large:
            return
        made, wanted = Preparing(codec), list[tuple[str, bytes, bytes | None]]()
        pending = {kind: dict(of) for kind, of in self._pending.items()}
        for number, change in enumerate(self._changes(pending)):
            made.add(change)
            if number % STEP == 0:
                yield
        for number, each in enumerate(_wanted(pending, codec) if not self.told_body else ()):
            wanted.append(each)
            if number % STEP == 0:
                yield
        if pending == self._pending:
            self._prepared = made.done(self.told_body or fingerprint(wanted))

    @property
    def is_large(self) -> bool:
        """Whether it is worth while to prepare it."""
        return sum(map(len, self._pending.values())) >= LARGE

    @property
    def prepared(self) -> Prepared | None:
        """What it comes down to, if that was made (``preparing``) and nothing was changed since."""
        return self._prepared

    def body(self, codec: RowCodec) -> bytes:
        """The fingerprint of what it wants, see ``bodies``. Raises InvalidArgument for what cannot be stored."""
        if self._prepared is not None:
            return self._prepared.body
        return self.told_body or fingerprint(_wanted(self._pending, codec))

    def __repr__(self) -> str:
        return f"<Transaction of a catalog: {sum(map(len, self._pending.values()))} objects changed>"

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _current(self) -> None:
        self._snapshot.check()
        if self._snapshot.version != self._begun.version:
            self.refresh()

    def _begin(self, kind: AnyKind) -> None:
        check_kind(kind)
        if kind.append_only:
            raise InvalidArgument("objects of this kind are not in memory", hint="read the shard", kind=kind)
        self._current()

    def _begin_write(self, kind: AnyKind) -> None:
        self._begin(kind)
        if kind in RESERVED:
            raise InvalidArgument("transactions do not write this kind", kind=kind)

    def _get(self, kind: AnyKind, key: AnyKey) -> AnyValue:
        pending = self._pending.get(kind, {})
        return pending[key] if key in pending else self._snapshot.get(kind, key)

    def _objects(self, kind: AnyKind) -> Iterator[tuple[AnyKey, AnyValue]]:
        pending = self._pending.get(kind, {})
        yield from ((key, value) for key, value in self._snapshot.objects(kind).items() if key not in pending)
        yield from ((key, value) for key, value in pending.items() if value is not None)

    def _holder(self, kind: AnyKind, name: Name) -> AnyKey:
        names = self._names.get(kind, {})
        return names[name] if name in names else self._snapshot.holder(kind, name)

    def _depend(self, kind: AnyKind, key: object, value: object) -> None:
        check_object(kind, key, value)
        self.footprint.keys.add((kind, key))
        if value is not None:
            self.footprint.names.update((kind, name) for name in kind.names(value))

    def _write(self, kind: AnyKind, wanted: list[tuple[AnyKey, AnyValue]]) -> None:
        deque(self._writing(kind, wanted), maxlen=0)

    def _writing(self, kind: AnyKind, wanted: list[tuple[object, object]], *, own: bool = False) -> Iterator[None]:
        """All names are given up before any is taken, and nothing is kept unless every name is free. In steps."""
        for number, (key, value) in enumerate(wanted):
            self._depend(kind, key, value)
            check_not_version(kind, key)
            if isinstance(key, SettingKey) and not own:
                check_not_own(key)
            if number % STEP == STEP - 1:
                yield
        self._keep_ids(kind, wanted)
        names: dict[Name, Any] = {}
        for number, (key, _) in enumerate(wanted):
            previous = self._get(kind, key)
            names.update((name, None) for name in kind.names(previous)) if previous is not None else None
            if number % STEP == STEP - 1:
                yield
        for number, (key, value) in enumerate(wanted):
            if number % STEP == STEP - 1:
                yield
            for name in kind.names(value) if value is not None else ():
                holder = names[name] if name in names else self._holder(kind, name)
                if holder is not None and holder != key:
                    raise UniquenessViolation(
                        "another object has this name", kind=kind, key=key, name=name, clashing_key=holder
                    )
                names[name] = key
        self._prepared = None
        self._names.setdefault(kind, {}).update(names)
        self._count_oids(kind, dict(wanted))
        self._pending.setdefault(kind, {}).update(wanted)
        self._ops.update(((kind, key), self._op) for key, _ in wanted)

    def _keep_ids(self, kind: AnyKind, wanted: list[tuple[AnyKey, AnyValue]]) -> None:
        # Oids come round again; of all others no number may be given twice.
        for key, value in wanted if kind is ID_ALLOCATOR else ():
            previous = self._get(kind, key)
            lowered = value is None or (previous is not None and value.next_id < previous.next_id)
            if previous is not None and lowered and key.name != OID:
                raise InvalidArgument("an allocator never goes back", allocator=key.name, next_id=previous.next_id)

    def _append(self, kind: AnyKind, key: AnyKey, diff: int) -> None:
        self._current()
        check_object(kind, key)
        pending = self._pending.setdefault(kind, {})
        if pending.get(key) == diff:
            raise DuplicateKey("this was done already", kind=kind, key=key)
        self.footprint.keys.add((kind, key))
        self._prepared = None
        if key in pending:
            del pending[key]
        else:
            pending[key] = diff
            self._ops[kind, key] = self._op

    def _next(self, name: str) -> int:
        allocator = self.get(ID_ALLOCATOR, IdAllocatorKey(name))
        return allocator.next_id if allocator is not None else FIRST_IDS[name]

    def _advance(self, name: str, next_id: int) -> None:
        self.set(ID_ALLOCATOR, IdAllocatorKey(name), IdAllocator(next_id))

    def _count_oids(self, kind: AnyKind, wanted: Mapping[AnyKey, AnyValue]) -> None:
        # Change by change: a transaction of many objects asks for as many oids. What it frees stays taken until it is
        # committed, as the snapshot has it.
        if kind.oid_of is None:
            return
        pending = self._pending.get(kind, {})
        for key, value in wanted.items():
            for given, step in ((pending.get(key), -1), (value, 1)):
                if given is not None:
                    self._oids[kind.oid_of(given)] += step

    def _changes(self, wanted: _Pending | None = None) -> Iterator[Change]:
        for kind, pending in (self._pending if wanted is None else wanted).items():
            for key, value in pending.items():
                if kind.append_only:
                    before, after = (None, Unit()) if value > 0 else (Unit(), None)
                else:
                    before, after = self._snapshot.get(kind, key), value
                if before != after:
                    yield Change(kind, key, before, after, self._ops[kind, key])


def _wanted(wanted: _Pending, codec: RowCodec) -> Iterator[tuple[str, bytes, bytes | None]]:
    for kind, pending in wanted.items():
        for key, value in pending.items():
            after = value if not kind.append_only else Unit() if value > 0 else None
            if after is None:
                yield kind.tag, codec.encode_key(kind.tag, key), None
            else:
                yield codec.encode(kind.tag, key, after)
