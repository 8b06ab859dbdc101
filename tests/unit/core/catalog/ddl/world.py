"""An environment in memory: statements are planned and committed as its leader does, without shards."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from persist.core.catalog.ddl.bootstrap import bootstrap
from persist.core.catalog.ddl.described import Described, Frontiers, Session
from persist.core.catalog.ddl.effects import Effects, Executed
from persist.core.catalog.ddl.plan import plan, plan_advances, touched
from persist.core.catalog.ddl.statements import (
    Acknowledge,
    AdvanceHold,
    CreateHold,
    CreateIndex,
    CreateMaterializedView,
    CreateSource,
    CreateTable,
    CreateView,
    Drop,
    Export,
    QualifiedName,
    Statement,
)
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.kinds import AUDIT_LOG, KINDS
from persist.core.catalog.objects import AuditLogKey
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import Id, ObjectType
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain
from persist.core.time.hold import NamedHold
from persist.errors import UsageError
from persist.wire.catalog.rows import CODEC

ROWS = Schema({"k": pa.int64()}, {"v": pa.string()})
ME = Session()
SINCE, UPPER = 10, 20


def name(text: str) -> QualifiedName:
    """The name that a dotted text is."""
    return QualifiedName(*reversed(text.split(".")))


def table(text: str, timeline: str = "M", **options: object) -> CreateTable:
    return CreateTable(name(text), ROWS, timeline, **options)  # type: ignore[arg-type]


def source(text: str, *feeds: str, type: str = "kafka", timeline: str = "M", **options: object) -> CreateSource:
    exports = tuple(Export(each, ROWS) for each in feeds)
    return CreateSource(name(text), type, (), exports, timeline, **options)  # type: ignore[arg-type]


def view(text: str, *reads: str, **options: object) -> CreateView:
    return CreateView(name(text), f"SELECT {reads}", tuple(map(name, reads)), ROWS, **options)  # type: ignore[arg-type]


def materialized(text: str, *reads: str) -> CreateMaterializedView:
    return CreateMaterializedView(name(text), f"SELECT {reads}", tuple(map(name, reads)), ROWS)


def index(text: str, on: str) -> CreateIndex:
    return CreateIndex(text, name(on), ("v",))


def hold(text: str, *on: str, **options: object) -> CreateHold:
    return CreateHold(name(text), tuple(map(name, on)), **options)  # type: ignore[arg-type]


def drop(kind: ObjectType, *names: str, **options: object) -> Drop:
    return Drop(kind, tuple(map(name, names)), **options)  # type: ignore[arg-type]


@dataclass
class World:
    """What the catalog holds, the audit events in order, and the frontiers of collections that are not as usual."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    events: list[AuditLogKey] = field(default_factory=list)
    times: dict[str, Frontiers] = field(default_factory=dict)
    now_ms: int = 1_000
    ts: int = 0
    environment: str = "default"

    def __post_init__(self) -> None:
        tx = CatalogTransaction(self.snapshot)
        bootstrap(tx)
        self.commit(tx)

    @property
    def view(self) -> CatalogView:
        return CatalogView.at(self.snapshot)

    def frontiers(self, *statements: Statement, session: Session = ME) -> Mapping[Id, Frontiers]:
        usual = Frontiers(Antichain.of(SINCE), Antichain.of(UPPER))
        found = touched(self.view, statements, session)
        return {each.id: self.times.get(str(each.name), usual) for each in found}

    def plan(
        self, *statements: Statement, session: Session = ME
    ) -> tuple[CatalogTransaction, Effects, tuple[Executed, ...]]:
        """Planned, and not committed."""
        tx = CatalogTransaction(self.snapshot)
        frontiers = self.frontiers(*statements, session=session)
        return (tx, *plan(tx, statements, session, frontiers, self.now_ms, environment=self.environment))

    def run(self, *statements: Statement, session: Session = ME) -> tuple[Effects, tuple[Executed, ...]]:
        """Planned and committed."""
        tx, effects, executed = self.plan(*statements, session=session)
        self.commit(tx)
        return effects, executed

    def advance(
        self, *requests: tuple[AdvanceHold | Acknowledge, Session]
    ) -> tuple[Effects, tuple[Executed | UsageError, ...]]:
        """Several requests in one transaction, each with its own outcome."""
        tx = CatalogTransaction(self.snapshot)
        frontiers = self.frontiers(*(request for request, _ in requests))
        told = plan_advances(tx, requests, frontiers, self.now_ms, environment=self.environment)
        self.commit(tx)
        return told

    def commit(self, tx: CatalogTransaction) -> None:
        self.ts += 1
        batch = tx.batch()
        self.events += [change.key for change in batch.changes if change.kind is AUDIT_LOG]
        self.snapshot.apply(CODEC, batch.rows(CODEC, self.ts))

    def get(self, text: str) -> Described:
        return self.view.resolve(name(text), ME)

    def hold(self, text: str) -> NamedHold:
        return self.view.hold(self.get(text).id)

    def names(self, kind: ObjectType) -> list[str]:
        return [str(each.name) for each in self.view.items(kind) if each.id.space.value == "u"]

    def everything(self) -> dict[str, dict[object, object]]:
        """All objects, by kind."""
        return {kind.tag: dict(self.snapshot.objects(kind)) for kind in KINDS if not kind.append_only}

    def at(self, text: str, since: int | None = SINCE, upper: int | None = UPPER) -> None:
        """From now on a collection has this since and upper; None: closed."""
        closed = Antichain(())
        self.times[str(self.get(text).name)] = Frontiers(
            closed if since is None else Antichain.of(since), closed if upper is None else Antichain.of(upper)
        )
