"""What the groups of statements share: names looked up, privileges checked, objects written and audited.

Everything is read through the transaction, so that whatever changes meanwhile is a conflict. Source: collections.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from persist.core.catalog import objects as o
from persist.core.catalog.ddl import privileges as p
from persist.core.catalog.ddl.born import born_at
from persist.core.catalog.ddl.described import Described, Frontiers, Session
from persist.core.catalog.ddl.effects import Born, Effects, Held
from persist.core.catalog.ddl.resolve import check_new_name, near, new_places, places, unknown
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import OutOfSync, UniquenessViolation
from persist.core.catalog.kept_settings import counted_on, place_of
from persist.core.catalog.kinds import AUDIT_LOG, ITEM, SCHEMA, SETTING, STORAGE_COLLECTION_METADATA, Kind
from persist.core.catalog.snapshot import Change
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import (
    Acl,
    AuditAlteredV1,
    AuditEventType,
    AuditNamedV1,
    AuditRenamedV1,
    Id,
    ItemDetails,
    ObjectType,
    Retain,
    RoleRef,
    Space,
    Unit,
)
from persist.core.frontier import MINIMUM, Antichain
from persist.core.ids import ShardId
from persist.core.time.timeline import Timeline
from persist.errors import InvalidArgument

K = TypeVar("K")
V = TypeVar("V")

RELATIONS = frozenset(
    {
        ObjectType.TABLE,
        ObjectType.SUBSOURCE,
        ObjectType.SOURCE,
        ObjectType.VIEW,
        ObjectType.MATERIALIZED_VIEW,
    }
)
"""What may be read by name in a query."""
COLLECTIONS = frozenset({ObjectType.TABLE, ObjectType.SUBSOURCE, ObjectType.MATERIALIZED_VIEW, ObjectType.INDEX})
"""What is stored, and has a since and an upper of its own."""


UNASKED: Final = "unasked"
"""The ids of collections whose frontiers are needed as well, by commas."""


@dataclass(slots=True)
class Planning:
    """A list of statements on its way into a transaction. ``view`` shows what the transaction makes of the catalog.

    ``fresh``: what is known of collections that this transaction creates, and ``inputs`` what these are made from,
    which ``reaches`` back to there.
    """

    tx: CatalogTransaction
    view: CatalogView
    session: Session
    role: RoleRef
    frontiers: Mapping[Id, Frontiers]
    now_ms: int
    environment: str
    fresh: dict[Id, Antichain] = field(default_factory=dict)
    inputs: dict[Id, tuple[Id, ...]] = field(default_factory=dict)
    reaches: dict[Id, int] = field(default_factory=dict)
    created: dict[Id, None] = field(default_factory=dict)
    derived: dict[ShardId, None] = field(default_factory=dict)
    begins: dict[Id, int] = field(default_factory=dict)
    born: dict[Id, Born] = field(default_factory=dict)
    held: dict[Id, Held] = field(default_factory=dict)
    grown: dict[Id, None] = field(default_factory=dict)
    changed: dict[Id, None] = field(default_factory=dict)
    dropped: dict[ShardId, None] = field(default_factory=dict)
    left: dict[ShardId, None] = field(default_factory=dict)

    def of(self, session: Session) -> "Planning":
        """The same transaction in the hands of another session. Raises UnknownObject (its role)."""
        return replace(self, session=session, role=self.view.role(session.role))

    # ---- writing -----------------------------------------------------------------------------------------------------

    def put(self, kind: Kind[K, V], key: K, value: V | None) -> None:
        """Insert, change or (None) delete an object."""
        self.put_all(kind, [(key, value)])

    def put_all(self, kind: Kind[K, V], objects: Iterable[tuple[K, V | None]]) -> None:
        """The same for several at once: names may change hands among them."""
        wanted = list(objects)
        before = [self.tx.get(kind, key) for key, _ in wanted]
        self.tx.set_all(kind, wanted)
        self.view.apply([Change(kind, key, old, new) for (key, new), old in zip(wanted, before, strict=True)])

    def keep(self, key: o.SettingKey, value: o.Setting | None) -> None:
        """Set (None: delete) a setting of the library's own."""
        before = self.tx.get(SETTING, key)
        self.tx.keep(key, value)
        self.view.apply([Change(SETTING, key, before, value)])

    def counted(self, kind: ObjectType, id: object) -> None:
        """One more statement has said what holds of an object from now on; ``id`` empty: of the environment.

        SUBTLE: also where that held before: one that comes late is not to undo a later one that found nothing to do.
        """
        key = counted_on(place_of(kind), str(id))
        self.keep(key, o.Setting(str(self.view.counts.get(key, 0) + 1)))

    def uncounted(self, kind: ObjectType, id: object) -> None:
        """The object is gone, and its id with it."""
        if (key := counted_on(place_of(kind), str(id))) in self.view.counts:
            self.keep(key, None)

    def audit(
        self, event: AuditEventType, kind: ObjectType, details: AuditNamedV1 | AuditRenamedV1 | AuditAlteredV1
    ) -> None:
        """Write down what was done, by whom and when."""
        (number,) = self.tx.allocate("auditlog")
        user = p.role_name(self.view, self.role)
        self.tx.insert(AUDIT_LOG, o.AuditLogKey(number, event, kind, user, self.now_ms, details), Unit())

    def altered(self, kind: ObjectType, id: object, name: str, of: str, before: object, after: object) -> None:
        """Write down that a property changed. None: it was not there, or is gone."""
        old, new = (None if each is None else str(each) for each in (before, after))
        self.audit(AuditEventType.ALTER, kind, AuditAlteredV1(str(id), name, of, old, new))

    def new_item(
        self,
        name: QualifiedName,
        schema: Id,
        kind: ObjectType,
        details: ItemDetails,
        *,
        sql: str = "",
        id: Id | None = None,
        acls: tuple[Acl, ...] = (),
        shard: ShardId | None = None,
        remap: ShardId | None = None,
    ) -> Described:
        """Make an item of a name that is free, and say where its rows are."""
        id = self.new_id() if id is None else id
        (oid,) = self.tx.allocate_oids()
        item = o.Item(schema, name.item, kind, sql, self.role, acls, oid, global_id=id, details=details)
        self.put(ITEM, o.ItemKey(id), item)
        if shard is not None or remap is not None:
            where = o.StorageCollectionMetadata(shard or "", remap)
            self.put(STORAGE_COLLECTION_METADATA, o.StorageCollectionMetadataKey(id), where)
        if shard is not None:
            self.created[id] = None
        made = self.view.get(id)
        self.audit(AuditEventType.CREATE, kind, AuditNamedV1(str(id), str(made.name)))
        return made

    def new_id(self) -> Id:
        """An id that nothing had."""
        return Id(Space.USER, self.tx.allocate("user")[0])

    # ---- looking up --------------------------------------------------------------------------------------------------

    def place(self, name: QualifiedName) -> Id:
        """The schema that something new of this name is made in. Raises UnknownObject and as ``may_create_in``."""
        check_new_name(name.item)
        where = new_places(name, self.session)
        schema = next(self.view.schemas_at(where), None)
        if schema is None:
            known = (each.name for each in self.view.schemas.values())
            raise unknown("schema", name.schema or "", near(name.schema or "", known), where)
        self.may_create_in(schema)
        return schema

    def may_create_in(self, schema: Id) -> None:
        """Raises PrivilegeMissing, or InvalidArgument where only the system makes something."""
        row = self.view.schemas[schema]
        self.tx.get(SCHEMA, o.SchemaKey(schema))
        p.check_users(schema, ObjectType.SCHEMA, row.name)
        p.check_may(self.view, self.role, "C", ObjectType.SCHEMA, row.name, row)

    def taken(self, schema: Id, name: QualifiedName) -> Described | None:
        """What has the name there already."""
        key = self.tx.find(ITEM, ("item", schema, name.item, None))
        return None if key is None else self.view.get(key.id)

    def check_free(self, schema: Id, name: QualifiedName) -> None:
        """Raises UniquenessViolation when something has the name there."""
        if (other := self.taken(schema, name)) is not None:
            raise UniquenessViolation(
                "another object has this name",
                hint="take another name, or drop that one",
                kind=other.kind.words,
                key=other.id,
                name=str(other.name),
                clashing_key=other.id,
            )

    def find(self, name: QualifiedName) -> Described | None:
        """The item of a name along the session's path."""
        for schema in self.view.schemas_at(places(name, self.session)):
            self.tx.get(SCHEMA, o.SchemaKey(schema))
            key = self.tx.find(ITEM, ("item", schema, name.item, None))
            if key is not None:
                self.tx.get(ITEM, key)
                return self.view.get(key.id)
        return None

    def item(self, name: QualifiedName, kind: ObjectType | None = None) -> Described:
        """The item of a name, which is of this kind if one is given. Raises UnknownObject, InvalidArgument."""
        found = self.find(name)
        if found is None:
            raise self.view.no_such(name, self.session, "object" if kind is None else kind.words)
        if kind is not None and found.kind is not kind and (kind, found.kind) not in _ALIKE:
            raise InvalidArgument(
                f"this is no {kind.words}", hint=f"it is a {found.kind.words}", name=str(found.name), id=found.id
            )
        return found

    def owned(self, name: QualifiedName, kind: ObjectType) -> Described:
        """The item of a name and kind, when the role may act as its owner. Raises as ``item``, PrivilegeMissing."""
        found = self.item(name, kind)
        p.check_users(found.id, found.kind, str(found.name))
        p.check_owns(self.view, self.role, found.kind, str(found.name), found)
        return found

    def readable(self, name: QualifiedName) -> Described:
        """The item of a name, when the role may read it. Raises as ``item``, PrivilegeMissing."""
        found = self.item(name)
        self.may_read(found)
        return found

    def may_read(self, it: Described) -> None:
        """Raises PrivilegeMissing unless the role may SELECT from it, and USE its schema."""
        schema = self.view.schemas[self.view.item(it.id).schema_id]
        p.check_may(self.view, self.role, "U", ObjectType.SCHEMA, schema.name, schema)
        p.check_may(self.view, self.role, "r", it.kind, str(it.name), it)

    def read_by_query(self, names: Sequence[QualifiedName], meant: Sequence[bytes]) -> tuple[Described, ...]:
        """What a query reads, each once. Raises as ``readable``, InvalidArgument (what no query reads; it is not what
        was ``meant``: the columns of the query were found from something else).
        """
        if meant and len(meant) != len(names):
            raise InvalidArgument("something is meant by each name, or by none", names=len(names), meant=len(meant))
        found = {}
        for each, meaning in zip(map(self.readable, names), meant or [b""] * len(names), strict=True):
            if each.kind not in RELATIONS:
                raise InvalidArgument("a query cannot read this", kind=each.kind.words, name=str(each.name))
            if meaning not in (b"", each.meaning):
                raise InvalidArgument(
                    "this name has come to mean something else since the query was understood",
                    hint="nothing happened: give the statement again",
                    name=str(each.name),
                )
            found[each.id] = each
        return tuple(found.values())

    # ---- times -------------------------------------------------------------------------------------------------------

    def begin_new(self, id: Id, timeline: Timeline, retain: Retain | None, *, claims_epoch: bool = False) -> None:
        """A collection that is made from nothing begins where its policy says."""
        born = born_at(timeline, retain, self.now_ms, claims_epoch=claims_epoch)
        if born is None:
            self.fresh[id] = MINIMUM
        else:
            self.born[id] = Born(id, born, timeline)
            self.fresh[id] = Antichain.of(born)

    def implied(self, ids: Iterable[Id]) -> dict[Id, Antichain]:
        """ic of collections. Raises OutOfSync with UNASKED where it was not asked: names have come to mean something
        else, or do so by a statement before this one.

        Raises InvalidArgument for shards that this transaction adopted.
        """
        found, missing = {}, []
        for id in ids:
            if id in self.fresh:
                found[id] = self.fresh[id]
            elif id in self.frontiers:
                found[id] = self.frontiers[id].implied
            elif id in self.created:
                raise InvalidArgument(
                    "the times of a shard that was adopted are known afterwards",
                    hint="do this in a transaction of its own",
                    name=str(self.view.name_of(id)),
                )
            else:
                missing.append(str(id))
        if missing:
            raise OutOfSync(
                "the times of a collection are not known",
                hint="run the transaction again",
                updates=0,
                **{UNASKED: ",".join(missing)},
            )
        return found

    def effects(self) -> Effects:
        """What all of it means for shards."""
        gone = self.dropped.keys() | self.left.keys()
        created = tuple(it for id in self.created if (it := self._there(id)) is not None and it.data not in gone)
        return Effects(
            created=created,
            derived=tuple(self.derived),
            begins=tuple((id, at) for id, at in self.begins.items() if id in self.created),
            born=tuple(each for id, each in self.born.items() if id in self.created),
            held=tuple(self.held.values()),
            # What is made by this transaction is made with all of its columns.
            grown=tuple(it for id in self.grown if id not in self.created and (it := self._there(id)) is not None),
            changed=tuple(id for id in self.changed if self._there(id) is not None),
            dropped=tuple(self.dropped),
            left=tuple(self.left),
        )

    def _there(self, id: Id) -> Described | None:
        return self.view.get(id) if o.ItemKey(id) in self.view.objects(ITEM) else None


_ALIKE = frozenset({(ObjectType.TABLE, ObjectType.SUBSOURCE)} | {(ObjectType.SOURCE, ObjectType.SUBSOURCE)})
"""A kind that is said, and another that is meant as well."""
