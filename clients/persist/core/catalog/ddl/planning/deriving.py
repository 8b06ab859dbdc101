"""CREATE VIEW, MATERIALIZED VIEW and INDEX: what is defined by other items.

Here what is read together is checked to be of one timeline. Source: design document 4; catalog-semantics.md 6.2.
"""

from functools import reduce

from persist.core.catalog import objects as o
from persist.core.catalog.ddl import privileges as p
from persist.core.catalog.ddl.bootstrap import CLUSTER_NAME
from persist.core.catalog.ddl.described import RUNNER, Described
from persist.core.catalog.ddl.effects import Executed
from persist.core.catalog.ddl.planning.context import Planning
from persist.core.catalog.ddl.planning.creating import options, own_shard, skipped
from persist.core.catalog.ddl.resolve import check_columns
from persist.core.catalog.ddl.statements import CreateIndex, CreateMaterializedView, CreateView, QualifiedName, quoted
from persist.core.catalog.ddl.variables import default_retain
from persist.core.catalog.kinds import ITEM
from persist.core.catalog.values import Id, ItemDetails, ObjectType, Retain
from persist.core.data.schema import Schema
from persist.core.frontier import MINIMUM, Antichain
from persist.core.time.collections import timeline_context, timeline_read_in
from persist.core.time.errors import DependentObjects
from persist.core.time.timeline import EPOCH_MILLISECONDS, Timeline
from persist.errors import InvalidArgument, ShardClosed

INDEXABLE = frozenset({ObjectType.TABLE, ObjectType.SUBSOURCE, ObjectType.MATERIALIZED_VIEW})


def create_view(it: Planning, statement: CreateView) -> Executed:
    """CREATE [OR REPLACE] VIEW: a query with a name."""
    tag, name = "CREATE VIEW", statement.name
    schema = it.place(name)
    there = it.taken(schema, name)
    if there is not None and statement.if_not_exists:
        return skipped(tag, there)
    if there is None or not statement.replace:
        it.check_free(schema, name)
    check_columns(statement.schema.updates.names)
    reads = it.read_by_query(statement.reads, statement.meant)
    context_of(it, reads)
    details = ItemDetails(
        depends_on=tuple(each.id for each in reads),
        schema=statement.schema.to_bytes(),
        asks_time=statement.asks_time,
        query=statement.query,
    )
    if there is not None:
        return _replace(it, tag, it.owned(name, ObjectType.VIEW), details, statement.sql)
    made = it.new_item(name, schema, ObjectType.VIEW, details, sql=statement.sql)
    return Executed(tag, made.id, str(made.name))


def _replace(it: Planning, tag: str, old: Described, details: ItemDetails, sql: str) -> Executed:
    """Another query under the same name. What others were made from stays what they were made for."""
    beneath = it.view.dependants(old.id)
    if beneath:
        names = ", ".join(str(it.view.name_of(each)) for each in beneath)
        raise DependentObjects(
            "other objects depend on this", hint="drop them first, or make a view of another name", ids=names
        )
    if old.id in details.depends_on:
        raise InvalidArgument("a view does not read itself", hint="make a view of another name", name=str(old.name))
    before = it.view.item(old.id)
    item = o.Item(
        before.schema_id,
        before.name,
        before.item_type,
        sql,
        before.owner,
        before.acls,
        before.oid,
        global_id=before.global_id,
        details=details,
    )
    it.counted(ObjectType.VIEW, old.id)
    it.put(ITEM, o.ItemKey(old.id), item)
    it.altered(ObjectType.VIEW, old.id, str(old.name), "query", old.query, details.query)
    return Executed(tag, old.id, str(old.name))


def create_materialized_view(it: Planning, statement: CreateMaterializedView) -> Executed:
    """CREATE MATERIALIZED VIEW: a query whose rows are kept. Where it begins: see ``begin``."""
    tag, name = "CREATE MATERIALIZED VIEW", statement.name
    schema = it.place(name)
    if statement.if_not_exists and (there := it.taken(schema, name)) is not None:
        return skipped(tag, there)
    it.check_free(schema, name)
    check_columns(statement.schema.updates.names)
    reads = it.read_by_query(statement.reads, statement.meant)
    may_use_clusters(it)
    timeline = context_of(it, reads)
    id = it.new_id()
    details = ItemDetails(
        depends_on=tuple(each.id for each in reads),
        schema=statement.schema.to_bytes(),
        retain=statement.retain or default_retain(it.view.variables, timeline),
        refresh=statement.refresh,
        mode="view",
        asks_time=statement.asks_time,
        query=statement.query,
        options=options((RUNNER, statement.runner)) if statement.runner else (),
    )
    made = it.new_item(
        name,
        schema,
        ObjectType.MATERIALIZED_VIEW,
        details,
        sql=statement.sql,
        id=id,
        shard=own_shard(it, id),
    )
    begin(it, id, inputs_of(it, reads), details.retain or Retain(), timeline)
    return Executed(tag, id, str(made.name))


