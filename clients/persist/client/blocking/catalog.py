"""The catalog for callers without an event loop. The asyncio ports say what the calls promise, cost and raise.

Everything happens on the client's background loop, transactions too: threads may work with one open catalog at once.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

from persist.client.catalog import port as aio
from persist.client.catalog.port import Dump, Repair
from persist.client.shard.loop_thread import LoopThread
from persist.core.catalog import transaction as core
from persist.core.catalog.kinds import AnyKind, Kind, Name
from persist.core.catalog.leadership.migrations import Upgrade
from persist.core.catalog.objects import AuditLogKey, FenceToken, StorageUsageKey
from persist.core.catalog.open_rules import Mode
from persist.core.catalog.snapshot import Change
from persist.core.catalog.values import Unit
from persist.core.ids import Token

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class _OnLoop:
    """Runs plain functions where nothing else changes what they look at."""

    def __init__(self, owner: object, loop: LoopThread) -> None:
        self._owner = owner
        self._loop = loop

    def _call(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self._loop.run(call())


class Catalog(_OnLoop):
    """A catalog that nobody opened yet. See OpenableCatalog."""

    def __init__(self, client: object, loop: LoopThread, catalog: aio.OpenableCatalog) -> None:
        super().__init__(client, loop)
        self._catalog = catalog

    def is_initialized(self) -> bool:
        """Whether there is a catalog."""
        return self._loop.run(self._catalog.is_initialized())

    def fence_token(self) -> FenceToken | None:
        """Deploy generation and epoch of whoever opened it last."""
        return self._loop.run(self._catalog.fence_token())

    def open(self, generation: int) -> "WritableCatalog":
        """Lead: fence whoever did, migrate, initialize. See OpenableCatalog.open."""
        return WritableCatalog(self, self._loop, self._loop.run(self._catalog.open(generation)))

    def open_savepoint(self, generation: int, *, allow_uninitialized: bool = False) -> "WritableCatalog":
        """The catalog as it would be, in memory only. See OpenableCatalog.open_savepoint."""
        opening = self._catalog.open_savepoint(generation, allow_uninitialized=allow_uninitialized)
        return WritableCatalog(self, self._loop, self._loop.run(opening))

    def open_read_only(self) -> "ReadableCatalog":
        """The catalog as it is. See OpenableCatalog.open_read_only."""
        return ReadableCatalog(self, self._loop, self._loop.run(self._catalog.open_read_only()))

    def upgrade_check(self) -> Upgrade:
        """What opening with this release would change, without effect. See OpenableCatalog.upgrade_check."""
        return self._loop.run(self._catalog.upgrade_check())

    def dump(self, *, consolidated: bool = True, kinds: Iterable[str] | None = None) -> Dump:
        """All rows as they are durable. See OpenableCatalog.dump."""
        return self._loop.run(self._catalog.dump(consolidated=consolidated, kinds=kinds))

    def edit(self, kind: AnyKind, key: Any, value: Any) -> Any:
        """Repair one object by hand, fencing whoever leads; the previous value. See OpenableCatalog.edit."""
        return self._loop.run(self._catalog.edit(kind, key, value))

    def repair(self, *, commit: bool = False) -> Repair:
        """What makes a damaged catalog whole; with ``commit`` it is done. See OpenableCatalog.repair."""
        return self._loop.run(self._catalog.repair(commit=commit))

    def close(self) -> None:
        """Give back what is held; what was opened from it is of no use any more."""
        self._loop.run(self._catalog.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ReadableCatalog(_OnLoop):
    """An open catalog, as of ``upper``. See ReadOnlyCatalog."""

    def __init__(self, owner: object, loop: LoopThread, catalog: aio.ReadOnlyCatalog) -> None:
        super().__init__(owner, loop)
        self._catalog = catalog

    @property
    def mode(self) -> Mode:
        """What it was opened for."""
        return self._catalog.mode

    @property
    def token(self) -> FenceToken | None:
        """Deploy generation and epoch it was opened with, or found."""
        return self._catalog.token

    @property
    def upper(self) -> int:
        """What it shows is complete below this time."""
        return self._catalog.upper

    def get(self, kind: Kind[K, V], key: K) -> V | None:
        """The object with a key."""
        return self._call(lambda: self._catalog.get(kind, key))

    def objects(self, kind: Kind[K, V]) -> Mapping[K, V]:
        """All objects of a kind, a copy."""
        return self._call(lambda: self._catalog.objects(kind))

    def count(self, kind: AnyKind) -> int:
        """How many objects a kind has, append-only ones too."""
        return self._call(lambda: self._catalog.count(kind))

    def sync(self, target: int | None = None, *, timeout: float | None = None) -> list[tuple[int, tuple[Change, ...]]]:
        """Take over what was committed; the changes by time. See ReadOnlyCatalog.sync."""
        return self._loop.run(self._catalog.sync(target, timeout=timeout))

    def audit_logs(self) -> list[AuditLogKey]:
        """All audit events, read from where they are durable."""
        return self._loop.run(self._catalog.audit_logs())

    def storage_usage(self) -> list[StorageUsageKey]:
        """All measurements of storage, read from where they are durable."""
        return self._loop.run(self._catalog.storage_usage())

    def dump(self, *, consolidated: bool = True, kinds: Iterable[str] | None = None) -> Dump:
        """All rows as they are durable. See ReadOnlyCatalog.dump."""
        return self._loop.run(self._catalog.dump(consolidated=consolidated, kinds=kinds))

    def close(self) -> None:
        """Give back what is held. Nothing durable changes."""
        self._loop.run(self._catalog.close())


class WritableCatalog(ReadableCatalog):
    """A catalog open for writing, or a savepoint. See ReadWriteCatalog."""

    def __init__(self, owner: object, loop: LoopThread, catalog: aio.ReadWriteCatalog) -> None:
        super().__init__(owner, loop, catalog)
        self._writable = catalog

    def transaction(self, *, token: Token | None = None) -> "Transaction":
        """Changes to make together. See ReadWriteCatalog.transaction."""
        return Transaction(self, self._loop, self._call(lambda: self._writable.transaction(token=token)))

    def commit(self, transaction: "Transaction", *, ts: int = 0) -> int:
        """Make it durable; the new upper. See ReadWriteCatalog.commit."""
        return self._loop.run(self._writable.commit(transaction.wrapped, ts=ts))

    def set(self, kind: Kind[K, V], objects: Mapping[K, V | None]) -> int:
        """Insert, change or (None) delete objects; the new upper. See ReadWriteCatalog.set."""
        return self._loop.run(self._writable.set(kind, objects))

    def allocate(self, name: str, count: int = 1) -> range:
        """Ids that nobody had or will have, durably. See ReadWriteCatalog.allocate."""
        return self._loop.run(self._writable.allocate(name, count))

    def confirm_leadership(self) -> None:
        """Look whether this one still leads. See ReadWriteCatalog.confirm_leadership."""
        self._loop.run(self._writable.confirm_leadership())

    def advance_upper(self, to: int) -> None:
        """Make the upper at least ``to``. See ReadWriteCatalog.advance_upper."""
        self._loop.run(self._writable.advance_upper(to))

    def prune_storage_usage(self, retention_ms: int | None, boot_ms: int) -> list[StorageUsageKey]:
        """Retract old measurements; those that stay. See ReadWriteCatalog.prune_storage_usage."""
        return self._loop.run(self._writable.prune_storage_usage(retention_ms, boot_ms))


class Transaction(_OnLoop):
    """Changes to commit together or not at all. See the transaction of asyncio, which raises the same."""

    def __init__(self, owner: object, loop: LoopThread, wrapped: core.Transaction) -> None:
        super().__init__(owner, loop)
        self.wrapped = wrapped

    def next_op(self) -> int:
        """Begin another group of operations."""
        return self._call(self.wrapped.next_op)

    def get(self, kind: Kind[K, V], key: K) -> V | None:
        """The object with a key, as this transaction sees it."""
        return self._call(lambda: self.wrapped.get(kind, key))

    def objects(self, kind: Kind[K, V]) -> Mapping[K, V]:
        """All objects of a kind, as this transaction sees them."""
        return self._call(lambda: self.wrapped.objects(kind))

    def find(self, kind: Kind[K, V], name: Name) -> K | None:
        """The key of the object that has a name."""
        return self._call(lambda: self.wrapped.find(kind, name))

    def insert(self, kind: Kind[K, V], key: K, value: V) -> None:
        """A new object. Raises DuplicateKey, UniquenessViolation."""
        self._call(lambda: self.wrapped.insert(kind, key, value))

    def set(self, kind: Kind[K, V], key: K, value: V | None) -> V | None:
        """Insert, change or (None) delete one object; the previous value."""
        return self._call(lambda: self.wrapped.set(kind, key, value))

    def set_all(self, kind: Kind[K, V], objects: Iterable[tuple[K, V | None]]) -> None:
        """As ``set`` for each, all or none."""
        self._call(lambda: self.wrapped.set_all(kind, objects))

    def update(self, kind: Kind[K, V], change: Callable[[K, V], V | None]) -> int:
        """Change all objects for which ``change`` returns a value; how many."""
        return self._call(lambda: self.wrapped.update(kind, change))

    def delete(self, kind: Kind[K, V], choose: Callable[[K, V], bool]) -> list[tuple[K, V]]:
        """Delete all objects chosen; which those were."""
        return self._call(lambda: self.wrapped.delete(kind, choose))

    def retract(self, kind: Kind[K, Unit], key: K) -> None:
        """Delete an object of an append-only kind."""
        self._call(lambda: self.wrapped.retract(kind, key))

    def allocate(self, name: str, count: int = 1) -> range:
        """Ids that nobody had or will have."""
        return self._call(lambda: self.wrapped.allocate(name, count))

    def allocate_oids(self, count: int = 1) -> list[int]:
        """Oids that no object has."""
        return self._call(lambda: self.wrapped.allocate_oids(count))
