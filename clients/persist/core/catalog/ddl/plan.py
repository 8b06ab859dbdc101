"""plan: statements become changes in a transaction, and what these mean for shards. All of them, or nothing.

Pure: times of collections are given, and nothing is asked. Source: collections: who leads; design documents 4 and 5.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any, Final, TypeAlias

from persist.core.catalog.ddl.described import Described, Frontiers, Session
from persist.core.catalog.ddl.effects import Effects, Executed
from persist.core.catalog.ddl.planning import altering, creating, deriving, dropping, growing, holding, namespaces
from persist.core.catalog.ddl.planning.context import COLLECTIONS, Planning
from persist.core.catalog.ddl.planning.hiding import hidings
from persist.core.catalog.ddl.statements import (
    Acknowledge,
    AddColumns,
    Adopt,
    AdvanceHold,
    CommentOn,
    CreateCursor,
    CreateDatabase,
    CreateHold,
    CreateIndex,
    CreateMaterializedView,
    CreateRole,
    CreateSchema,
    CreateSink,
    CreateSource,
    CreateTable,
    CreateView,
    Drop,
    Grant,
    Leave,
    QualifiedName,
    Rename,
    SetOwner,
    SetRetain,
    SetSystem,
    Statement,
)
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import UnknownObject
from persist.core.catalog.kinds import ROLE
from persist.core.catalog.objects import RoleKey
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import Id
from persist.core.time.holds import check_created_and_held
from persist.errors import InvalidArgument, UsageError

ENVIRONMENT: Final = "default"
SYSTEM: Final = Session()

Plans: TypeAlias = Callable[[Planning, Any], Executed]
"""Plans the statements of one class: which one, its place in the table says."""

Planned: TypeAlias = tuple[Effects, tuple[Executed, ...]]
"""What statements mean for shards, and what each came to."""

_GROUPS: Final[Mapping[type, Plans]] = {
    CreateDatabase: namespaces.create_database,
    CreateSchema: namespaces.create_schema,
    CreateRole: namespaces.create_role,
    SetSystem: namespaces.set_system,
    CreateTable: creating.create_table,
    CreateSource: creating.create_source,
    CreateSink: holding.create_sink,
    Adopt: creating.adopt,
    CreateView: deriving.create_view,
    CreateMaterializedView: deriving.create_materialized_view,
    CreateIndex: deriving.create_index,
    CreateCursor: holding.create_cursor,
    AdvanceHold: holding.advance,
    Acknowledge: holding.acknowledge,
    Rename: altering.rename,
    SetOwner: altering.set_owner,
    SetRetain: altering.set_retain,
    AddColumns: growing.add_columns,
    Grant: altering.grant,
    CommentOn: altering.comment_on,
    Drop: dropping.drop,
    Leave: dropping.leave,
}
_CREATES: Final = (
    CreateDatabase,
    CreateSchema,
    CreateRole,
    CreateTable,
    CreateSource,
    CreateSink,
    CreateView,
    CreateMaterializedView,
    CreateIndex,
)
"""What may stand before a CREATE HOLD in one transaction, if that is on it."""


def plan(
    tx: CatalogTransaction,
    statements: Sequence[Statement],
    session: Session,
    frontiers: Mapping[Id, Frontiers],
    now_ms: int,
    *,
    environment: str = ENVIRONMENT,
) -> Planned:
    """Put what statements do into a transaction of a catalog that was bootstrapped; audit events with it.

    ``frontiers``: of all that ``touched`` names, as they are; ``now_ms``: the wall clock. When it raises, the
    transaction is what it was. Raises UnknownObject, UniquenessViolation, PrivilegeMissing, DependentObjects,
    MultipleTimelines, NotReadable, HoldOverdue, ShardClosed, InvalidArgument, TypeNotSupported; OutOfSync (the catalog
    or the names changed: ask for frontiers again).
    """
    steps = planned_in_steps(tx, statements, session, frontiers, now_ms, environment=environment)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            planned: Planned = done.value
            return planned


def planned_in_steps(
    tx: CatalogTransaction,
    statements: Sequence[Statement],
    session: Session,
    frontiers: Mapping[Id, Frontiers],
    now_ms: int,
    *,
    environment: str = ENVIRONMENT,
) -> Generator[None, None, Planned]:
    """``plan``, which stops after each statement: a thousand take seconds.

    SUBTLE: who goes on looks first whether the snapshot of the transaction is what it was; else it closes this.
    """
    with _all_or_nothing(tx):
        it = _planning(tx, session, frontiers, now_ms, environment)
        executed: list[Executed] = []
        created: list[str] = []
        held: list[list[str]] = []
        for statement in statements:
            tx.next_op()
            if isinstance(statement, CreateHold):
                done, named = holding.create_hold(it, statement)
                if named:
                    held.append([str(id) for id in named])
            else:
                done = _group(statement)(it, statement)
                if isinstance(statement, _CREATES) and not done.notice:
                    created.append(done.name if done.id is None else str(done.id))
            executed.append(done)
            yield
        check_created_and_held(created, held)
        return replace(it.effects(), hides=hidings(it)), tuple(executed)


def plan_advances(
    tx: CatalogTransaction,
    requests: Sequence[tuple[AdvanceHold | Acknowledge, Session]],
    frontiers: Mapping[Id, Frontiers],
    now_ms: int,
    *,
    environment: str = ENVIRONMENT,
) -> tuple[Effects, tuple[Executed | UsageError, ...]]:
    """Many requests to move holds and cursors in one transaction, in order of arrival, each with its own outcome.

    One that is refused does nothing, and the others all they would have done without it. Raises OutOfSync.
    """
    with _all_or_nothing(tx):
        outcomes: list[Executed | UsageError] = []
        it = _planning(tx, SYSTEM, frontiers, now_ms, environment)
        for (session, is_advance), run in groupby(requests, lambda each: (each[1], isinstance(each[0], AdvanceHold))):
            asked = [request for request, _ in run]
            try:
                mine = it.of(session)
            except UsageError as refused:
                outcomes += [refused] * len(asked)
                continue
            if is_advance:
                outcomes += holding.advance_all(mine, [each for each in asked if isinstance(each, AdvanceHold)])
            else:
                outcomes += [_outcome(mine, each) for each in asked]
        return replace(it.effects(), hides=hidings(it)), tuple(outcomes)


def _outcome(it: Planning, request: Statement) -> Executed | UsageError:
    try:
        return _group(request)(it, request)
    except UsageError as refused:
        return refused


def touched(view: CatalogView, statements: Iterable[Statement], session: Session) -> tuple[Described, ...]:
    """The collections whose frontiers ``plan`` needs for these statements. Unknown names are left to ``plan``."""
    found: dict[Id, None] = {}
    for statement in statements:
        match statement:
            case CreateMaterializedView() | CreateCursor():
                found.update(_beneath(view, statement.reads, session))
            case CreateIndex(on=on) | CreateSink(on=on):
                found.update(_beneath(view, (on,), session))
            case CreateHold(objects=objects, all_of=of):
                found.update(_beneath(view, objects, session))
                found.update(_inside(view, of))
            case AdvanceHold() | Acknowledge():
                id = _moved(view, statement, session)
                if id is not None and view.is_held_by(id):
                    found.update((Id.parse(each), None) for each in view.hold(id).objects)
    return tuple(map(view.get, found))


def _moved(view: CatalogView, statement: AdvanceHold | Acknowledge, session: Session) -> Id | None:
    try:
        return view.find(holding.meant(view, statement), session)
    except UnknownObject:
        return None


def _beneath(view: CatalogView, names: Iterable[QualifiedName], session: Session) -> Iterator[tuple[Id, None]]:
    ids = [id for name in names if (id := view.find(name, session)) is not None]
    yield from ((id, None) for id in view.collections(ids))


def _inside(view: CatalogView, of: tuple[str, ...]) -> Iterator[tuple[Id, None]]:
    databases = [id for id, row in view.databases.items() if of[:1] == (row.name,)]
    for id, row in view.schemas.items():
        if row.database_id in databases and of[1:] in ((), (row.name,)):
            yield from ((each, None) for each in view.in_schema(id) if view.item(each).item_type in COLLECTIONS)


@contextmanager
def _all_or_nothing(tx: CatalogTransaction) -> Iterator[None]:
    tx.savepoint()
    try:
        yield
    except BaseException:
        tx.rollback()
        raise
    tx.release()


def _planning(
    tx: CatalogTransaction, session: Session, frontiers: Mapping[Id, Frontiers], now_ms: int, environment: str
) -> Planning:
    view = CatalogView.at(tx.snapshot).fork()
    view.apply(tx.batch().changes)
    it = Planning(tx, view, session, view.role(session.role), frontiers, now_ms, environment)
    tx.get(ROLE, RoleKey(it.role))
    return it


def _group(statement: Statement) -> Plans:
    found = _GROUPS.get(type(statement))
    if found is None:
        raise InvalidArgument("this is no statement that defines", got=type(statement).__name__)
    return found
