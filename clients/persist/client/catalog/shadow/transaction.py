"""A transaction of two catalogs: every operation runs on a transaction of each, so that both decide for themselves.

Source: catalog-semantics.md section 1.2.11.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from persist.client.catalog.shadow.comparison import ShadowOutcome, by_object, outcome_of, same_outcome
from persist.core.catalog.conflicts import Conflict, Footprint
from persist.core.catalog.kinds import AnyKind, Kind, Name
from persist.core.catalog.objects import Setting, SettingKey
from persist.core.catalog.rows import RowCodec
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.transaction import Batch, CatalogTransaction, foreign
from persist.core.catalog.values import Unit
from persist.core.ids import Token
from persist.typed import AnyValue

K = TypeVar("K")
V = TypeVar("V")


def _value(value: object) -> AnyValue:
    return value


class ShadowTransaction(CatalogTransaction):
    """Answers with what the first says. Functions given to it run twice. Raises ShadowDiffers, and as the first does.

    While the catalogs are between two states (a commit or sync is under way) only the first is asked, and ``second`` is
    given up: it would see another moment. Then ``replayed`` makes another one, when nothing moves any more.
    """

    def __init__(
        self, owner: object, first: CatalogTransaction, second: CatalogTransaction | None, is_quiet: Callable[[], bool]
    ) -> None:
        # SUBTLE: not that of CatalogTransaction, whose every operation is overridden here and goes to the two inside.
        self.token = first.token
        self.footprint = first.footprint
        self.owner = owner
        self.first = first
        self.second = second
        self._is_quiet = is_quiet
        self._done: list[tuple[str, Callable[[CatalogTransaction], Any], Callable[[Any], Any], ShadowOutcome]] = []

    def __repr__(self) -> str:
        return f"{self.first!r} in two catalogs"

    def check_made_from(self, snapshot: Snapshot) -> None:
        """See CatalogTransaction. It was made from two, and is of use to its owner only."""
        raise foreign()

    def name(self, token: Token) -> None:
        """See CatalogTransaction."""
        self.token = token
        self._run("name", lambda it: it.name(token))

    @property
    def told_body(self) -> bytes:
        """See CatalogTransaction."""
        return self.first.told_body

    @told_body.setter
    def told_body(self, body: bytes) -> None:
        self._run("told_body", lambda it: setattr(it, "told_body", body))

    @property
    def always(self) -> bool:
        """See CatalogTransaction."""
        return self.first.always

    @always.setter
    def always(self, always: bool) -> None:
        self._run("always", lambda it: setattr(it, "always", always))

    def next_op(self) -> int:
        """See CatalogTransaction."""
        return int(self._run("next_op", lambda it: it.next_op()))

    def get(self, kind: Kind[K, V], key: K) -> V | None:
        """See CatalogTransaction."""
        value: V | None = self._run(f"get {kind} {key}", lambda it: it.get(kind, key))
        return value

    def objects(self, kind: Kind[K, V]) -> dict[K, V]:
        """See CatalogTransaction."""
        found: dict[K, V] = self._run(f"objects {kind}", lambda it: it.objects(kind))
        return found

    def find(self, kind: Kind[K, V], name: Name) -> K | None:
        """See CatalogTransaction."""
        key: K | None = self._run(f"find {kind} {name}", lambda it: it.find(kind, name))
        return key

    def insert(self, kind: Kind[K, V], key: K, value: V) -> None:
        """See CatalogTransaction."""
        self._run(f"insert {kind} {key}", lambda it: it.insert(kind, key, value))

    def set(self, kind: Kind[K, V], key: K, value: V | None) -> V | None:
        """See CatalogTransaction."""
        previous: V | None = self._run(f"set {kind} {key}", lambda it: it.set(kind, key, value))
        return previous

    def keep(self, key: SettingKey, value: Setting | None) -> None:
        """See CatalogTransaction."""
        self._run(f"keep {key}", lambda it: it.keep(key, value))

    def set_all(self, kind: Kind[K, V], objects: Iterable[tuple[K, V | None]]) -> None:
        """See CatalogTransaction."""
        wanted = list(objects)
        self._run(f"set_all {kind}", lambda it: it.set_all(kind, wanted))

    def setting(self, kind: Kind[K, V], objects: Iterable[tuple[K, V | None]]) -> Iterator[None]:
        """See CatalogTransaction. In one step: both are to see the same moment."""
        self.set_all(kind, objects)
        yield

    def preparing(self, codec: RowCodec) -> Iterator[None]:
        """See CatalogTransaction. Each side does it in its own turn."""
        yield

    @property
    def is_large(self) -> bool:
        """See CatalogTransaction."""
        return self.first.is_large

    def update(self, kind: Kind[K, V], change: Callable[[K, V], V | None]) -> int:
        """See CatalogTransaction."""
        return int(self._run(f"update {kind}", lambda it: it.update(kind, change)))

    def delete(self, kind: Kind[K, V], choose: Callable[[K, V], bool]) -> list[tuple[K, V]]:
        """See CatalogTransaction. Which order objects come in is not compared."""
        gone: list[tuple[K, V]] = self._run(f"delete {kind}", lambda it: it.delete(kind, choose), dict)
        return gone

    def retract(self, kind: Kind[K, Unit], key: K) -> None:
        """See CatalogTransaction."""
        self._run(f"retract {kind} {key}", lambda it: it.retract(kind, key))

    def allocate(self, name: str, count: int = 1) -> range:
        """See CatalogTransaction."""
        ids: range = self._run(f"allocate {name}", lambda it: it.allocate(name, count))
        return ids

    def allocate_oids(self, count: int = 1) -> list[int]:
        """See CatalogTransaction."""
        oids: list[int] = self._run("allocate_oids", lambda it: it.allocate_oids(count))
        return oids

    def refresh(self) -> Conflict:
        """See CatalogTransaction. Whether it matters is compared, not how much came: one log may have merged it."""
        conflict: Conflict = self._run("refresh", lambda it: it.refresh(), type)
        return conflict

    @property
    def snapshot(self) -> Snapshot:
        """See CatalogTransaction. The first one's."""
        return self.first.snapshot

    def depend_on(self, kinds: Iterable[AnyKind]) -> None:
        """See CatalogTransaction."""
        wanted = list(kinds)
        self._run("depend_on", lambda it: it.depend_on(wanted))

    def carry(self, footprint: Footprint, body: bytes) -> None:
        """See CatalogTransaction."""
        self._run("carry", lambda it: it.carry(footprint, body))

    def savepoint(self) -> None:
        """See CatalogTransaction."""
        self._run("savepoint", lambda it: it.savepoint())

    def rollback(self) -> None:
        """See CatalogTransaction."""
        self._run("rollback", lambda it: it.rollback())

    def release(self) -> None:
        """See CatalogTransaction."""
        self._run("release", lambda it: it.release())

    def batch(self) -> Batch:
        """See CatalogTransaction."""
        batch: Batch = self._run("batch", lambda it: it.batch(), lambda value: by_object(value.changes))
        return batch

    def body(self, codec: RowCodec) -> bytes:
        """See CatalogTransaction."""
        return self.first.body(codec)

    def replayed(self, second: CatalogTransaction) -> CatalogTransaction:
        """The operations on a new transaction, each compared with what it came to on the first."""
        for what, operation, seen, outcome in self._done:
            same_outcome(what, outcome, outcome_of(lambda: operation(second)), seen)  # noqa: B023  # called at once
        return second

    def _run(
        self,
        what: str,
        operation: Callable[[CatalogTransaction], AnyValue],
        seen: Callable[[AnyValue], AnyValue] = _value,
    ) -> AnyValue:
        outcome = outcome_of(lambda: operation(self.first))
        self._done.append((what, operation, seen, outcome))
        if not self._is_quiet():
            self.second = None
        if self.second is not None:
            second = self.second
            same_outcome(what, outcome, outcome_of(lambda: operation(second)), seen)
        return outcome.get()
