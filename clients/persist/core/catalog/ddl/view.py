"""CatalogView: what is in a catalog, by name and by id, with what depends on what. Kept up change by change.

Items are described when they are asked for, and once. Source: collections: names; catalog-semantics.md section 6.2.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, Final, Protocol, Self, TypeVar

from persist.core.catalog import objects as o
from persist.core.catalog.ddl.described import Described, Session
from persist.core.catalog.ddl.many import Many, Ordered
from persist.core.catalog.ddl.resolve import NEAR_MAX, Place, near, places, unknown
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.ddl.variables import VARIABLES, hold_rules
from persist.core.catalog.errors import UnknownObject
from persist.core.catalog.kept_settings import Stall, count_of, is_count, stalled_id
from persist.core.catalog.kinds import (
    CLUSTER,
    COMMENT,
    CURSOR,
    DATABASE,
    HOLD,
    ITEM,
    ROLE,
    SCHEMA,
    SETTING,
    STORAGE_COLLECTION_METADATA,
    SYSTEM_CONFIGURATION,
    SYSTEM_PRIVILEGE,
    UNFINALIZED_SHARD,
    AnyKind,
    Kind,
)
from persist.core.catalog.snapshot import Change, Snapshot
from persist.core.catalog.values import Id, ObjectType, Retain, RoleRef, Space
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.time.collections import STORED_ROWS, TimedObject
from persist.core.time.hold import NamedHold
from persist.core.time.holds import Holds
from persist.core.time.timeline import EPOCH_MILLISECONDS, Timeline, timeline_of
from persist.typed import AnyKey, AnyValue

K = TypeVar("K")
V = TypeVar("V")
IdT = TypeVar("IdT")

SEEN: Final[tuple[AnyKind, ...]] = (
    DATABASE,
    SCHEMA,
    ROLE,
    CLUSTER,
    ITEM,
    HOLD,
    CURSOR,
    COMMENT,
    STORAGE_COLLECTION_METADATA,
    UNFINALIZED_SHARD,
    SYSTEM_CONFIGURATION,
    SYSTEM_PRIVILEGE,
)
"""The kinds of objects that a view shows."""
_UNNAMED: Final = frozenset({ObjectType.TYPE, ObjectType.FUNCTION})
"""Items that names of collections do not find: they may have the same ones."""
SCHEMAS_CACHED: Final = 10_000


class Reader(Protocol):
    """What a view is made from: a snapshot, a transaction, an open catalog."""

    def get(self, kind: Kind[K, V], key: K) -> V | None:
        """The object with a key."""
        ...

    def objects(self, kind: Kind[K, V]) -> Mapping[K, V]:
        """All objects of a kind."""
        ...


@lru_cache(SCHEMAS_CACHED)
def _schema(data: bytes) -> Schema | None:
    return Schema.from_bytes(data) if data else None


class CatalogView:
    """The catalog as names. ``reader`` is read once; from then on it follows ``apply``.

    ``version``: that of the snapshot it shows, if it was made by ``at``.
    """

    def __init__(self, reader: Reader) -> None:
        self.version = 0
        self._clear()
        for kind in SEEN:
            for key, value in reader.objects(kind).items():
                self._put(kind, key, value)
        for setting, text in reader.objects(SETTING).items():
            self._said(setting, text)

    @classmethod
    def at(cls, snapshot: Snapshot) -> "CatalogView":
        """The view of a snapshot as it is now. One is kept for each snapshot, and costs what changed since."""
        kept = snapshot.derived.get(cls)
        changes = snapshot.since(kept.version) if isinstance(kept, cls) else None
        if not isinstance(kept, cls) or changes is None:
            kept = cls(snapshot)
        else:
            kept.apply(changes)
        kept.version = snapshot.version
        snapshot.derived[cls] = kept
        return kept

    def fork(self) -> Self:
        """Another view of the same, which changes alone. While it is used, this one stays as it is."""
        other = type(self).__new__(type(self))
        other.version = self.version
        other._objects = {kind: dict(objects) for kind, objects in self._objects.items()}
        other._named, other._schemas, other._shards = dict(self._named), dict(self._schemas), dict(self._shards)
        other._databases, other._roles = dict(self._databases), dict(self._roles)
        other._dependants, other._held, other._comments = (
            self._dependants.fork(),
            self._held.fork(),
            self._comments.fork(),
        )
        other._described, other._timed = dict(self._described), dict(self._timed)
        other._keeping, other._holds = self._keeping.fork(), dict(self._holds)
        other._stalls, other._counts = dict(self._stalls), dict(self._counts)
        return other

    def apply(self, changes: Iterable[Change]) -> None:
        """Take over what was committed: changes as a catalog reports them, of whatever kinds."""
        seen = []
        for change in changes:
            if change.kind in self._objects:
                seen.append(change)
            elif change.kind is SETTING:
                self._said(change.key, change.after)
        for kind, key, before, _, _ in seen:
            if before is not None:
                self._drop(kind, key, before)
        for kind, key, _, after, _ in seen:
            if after is not None:
                self._put(kind, key, after)

    # ---- names -------------------------------------------------------------------------------------------------------

    def resolve(self, name: QualifiedName, session: Session) -> Described:
        """The item of this name along the session's path. Raises UnknownObject, which names what is like it."""
        found = self.find(name, session)
        if found is None:
            raise self.no_such(name, session)
        return self.get(found)

    def find(self, name: QualifiedName, session: Session) -> Id | None:
        """The id of the item of this name along the session's path; None: there is none."""
        for schema in self.schemas_at(places(name, session)):
            if (found := self._named.get((schema, name.item))) is not None:
                return found
        return None

    def schemas_at(self, where: Iterable[Place]) -> Iterator[Id]:
        """The ids of those of these schemas that there are, in this order."""
        for database, schema in where:
            of = None if database is None else self._databases.get(database)
            if (database is None or of is not None) and (found := self._schemas.get((of, schema))) is not None:
                yield found

    def no_such(self, name: QualifiedName, session: Session, what: str = "object") -> UnknownObject:
        """The error for a name that no item has."""
        where = places(name, session)
        looked_in = frozenset(self.schemas_at(where))
        ids = {item: id for (schema, item), id in self._named.items() if schema in looked_in}
        alike = [str(self.name_of(ids[each])) for each in near(name.item, ids)]
        elsewhere = [id for (schema, item), id in self._named.items() if item == name.item and schema not in looked_in]
        alike += [str(self.name_of(id)) for id in elsewhere]
        return unknown(what, str(name), alike[:NEAR_MAX], where)

    def name_of(self, id: Id) -> QualifiedName:
        """The name of an item in full, with its schema, and the database if that is in one. Raises UnknownObject."""
        item = self.item(id)
        schema = self.schemas.get(item.schema_id)
        if schema is None:
            return QualifiedName(item.name)
        database = None if schema.database_id is None else self.databases.get(schema.database_id)
        return QualifiedName(item.name, schema.name, None if database is None else database.name)

    # ---- items -------------------------------------------------------------------------------------------------------

    def item(self, id: Id) -> o.Item:
        """An item as it is stored. Raises UnknownObject."""
        found: o.Item | None = self._objects[ITEM].get(o.ItemKey(id))
        if found is None:
            raise unknown("object", str(id))
        return found

    def get(self, id: Id) -> Described:
        """An item. Raises UnknownObject."""
        found = self._described.get(id)
        if found is None:
            found = self._described[id] = self._describe(id, self.item(id))
        return found

    def items(self, kind: ObjectType | None = None) -> Iterator[Described]:
        """All items, or those of a kind, those of the system first, by number."""
        found = [key.id for key, item in self._objects[ITEM].items() if kind is None or item.item_type is kind]
        return map(self.get, sorted(found, key=lambda id: (id.space is Space.USER, id.number)))

    def in_schema(self, schema: Id) -> list[Id]:
        """The ids of the items of a schema, by number."""
        found = (key.id for key, item in self._objects[ITEM].items() if item.schema_id == schema)
        return sorted(found, key=lambda id: id.number)

    def dependants(self, id: Id) -> list[Id]:
        """What is defined by an item, holds on it and what a source feeds among them, by number."""
        return sorted(self._dependants.of(id), key=lambda id: id.number)

    def comments(self, id: Id) -> AbstractSet[o.CommentKey]:
        """The keys of the comments on objects with this id and their columns. Databases, schemas have numbers, too."""
        return self._comments.of(id)

    def owner_of(self, shard: ShardId) -> Id | None:
        """The item whose rows, or bindings, a shard has."""
        return self._shards.get(shard)

    def collections(self, ids: Iterable[Id]) -> tuple[Id, ...]:
        """What is stored and read when these are read, each once: views by what they read, sources by what they feed.

        Raises UnknownObject.
        """
        found: dict[Id, None] = {}
        waiting = list(ids)[::-1]
        seen: set[Id] = set()
        while waiting:
            id = waiting.pop()
            if id in seen:
                continue
            seen.add(id)
            item = self.item(id)
            metadata = self._objects[STORAGE_COLLECTION_METADATA].get(o.StorageCollectionMetadataKey(id))
            if item.item_type is ObjectType.SOURCE:
                waiting += [each for each in self.dependants(id) if self.item(each).details.fed_by == id][::-1]
            elif metadata is not None:
                found[id] = None
            else:
                waiting += item.details.depends_on[::-1]
        return tuple(found)

    def timed(self) -> Mapping[str, TimedObject]:
        """All items as far as time is concerned, by the text of their id."""
        return _Timed(self)

    # ---- holds -------------------------------------------------------------------------------------------------------

    def is_held_by(self, id: Id) -> bool:
        """Whether it is a hold, or has one: as cursors and sinks do."""
        return o.HoldKey(id) in self._objects[HOLD]

    def hold(self, id: Id) -> NamedHold:
        """A hold, or that of a cursor or sink. Its name is in full. Raises UnknownObject."""
        found = self._holds.get(id)
        if found is None:
            found = self._holds[id] = self._named_hold(id)
        return found

    def held(self, id: Id) -> list[Id]:
        """The holds on a collection, by number; those that ended, too."""
        return sorted(self._held.of(id), key=lambda id: id.number)

    def holds(
        self, implied: Mapping[Id, Antichain], among: Iterable[Id] | None = None, also: Iterable[Id] = ()
    ) -> Holds:
        """All holds by their full names, or those on the collections ``among``. ``implied``: ic of collections.

        ``also``: these, too.
        """
        if among is None:
            wanted = {key.item_id for key in self._objects[HOLD]}
        else:
            wanted = {hold for id in among for hold in self._held.of(id)} | set(also)
        return self._holds_of(implied, wanted)

    def least_holds(self, implied: Mapping[Id, Antichain], among: Iterable[Id], moved: Iterable[Id] = ()) -> Holds:
        """Of those on each of these collections the one that keeps most, which says how far back that is readable.

        ``implied``: as of ``holds``; ``moved``: these, too, wherever they go. However many holds there are.
        """
        with_them = set(moved)
        first = {hold for id in among if (hold := self._keeping.first(id, with_them)) is not None}
        return self._holds_of(implied, first | with_them)

    def _holds_of(self, implied: Mapping[Id, Antichain], wanted: AbstractSet[Id]) -> Holds:
        # Rows of holds without an item or an object keep nothing: no statement could name them.
        sound = [id for id in wanted if o.ItemKey(id) in self._objects[ITEM]]
        found = [self.hold(id) for id in sorted(sound) if self._objects[HOLD][o.HoldKey(id)].objects]
        return Holds(
            objects=self.timed(),
            implied={str(id): since for id, since in implied.items()},
            by_name={hold.name: hold for hold in found},
            rules=hold_rules(self.variables),
        )

    def acknowledged(self, id: Id) -> int | None:
        """The position of a cursor: the times before it were taken over; None: nothing was."""
        row = self._objects[CURSOR].get(o.CursorKey(id))
        return None if row is None else row.acknowledged

    @property
    def stalls(self) -> Mapping[Id, Stall]:
        """Why views and indexes do not go on, as the process that leads, or led last, found it."""
        return self._stalls

    @property
    def counts(self) -> Mapping[o.SettingKey, int]:
        """How often statements said what holds of objects: see ``counted_on``."""
        return self._counts

    # ---- the rest ----------------------------------------------------------------------------------------------------

    @property
    def databases(self) -> "_ById[Id, o.Database]":
        """All databases."""
        return _ById(self._objects[DATABASE], o.DatabaseKey)

    @property
    def schemas(self) -> "_ById[Id, o.CatalogSchema]":
        """All schemas."""
        return _ById(self._objects[SCHEMA], o.SchemaKey)

    @property
    def roles(self) -> "_ById[RoleRef, o.Role]":
        """All roles."""
        return _ById(self._objects[ROLE], o.RoleKey)

    @property
    def clusters(self) -> "_ById[Id, o.Cluster]":
        """All clusters."""
        return _ById(self._objects[CLUSTER], o.ClusterKey)

    def objects(self, kind: Kind[K, V]) -> Mapping[K, V]:
        """All objects of a kind that views show, as they are stored: not a copy."""
        return self._objects[kind]

    def role(self, name: str) -> RoleRef:
        """The role of a name. Raises UnknownObject."""
        found = self._roles.get(name)
        if found is None:
            raise unknown("role", name, near(name, self._roles))
        return found

    def database(self, name: str) -> Id:
        """The database of a name. Raises UnknownObject."""
        found = self._databases.get(name)
        if found is None:
            raise unknown("database", name, near(name, self._databases))
        return found

    def schema(self, name: str, databases: Iterable[str]) -> Id:
        """The schema of a name in the first of these databases that has it, or in none. Raises UnknownObject."""
        where = [*((database, name) for database in databases), (None, name)]
        for found in self.schemas_at(where):
            return found
        raise unknown("schema", name, near(name, (schema for _, schema in self._schemas)), where)

    @property
    def variables(self) -> dict[str, str]:
        """All system variables, as they were set or by default."""
        stored = {key.name: each.value for key, each in self._objects[SYSTEM_CONFIGURATION].items()}
        return {name: stored.get(name, known.default) for name, known in VARIABLES.items()}

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        self._objects: dict[AnyKind, dict[Any, Any]] = {kind: {} for kind in SEEN}
        self._named: dict[tuple[Id, str], Id] = {}
        self._schemas: dict[tuple[Id | None, str], Id] = {}
        self._databases: dict[str, Id] = {}
        self._roles: dict[str, RoleRef] = {}
        self._shards: dict[str, Id] = {}
        self._dependants: Many[Id, Id] = Many()
        self._held: Many[Id, Id] = Many()
        self._comments: Many[Id, o.CommentKey] = Many()
        self._described: dict[Id, Described] = {}
        self._timed: dict[str, TimedObject] = {}
        self._keeping: Ordered[Id, Id] = Ordered()
        self._holds: dict[Id, NamedHold] = {}
        self._stalls: dict[Id, Stall] = {}
        self._counts: dict[o.SettingKey, int] = {}

    def _said(self, key: o.SettingKey, text: o.Setting | None) -> None:
        if (id := stalled_id(key)) is not None:
            self._stalls.pop(id, None)
            if text is not None and (stall := Stall.of(text)) is not None:
                self._stalls[id] = stall
        elif is_count(key):
            self._counts.pop(key, None)
            if text is not None and (count := count_of(text)) is not None:
                self._counts[key] = count

    def _put(self, kind: AnyKind, key: AnyKey, value: AnyValue) -> None:
        self._objects[kind][key] = value
        match key:
            case o.ItemKey(id):
                if value.item_type not in _UNNAMED and value.session is None:
                    self._named[value.schema_id, value.name] = id
                self._dependants.add(_defined_by(value), id)
                self._forget(id)
            case o.HoldKey(id):
                self._held.add(value.objects, id)
                self._keeps(value, id, self._keeping.add)
            case o.SchemaKey(id):
                self._schemas[value.database_id, value.name] = id
                self._forget_all()
            case o.DatabaseKey(id):
                self._databases[value.name] = id
                self._forget_all()
            case o.RoleKey(id):
                self._roles[value.name] = id
            case o.CommentKey():
                self._comments.add((key.id,), key)
            case o.StorageCollectionMetadataKey(id):
                self._shards.update((shard, id) for shard in (value.data_shard, value.remap_shard) if shard)
                self._forget(id)

    def _drop(self, kind: AnyKind, key: AnyKey, value: AnyValue) -> None:
        self._objects[kind].pop(key, None)
        match key:
            case o.ItemKey(id):
                if self._named.get((value.schema_id, value.name)) == id:
                    del self._named[value.schema_id, value.name]
                self._dependants.discard(_defined_by(value), id)
                self._forget(id)
            case o.HoldKey(id):
                self._held.discard(value.objects, id)
                self._keeps(value, id, self._keeping.discard)
            case o.SchemaKey():
                self._schemas.pop((value.database_id, value.name), None)
                self._forget_all()
            case o.DatabaseKey():
                self._databases.pop(value.name, None)
                self._forget_all()
            case o.RoleKey():
                self._roles.pop(value.name, None)
            case o.CommentKey():
                self._comments.discard((key.id,), key)
            case o.StorageCollectionMetadataKey(id):
                for shard in (value.data_shard, value.remap_shard):
                    self._shards.pop(shard or "", None)
                self._forget(id)

    def _keeps(self, hold: o.Hold, id: Id, change: Callable[[Iterable[Id], int, Id], None]) -> None:
        self._holds.pop(id, None)
        if hold.overdue_since_ms is None:
            change(hold.objects, hold.at, id)

    def _forget(self, id: Id) -> None:
        self._holds.pop(id, None)
        self._described.pop(id, None)
        self._timed.pop(str(id), None)

    def _forget_all(self) -> None:
        self._described.clear()
        self._timed.clear()
        self._holds.clear()

    def _named_hold(self, id: Id) -> NamedHold:
        row = self._objects[HOLD].get(o.HoldKey(id))
        if row is None:
            raise unknown("hold", str(id))
        return NamedHold(
            id=str(id),
            name=str(self.name_of(id)),
            objects=tuple(map(str, row.objects)),
            timeline=timeline_of(row.timeline),
            at=row.at,
            max_lag=row.max_lag,
            on_lag=row.on_lag,
            deadline_ms=row.deadline_ms,
            last_ack_ms=row.last_ack_ms,
            auto_advanced_count=row.auto_advanced_count,
            last_auto_advance_ms=row.last_auto_advance_ms,
            overdue_since_ms=row.overdue_since_ms,
        )

    def _describe(self, id: Id, item: o.Item) -> Described:
        details = item.details
        stored = self._objects[STORAGE_COLLECTION_METADATA].get(o.StorageCollectionMetadataKey(id))
        remap = None if stored is None else stored.remap_shard
        return Described(
            id=id,
            kind=item.item_type,
            name=self.name_of(id),
            owner=item.owner,
            acls=item.acls,
            schema=_schema(details.schema),
            timeline=own_timeline(item),
            fed_by=details.fed_by,
            depends_on=details.depends_on,
            data=None if stored is None or not stored.data_shard else ShardId(stored.data_shard),
            remap=None if remap is None else ShardId(remap),
            retain=details.retain or (None if stored is None else Retain()),
            refresh=details.refresh,
            mode=details.mode,
            multiset=details.multiset,
            claims_epoch=details.claims_epoch,
            asks_time=details.asks_time,
            sql=item.create_sql,
            query=details.query,
            options=tuple((option.name, option.value) for option in details.options),
            known=details.known,
        )


