"""CREATE HOLD, CURSOR and SINK, ALTER HOLD ADVANCE, ACKNOWLEDGE: what keeps collections readable.

What may be held and which times is decided by ``core.time.holds``. Source: design document 5; collections: the hold,
cursors.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from persist.core.catalog import objects as o
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.ddl.effects import Executed, Held
from persist.core.catalog.ddl.planning.context import COLLECTIONS, RELATIONS, Planning
from persist.core.catalog.ddl.planning.creating import options, skipped
from persist.core.catalog.ddl.planning.deriving import context_of, inputs_of, may_use_clusters
from persist.core.catalog.ddl.resolve import databases
from persist.core.catalog.ddl.statements import (
    Acknowledge,
    AdvanceHold,
    CreateCursor,
    CreateHold,
    CreateSink,
    QualifiedName,
)
from persist.core.catalog.ddl.targets import check_target
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import UnknownObject
from persist.core.catalog.kinds import CURSOR, HOLD
from persist.core.catalog.values import Id, ItemDetails, ObjectType, Space
from persist.core.frontier import Antichain
from persist.core.time.hold import NamedHold, lag_text
from persist.core.time.holds import Advance, Holds
from persist.errors import InvalidArgument, NotReadable, UsageError

CLUSTERED = frozenset({ObjectType.INDEX, ObjectType.MATERIALIZED_VIEW})


def create_hold(it: Planning, statement: CreateHold) -> tuple[Executed, tuple[Id, ...]]:
    """CREATE HOLD, and the ids of what it names: before sources and schemas are taken for what is in them."""
    tag, name = "CREATE HOLD", statement.name
    schema = it.place(name)
    if statement.if_not_exists and (there := it.taken(schema, name)) is not None:
        return skipped(tag, there), ()
    it.check_free(schema, name)
    named = tuple(map(it.item, statement.objects)) or _all_of(it, statement.all_of)
    for each in named:
        it.may_read(each)
    if any(each.kind in CLUSTERED for each in named):
        may_use_clusters(it)
    objects = held_of(it, named)
    for object in objects:
        at = it.reaches.get(object) if statement.at is None else statement.at
        if at is not None:
            _begin_earlier(it, object, at)
    id = it.new_id()
    holds = _holds(it, objects).create(
        id=str(id),
        name=_new_name(it, schema, name),
        objects=[str(each) for each in objects],
        now_ms=it.now_ms,
        at=statement.at,
        max_lag=statement.max_lag,
        on_lag=statement.on_lag,
    )
    hold = holds.get(_new_name(it, schema, name))
    details = ItemDetails(depends_on=objects)
    made = it.new_item(name, schema, ObjectType.HOLD, details, sql=statement.sql, id=id)
    _write(it, id, hold)
    earlier = statement.at is None and holds.least_valid(map(str, objects)).elements < (hold.at,)
    most = lag_text(hold.timeline, hold.max_lag)
    notice = (
        f"its MAX LAG of {most} reaches no further back: earlier times that are kept are not held" if earlier else ""
    )
    return Executed(tag, id, str(made.name), notice), tuple(each.id for each in named)


def create_cursor(it: Planning, statement: CreateCursor) -> Executed:
    """CREATE CURSOR: a position in the changes of a query, with a hold on all that it reads."""
    tag, name = "CREATE CURSOR", statement.name
    schema = it.place(name)
    if statement.if_not_exists and (there := it.taken(schema, name)) is not None:
        return skipped(tag, there)
    it.check_free(schema, name)
    reads = it.read_by_query(statement.reads, statement.meant)
    context_of(it, reads)
    objects = inputs_of(it, reads)
    if not objects:
        raise InvalidArgument("a cursor follows what is stored", hint="name a table, source or materialized view")
    if statement.at is not None:
        for object in objects:
            _begin_earlier(it, object, statement.at)
    id = it.new_id()
    full = _new_name(it, schema, name)
    hold = (
        _holds(it, objects)
        .create(
            id=str(id),
            name=full,
            objects=[str(each) for each in objects],
            now_ms=it.now_ms,
            at=statement.at,
            max_lag=statement.max_lag,
            on_lag=statement.on_lag,
        )
        .get(full)
    )
    details = ItemDetails(
        depends_on=tuple(each.id for each in reads), schema=statement.schema.to_bytes(), query=statement.query
    )
    it.new_item(name, schema, ObjectType.CURSOR, details, sql=statement.sql, id=id)
    it.put(CURSOR, o.CursorKey(id), o.Cursor())
    _write(it, id, hold)
    return Executed(tag, id, full)


def create_sink(it: Planning, statement: CreateSink) -> Executed:
    """CREATE SINK: a position in the changes of an item, as a cursor's, and where they are to be delivered.

    Its hold may fall behind as far as any hold may: it is made before there is a process that delivers it.
    """
    tag, name = "CREATE SINK", statement.name
    schema = it.place(name)
    if statement.if_not_exists and (there := it.taken(schema, name)) is not None:
        return skipped(tag, there)
    it.check_free(schema, name)
    check_target(statement.type, dict(statement.options))
    on = it.readable(statement.on)
    if on.kind not in RELATIONS or on.data is None:
        raise InvalidArgument(
            "a sink is fed from what is stored",
            hint="name a table, what a source feeds, or a materialized view",
            kind=on.kind.words,
            name=str(on.name),
        )
    timeline = context_of(it, (on,))
    id = it.new_id()
    full = _new_name(it, schema, name)
    holds = _holds(it, [on.id])
    lag = holds.rules.lag_most(timeline)
    hold = holds.create(id=str(id), name=full, objects=[str(on.id)], now_ms=it.now_ms, max_lag=lag).get(full)
    details = ItemDetails(depends_on=(on.id,), options=options(*statement.options, ("type", statement.type)))
    it.new_item(name, schema, ObjectType.SINK, details, sql=statement.sql, id=id)
    it.put(CURSOR, o.CursorKey(id), o.Cursor())
    _write(it, id, hold)
    return Executed(tag, id, full)


def advance(it: Planning, statement: AdvanceHold) -> Executed:
    """ALTER HOLD ADVANCE [TO time]."""
    found = it.owned(statement.name, ObjectType.HOLD)
    before = it.view.hold(found.id)
    hold = _of(it, before).advance(before.name, to=statement.to, now_ms=it.now_ms).get(before.name)
    _write(it, found.id, hold)
    it.altered(ObjectType.HOLD, found.id, before.name, "at", before.at, hold.at)
    return Executed("ALTER HOLD", found.id, before.name)


def meant(view: CatalogView, statement: AdvanceHold | Acknowledge) -> QualifiedName:
    """The name of what a statement moves, as it is by now. Raises UnknownObject: the cursor that it means was dropped.

    Another one of its name is not moved: its subscribers would miss what comes before.
    """
    if isinstance(statement, AdvanceHold) or not statement.id:
        return statement.name
    try:
        return view.name_of(Id.parse(statement.id))
    except UnknownObject:
        raise UnknownObject(
            "this cursor was dropped", hint="open the one that has its name now, if any", name=statement.name
        ) from None


def acknowledge(it: Planning, statement: Acknowledge) -> Executed:
    """ACKNOWLEDGE: times before ``to`` were taken over. The hold goes to the last of them, and never back."""
    tag = "ACKNOWLEDGE"
    name = meant(it.view, statement)
    is_sink = it.item(name).kind is ObjectType.SINK
    found = it.owned(name, ObjectType.SINK if is_sink else ObjectType.CURSOR)
    hold = it.view.hold(found.id)
    hold.check_active()
    known = it.view.acknowledged(found.id)
    _check_delivered(it, hold, statement.to)
    if known is not None and statement.to <= known:
        return Executed(tag, found.id, hold.name, f"acknowledged up to {known} already")
    to = max(hold.at, statement.to - 1)
    moved = _of(it, hold).advance(hold.name, to=to, now_ms=it.now_ms).get(hold.name)
    it.put(CURSOR, o.CursorKey(found.id), o.Cursor(statement.to))
    _write(it, found.id, moved)
    it.altered(found.kind, found.id, hold.name, "acknowledged", known, statement.to)
    return Executed(tag, found.id, hold.name)


def advance_all(it: Planning, requests: Sequence[AdvanceHold]) -> tuple[Executed | UsageError, ...]:
    """Several at once, in order of arrival, each with its own outcome: of a hold what it comes to is written once."""
    outcomes: dict[int, Executed | UsageError] = {}
    found: dict[int, tuple[Described, NamedHold]] = {}
    for number, request in enumerate(requests):
        try:
            item = it.owned(request.name, ObjectType.HOLD)
            hold = it.view.hold(item.id)
            it.implied(map(Id.parse, hold.objects))
            found[number] = item, hold
        except UsageError as refused:
            outcomes[number] = refused
    objects = {Id.parse(id) for _, hold in found.values() for id in hold.objects}
    asked = [Advance(hold.name, requests[number].to) for number, (_, hold) in found.items()]
    moved = [item.id for item, _ in found.values()]
    holds, told = _holds(it, objects, *moved).advance_all(asked, now_ms=it.now_ms)
    for number, outcome in zip(found, told, strict=True):
        item, before = found[number]
        is_moved = isinstance(outcome, NamedHold)
        outcomes[number] = Executed("ALTER HOLD", item.id, before.name) if is_moved else outcome  # type: ignore[assignment]  # it is an error otherwise
    for item, before in {item.id: (item, before) for item, before in found.values()}.values():
        after = holds.get(before.name)
        if after != before:
            _write(it, item.id, after)
            it.altered(ObjectType.HOLD, item.id, before.name, "at", before.at, after.at)
    return tuple(outcomes[number] for number in range(len(requests)))


def held_of(it: Planning, named: Iterable[Described]) -> tuple[Id, ...]:
    """What a hold on these is on, each once, in their order: a source is what it feeds. Raises InvalidArgument."""
    found: dict[Id, None] = {}
    for each in named:
        fed = it.view.collections([each.id]) if each.kind is ObjectType.SOURCE else (each.id,)
        if not fed:
            raise InvalidArgument("this source feeds nothing that could be held", name=str(each.name))
        found.update(dict.fromkeys(fed))
    return tuple(found)


def _all_of(it: Planning, of: tuple[str, ...]) -> tuple[Described, ...]:
    """Every collection of users in a schema, or a database."""
    if len(of) == 1:
        database = it.view.database(of[0])
        schemas = [id for id, row in it.view.schemas.items() if row.database_id == database]
    elif len(of) == 2:
        schemas = [it.view.schema(of[1], [of[0] or databases(it.session)[0]])]
    else:
        raise InvalidArgument("a hold is on something", hint="name objects, a schema or a database")
    # Whatever comes to be in there meanwhile is to be held, too.
    ids = [id for schema in sorted(schemas) for id in it.view.in_schema(schema) if id.space is Space.USER]
    found = tuple(each for each in map(it.view.get, ids) if each.kind in COLLECTIONS)
    if not found:
        raise InvalidArgument("there is nothing that can be held", hint="name objects", of=".".join(of))
    return found


def _begin_earlier(it: Planning, id: Id, at: int) -> None:
    """What this transaction makes begins at the time of its hold, if all that it is made from is readable there."""
    if (born := it.born.get(id)) is not None and at < born.at:
        it.born[id] = replace(born, at=at)
        it.fresh[id] = Antichain.of(at)
    if id not in it.begins:
        return
    inputs = it.inputs[id]
    holds = it.view.least_holds(it.implied(inputs), among=inputs)
    late = {each: since for each in inputs if not (since := holds.since_of(str(each))).less_equal_time(at)}
    if late:
        raise NotReadable(
            "what it is made from does not reach back to this time",
            hint="hold from since on",
            at=at,
            since=max(since.elements for since in late.values()),
            objects=", ".join(str(it.view.name_of(each)) for each in late),
        )
    it.begins[id] = at
    it.fresh[id] = Antichain.of(at)


def _check_delivered(it: Planning, hold: NamedHold, to: int) -> None:
    uppers = [known.upper for id in hold.objects if (known := it.frontiers.get(Id.parse(id))) is not None]
    least = min((upper.elements[0] for upper in uppers if upper.elements), default=None)
    if to < 1 or (least is not None and to > least):
        raise InvalidArgument(
            "nothing was delivered up to there", hint="acknowledge a position that FETCH gave", got=to, upper=least
        )


def _holds(it: Planning, objects: Iterable[Id], *moved: Id) -> Holds:
    """What says how far back these are readable, with holds that are to be ``moved``."""
    wanted = tuple(objects)
    holds = it.view.least_holds(it.implied(_with_since(it, wanted)), wanted, moved)
    uppers = {str(id): it.frontiers[id].upper for id in wanted if id in it.frontiers}
    return replace(holds, uppers=uppers)


def _with_since(it: Planning, ids: Iterable[Id]) -> list[Id]:
    # What has none is refused by the rules of holds, which say why.
    return [id for id in ids if id.space is Space.USER and it.view.item(id).item_type in COLLECTIONS]


def _of(it: Planning, hold: NamedHold) -> Holds:
    return _holds(it, map(Id.parse, hold.objects), Id.parse(hold.id))


def _new_name(it: Planning, schema: Id, name: QualifiedName) -> str:
    row = it.view.schemas[schema]
    database = None if row.database_id is None else it.view.databases[row.database_id].name
    return str(QualifiedName(name.item, row.name, database))


def _write(it: Planning, id: Id, hold: NamedHold) -> None:
    it.put(HOLD, o.HoldKey(id), row_of(hold))
    objects = tuple(map(Id.parse, hold.objects))
    it.held[id] = Held(id, objects, hold.at)


def row_of(hold: NamedHold) -> o.Hold:
    """A hold as the catalog keeps it, under the id of its item."""
    return o.Hold(
        hold.at,
        hold.max_lag,
        tuple(map(Id.parse, hold.objects)),
        str(hold.timeline),
        hold.on_lag,
        hold.deadline_ms,
        hold.last_ack_ms,
        hold.auto_advanced_count,
        hold.last_auto_advance_ms,
        hold.overdue_since_ms,
    )