def create_index(it: Planning, statement: CreateIndex) -> Executed:
    """CREATE INDEX, in the schema of what it is on: the same rows, by other columns."""
    tag = "CREATE INDEX"
    on = it.readable(statement.on)
    if on.kind not in INDEXABLE or on.schema is None:
        hint = "tables, subsources and materialized views can"
        raise InvalidArgument("this cannot be indexed", hint=hint, kind=on.kind.words, name=str(on.name))
    p.check_owns(it.view, it.role, on.kind, str(on.name), on)
    may_use_clusters(it)
    name = QualifiedName(statement.name, on.name.schema, on.name.database)
    schema = it.place(name)
    if statement.if_not_exists and (there := it.taken(schema, name)) is not None:
        return skipped(tag, there)
    it.check_free(schema, name)
    timeline = context_of(it, (on,))
    id = it.new_id()
    details = ItemDetails(
        depends_on=(on.id,),
        schema=keyed_by(on.schema, statement.columns).to_bytes(),
        retain=statement.retain or default_retain(it.view.variables, timeline),
        mode="view",
        options=options(
            ("columns", ", ".join(map(quoted, statement.columns))), ("key_columns", str(len(statement.columns)))
        ),
    )
    made = it.new_item(name, schema, ObjectType.INDEX, details, sql=statement.sql, id=id, shard=own_shard(it, id))
    begin(it, id, (on.id,), details.retain or Retain(), timeline)
    return Executed(tag, id, str(made.name))


def keyed_by(schema: Schema, columns: tuple[str, ...]) -> Schema:
    """The schema of the same rows with these columns first in the key, before those that were the key.

    Raises InvalidArgument (no columns, unknown or twice), TypeNotSupported (a column that cannot be in a key).
    """
    known = {field.name: field for field in (*schema.key, *schema.val)}
    wrong = [name for name in columns if name not in known or columns.count(name) > 1]
    if wrong or not columns:
        hint = f"of {', '.join(known)}"
        raise InvalidArgument("an index is by columns, each once", hint=hint, column=(wrong or [""])[0][:80])
    keys = dict.fromkeys((*columns, *schema.key.names))
    return Schema({name: known[name] for name in keys}, {n: f for n, f in known.items() if n not in keys})


def context_of(it: Planning, reads: tuple[Described, ...]) -> Timeline:
    """The timeline of what is read together. Raises MultipleTimelines, which names each, and how it came in."""
    context = timeline_context(it.view.timed(), [str(each.id) for each in reads])
    return timeline_read_in(context) or EPOCH_MILLISECONDS


def inputs_of(it: Planning, reads: tuple[Described, ...]) -> tuple[Id, ...]:
    """The collections that are read for it. Raises InvalidArgument when it would read what is not stored."""
    for each in reads:
        system = [id for id in _leaves(it, each.id) if it.view.get(id).data is None]
        if system:
            names = ", ".join(str(it.view.name_of(id)) for id in system)
            raise InvalidArgument("what the system computes has no history", hint="read it in a view", names=names)
    return it.view.collections(each.id for each in reads)


def begin(it: Planning, id: Id, inputs: tuple[Id, ...], retain: Retain, timeline: Timeline) -> None:
    """A collection that is made from others begins where all can be read: as far back as it retains itself, no further.

    Everything that its inputs keep it has if the same transaction holds it.
    """
    it.inputs[id] = inputs
    since = it.view.least_holds(it.implied(inputs), among=inputs).least_valid(map(str, inputs))
    if since.time is None:
        raise ShardClosed("something that it reads is closed for reading", name=str(it.view.name_of(id)))
    it.reaches[id] = since.time
    begins = max(since.time, _retained(it, inputs, retain, timeline))
    it.fresh[id] = Antichain.of(begins)
    it.begins[id] = begins


def _retained(it: Planning, inputs: tuple[Id, ...], retain: Retain, timeline: Timeline) -> int:
    """From when on its policy would keep it, were it complete as far as its inputs are by now."""
    uppers = [it.frontiers[id].upper if id in it.frontiers else MINIMUM for id in inputs]
    complete = reduce(Antichain.meet, uppers, Antichain(())).time
    if retain.by is None or complete is None:
        return 0
    if timeline.has_clock:
        complete = min(complete, it.now_ms + 1)
    return max(0, complete - max(retain.by, 1))


def may_use_clusters(it: Planning) -> None:
    """Raises PrivilegeMissing unless the role may USE the cluster that computes views and indexes."""
    for cluster in it.view.clusters.values():
        if cluster.name != CLUSTER_NAME:
            continue
        p.check_may(it.view, it.role, "U", ObjectType.CLUSTER, cluster.name, cluster)


def _leaves(it: Planning, root: Id) -> list[Id]:
    found, waiting, seen = [], [root], set[Id]()
    while waiting:
        each = it.view.get(waiting.pop())
        if each.id in seen:
            continue
        seen.add(each.id)
        if each.kind is ObjectType.VIEW:
            waiting += each.depends_on
        elif each.kind is not ObjectType.SOURCE:
            found.append(each.id)
    return found
