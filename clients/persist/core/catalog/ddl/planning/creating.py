"""CREATE TABLE and SOURCE; shards that exist become items, and cease to be."""

from collections.abc import Iterable
from itertools import count
from typing import Final

from persist.core.catalog import objects as o
from persist.core.catalog.ddl.described import DATABASE, SCHEMA, Described
from persist.core.catalog.ddl.effects import Executed
from persist.core.catalog.ddl.planning.context import Planning
from persist.core.catalog.ddl.planning.growing import follow_schema
from persist.core.catalog.ddl.resolve import check_columns, check_new_name
from persist.core.catalog.ddl.statements import Adopt, CreateSource, CreateTable, Export, QualifiedName
from persist.core.catalog.ddl.variables import default_retain
from persist.core.catalog.kept_settings import Own, own_key
from persist.core.catalog.kinds import SETTING, UNFINALIZED_SHARD
from persist.core.catalog.values import Id, ItemDetails, ItemOption, ObjectType, Retain
from persist.core.ids import ShardId
from persist.core.names import MODES, is_plain, new_shard
from persist.core.source.source_timeline import OwnTimeline, claims_epoch, source_timeline
from persist.core.time.timeline import (
    EPOCH_MILLISECONDS,
    CounterTimeline,
    ExternalTimeline,
    Timeline,
    timeline_of,
)
from persist.errors import InvalidArgument

BRINGS_TIMES: Final = frozenset({"cdcv2"})
"""Types of sources whose updates have times of their own."""
BROUGHT: Final = "E"
"""The text of the timeline of a source that brings its times: its id is not known before it is made."""
FIRST_ENVIRONMENT: Final = "default"
"""Names of shards are those of one location; only items of this environment begin with the shards that names have."""


def create_table(it: Planning, statement: CreateTable) -> Executed:
    """CREATE TABLE: a shard of its own, complete from the first time on."""
    tag, name = "CREATE TABLE", statement.name
    schema = it.place(name)
    if statement.if_not_exists and (there := it.taken(schema, name)) is not None:
        return skipped(tag, there)
    it.check_free(schema, name)
    check_columns(statement.schema.updates.names)
    if statement.mode not in MODES:
        raise InvalidArgument("a table has no such mode", hint=" or ".join(MODES), got=statement.mode[:80])
    timeline = timeline_of(statement.timeline)
    # What others write by themselves is theirs to give up.
    default = Retain() if statement.mode == "direct" else default_retain(it.view.variables, timeline)
    id = it.new_id()
    details = ItemDetails(
        timeline=str(timeline),
        schema=statement.schema.to_bytes(),
        retain=statement.retain or default,
        mode=statement.mode,
        multiset=statement.multiset,
    )
    shard = shard_of(it, id, schema, name.item, statement.mode, timeline)
    made = it.new_item(name, schema, ObjectType.TABLE, details, sql=statement.sql, id=id, shard=shard)
    it.begin_new(id, timeline, details.retain)
    return Executed(tag, id, str(made.name))


def create_source(it: Planning, statement: CreateSource) -> Executed:
    """CREATE SOURCE: the source, and a subsource in its schema for each table it feeds.

    Of the progress shard of a source that is an item, under whatever name: that is brought up to date.
    """
    tag, name = "CREATE SOURCE", statement.name
    known = None if statement.remap is None else it.view.owner_of(statement.remap)
    if known is not None and it.view.get(known).remap == statement.remap:
        return _up_to_date(it, known, statement.exports)
    schema = it.place(name)
    if statement.if_not_exists and (there := it.taken(schema, name)) is not None:
        return skipped(tag, there)
    it.check_free(schema, name)
    id = it.new_id()
    own, timeline = timeline_of_source(statement, id)
    retain = statement.retain or default_retain(it.view.variables, timeline)
    details = ItemDetails(
        timeline=str(timeline),
        retain=retain,
        claims_epoch=claims_epoch(own, timeline),
        options=options(*statement.options, ("type", statement.type)),
    )
    check_unowned(it, statement.remap)
    made = it.new_item(name, schema, ObjectType.SOURCE, details, sql=statement.sql, id=id, remap=statement.remap)
    for export in statement.exports:
        _create_subsource(it, made, schema, export, timeline, retain)
    return Executed(tag, id, str(made.name))


def _up_to_date(it: Planning, id: Id, exports: Iterable[Export]) -> Executed:
    """What a source feeds by now has names, too, by its owner; and what it fed already has the columns it got since."""
    source = it.owned(it.view.name_of(id), ObjectType.SOURCE)
    item = it.view.item(id)
    timeline = source.timeline
    assert timeline is not None
    told = []
    for export in exports:
        owner = None if export.shard is None else it.view.owner_of(export.shard)
        fed = None if owner is None else it.view.get(owner)
        if fed is None or fed.fed_by != id:
            _create_subsource(it, source, item.schema_id, export, timeline, item.details.retain or Retain())
            told.append(f"{export.name} is new")
        elif follow_schema(it, fed, export.schema):
            told.append(f"{fed.name.item} has more columns")
    return Executed("CREATE SOURCE", id, str(source.name), ", ".join(told))