def own_timeline(item: o.Item) -> Timeline | None:
    """The timeline that an item brings: sources and tables have one, others that of what they read."""
    if item.item_type is ObjectType.SOURCE or (item.item_type in STORED_ROWS and item.details.fed_by is None):
        return EPOCH_MILLISECONDS if item.details.timeline is None else timeline_of(item.details.timeline)
    return None


def timed_object(id: Id, name: str, item: o.Item) -> TimedObject:
    """An item as far as time is concerned."""
    timeline = own_timeline(item)
    return TimedObject(
        id=str(id),
        kind=item.item_type,
        name=name,
        timeline=timeline,
        fed_by=None if item.details.fed_by is None else str(item.details.fed_by),
        depends_on=tuple(map(str, item.details.depends_on)),
        uses_logical_time=item.details.asks_time,
        claims_epoch=item.details.claims_epoch and timeline == EPOCH_MILLISECONDS,
        is_system=id.space is Space.SYSTEM,
    )


def _defined_by(item: o.Item) -> tuple[Id, ...]:
    fed_by = item.details.fed_by
    return item.details.depends_on if fed_by is None else (*item.details.depends_on, fed_by)


class _ById(Mapping[IdT, V]):
    """Objects by id, of those by key."""

    def __init__(self, objects: Mapping[AnyKey, V], key: Callable[[IdT], AnyKey]) -> None:
        self._objects, self._key = objects, key

    def __getitem__(self, id: IdT) -> V:
        return self._objects[self._key(id)]

    def __iter__(self) -> Iterator[IdT]:
        return (key.id for key in self._objects)

    def __len__(self) -> int:
        return len(self._objects)


class _Timed(Mapping[str, TimedObject]):
    """The timed objects of a view, each made when it is asked for."""

    def __init__(self, view: CatalogView) -> None:
        self._view = view

    def __getitem__(self, text: str) -> TimedObject:
        view = self._view
        found = view._timed.get(text)
        if found is None:
            id = Id.parse(text)
            item = view._objects[ITEM][o.ItemKey(id)]
            found = view._timed[text] = timed_object(id, str(view.name_of(id)), item)
        return found

    def __iter__(self) -> Iterator[str]:
        return (str(key.id) for key in self._view._objects[ITEM])

    def __len__(self) -> int:
        return len(self._view._objects[ITEM])