def _create_subsource(
    it: Planning, source: Described, schema: Id, export: Export, timeline: Timeline, retain: Retain
) -> None:
    name = QualifiedName(check_new_name(export.name), source.name.schema, source.name.database)
    it.check_free(schema, name)
    check_unowned(it, export.shard)
    id = it.new_id()
    details = ItemDetails(fed_by=source.id, schema=export.schema.to_bytes(), retain=retain, mode="direct")
    shard = export.shard or shard_of(it, id, schema, export.name, "direct", timeline)
    it.new_item(name, schema, ObjectType.SUBSOURCE, details, id=id, shard=shard)
    if export.shard is None:
        it.begin_new(id, timeline, retain, claims_epoch=source.claims_epoch)


def timeline_of_source(statement: CreateSource, id: Id) -> tuple[OwnTimeline, Timeline]:
    """What a source's times are by themselves, and its timeline under its options. Raises InvalidArgument."""
    given = dict(statement.options)
    claim = given.get("epoch_ms_timeline", "true" if statement.claims_epoch else None)
    own: OwnTimeline = EPOCH_MILLISECONDS
    if statement.type in BRINGS_TIMES or statement.timeline == BROUGHT or statement.claims_epoch:
        own = ExternalTimeline(str(id), str(statement.name))
    named = given.get("timeline")
    if statement.timeline.startswith(("C.", "E.")):
        said = timeline_of(statement.timeline)
        own = said if isinstance(said, CounterTimeline | ExternalTimeline) else own
    elif statement.timeline not in (BROUGHT, str(EPOCH_MILLISECONDS)):
        named = statement.timeline.removeprefix("U.")
    epoch = True if claim is not None and claim.lower() == "true" else claim
    return own, source_timeline(own, timeline=named, epoch_ms_timeline=epoch)


def adopt(it: Planning, statement: Adopt) -> Executed:
    """A shard that exists becomes a table, of which everything is retained until a statement says otherwise."""
    name = statement.name
    schema = it.place(name)
    it.check_free(schema, name)
    check_unowned(it, statement.shard)
    if statement.mode not in MODES:
        raise InvalidArgument("a table has no such mode", hint=" or ".join(MODES), got=statement.mode[:80])
    details = ItemDetails(
        timeline=str(timeline_of(statement.timeline)),
        schema=statement.schema.to_bytes(),
        retain=Retain(),
        mode=statement.mode,
    )
    made = it.new_item(name, schema, ObjectType.TABLE, details, shard=statement.shard)
    # Of several shards of the name this one is meant.
    del it.named[made.id]
    return Executed("ADOPT", made.id, str(made.name))


def shard_of(it: Planning, id: Id, schema: Id, name: str, mode: str, timeline: Timeline) -> ShardId:
    """The shard of a new collection. The first one of a bare name is the one that this name has without a catalog.

    What was dropped or left once, or is another item's, is never taken again: then, as in every other schema and
    environment, the shard follows from the id, which nothing else ever has.
    """
    row = it.view.schemas[schema]
    database = None if row.database_id is None else it.view.databases[row.database_id].name
    # A name that looks like another is none of a new shard's. What SQL quotes, or a source feeds, may be called so.
    if (it.environment, database, row.name) == (FIRST_ENVIRONMENT, DATABASE, SCHEMA) and is_plain(name):
        first = new_shard(name, mode, str(timeline))
        if it.view.owner_of(first) is None and it.tx.get(SETTING, gone_key(first)) is None:
            it.derived[first] = None
            return first
    return own_shard(it, id)


def own_shard(it: Planning, id: Id) -> ShardId:
    """The shard that follows from an id: the first that is not set aside, as one is that a statement left which failed,
    and that has other columns.
    """
    for tries in count():
        shard = ShardId.named("persist.collection", it.environment, str(id), *([str(tries)] if tries else []))
        if it.tx.get(SETTING, gone_key(shard)) is None:
            break
    it.derived[shard] = None
    return shard


def gone_key(shard: ShardId) -> o.SettingKey:
    """The setting that says that a shard was an item's once, and is not to be another one's."""
    return own_key(Own.GONE, shard)


def check_unowned(it: Planning, shard: ShardId | None) -> None:
    """Raises InvalidArgument when a shard is an item's already, or was one's and is to be deleted."""
    if shard is None:
        return
    owner = it.view.owner_of(shard)
    if owner is not None:
        raise InvalidArgument(
            "another item has this shard", hint="one shard is one item", shard=shard, name=str(it.view.name_of(owner))
        )
    if it.tx.get(UNFINALIZED_SHARD, o.UnfinalizedShardKey(str(shard))) is not None:
        raise InvalidArgument("this shard was dropped and is being deleted", hint="take another one", shard=shard)


def options(*given: tuple[str, str]) -> tuple[ItemOption, ...]:
    """Options as items have them: each once, by name."""
    return tuple(ItemOption(name, value) for name, value in sorted(dict(given).items()))


def skipped(tag: str, there: Described) -> Executed:
    """What IF NOT EXISTS says of what is there."""
    return Executed(tag, there.id, str(there.name), f"{there.kind.words} {there.name} exists, skipping")
