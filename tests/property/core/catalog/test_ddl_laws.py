"""Random statements, in transactions, against what must hold of every catalog. Refused ones change nothing."""

from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from simulation.budget import FULL
from unit.core.catalog.ddl.world import (
    ME,
    ROWS,
    World,
    hold,
    index,
    materialized,
    name,
    source,
    table,
    view,
)

from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.plan import plan
from persist.core.catalog.ddl.statements import (
    Acknowledge,
    AddColumns,
    AddedColumn,
    Adopt,
    AdvanceHold,
    CommentOn,
    CreateCursor,
    CreateHold,
    CreateRole,
    CreateSchema,
    Drop,
    Grant,
    Leave,
    Rename,
    SetOwner,
    SetRetain,
    Statement,
)
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.kinds import (
    COMMENT,
    CURSOR,
    HOLD,
    ITEM,
    SCHEMA,
    STORAGE_COLLECTION_METADATA,
    UNFINALIZED_SHARD,
)
from persist.core.catalog.objects import CursorKey, HoldKey, ItemKey, SchemaKey, StorageCollectionMetadataKey
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import AuditEventType, Id, ObjectType, Retain, Space
from persist.core.ids import ShardId
from persist.core.time.collections import timeline_context
from persist.errors import UsageError

T = ObjectType
NEW = st.sampled_from(["a", "b", "c", "d", "e", "f", "other.a", "other.b"])
TIMES = st.none() | st.integers(9, 21)
TIMELINES = st.sampled_from(["M", "M", "M", "U.x"])
SESSIONS = st.sampled_from([ME, ME, ME, Session("alice")])
Texts = st.SearchStrategy[str]


def add(of: str, column: str) -> AddColumns:
    return AddColumns(name(of), (AddedColumn(column, pa.int64()),))


def statements_over(world: World) -> st.SearchStrategy[Statement]:
    """Statements about what there is, mostly, and about new names."""

    def there(*kinds: ObjectType) -> Texts:
        found = [str(each.name) for kind in kinds for each in world.view.items(kind) if each.id.space is Space.USER]
        return st.sampled_from(found) if found else NEW

    relations = there(T.TABLE, T.SUBSOURCE, T.SOURCE, T.VIEW, T.MATERIALIZED_VIEW)
    collections = there(T.TABLE, T.SUBSOURCE, T.SOURCE, T.MATERIALIZED_VIEW, T.INDEX)
    reads = st.lists(relations, min_size=1, max_size=3).map(tuple)
    held = st.lists(collections, min_size=1, max_size=3).map(tuple)
    of_kind = st.sampled_from(
        [T.TABLE, T.SOURCE, T.VIEW, T.MATERIALIZED_VIEW, T.INDEX, T.HOLD, T.CURSOR, T.SUBSOURCE]
    ).flatmap(lambda kind: st.tuples(st.just(kind), there(kind).map(name)))
    lag = st.sampled_from([None, None, None, 7])
    short = st.sampled_from("abcdef")
    return st.one_of(
        st.builds(table, NEW, TIMELINES),
        st.builds(source, NEW, short),
        st.builds(lambda of, reads, replace: view(of, *reads, replace=replace), NEW, reads, st.booleans()),
        st.builds(lambda of, reads: view(of, *reads, replace=True), there(T.VIEW), reads),
        st.builds(lambda of, reads: materialized(of, *reads), NEW, reads),
        st.builds(index, short, relations),
        st.builds(lambda of, on, at, lag: hold(of, *on, at=at, max_lag=lag), NEW, held, TIMES, lag),
        st.builds(lambda of: CreateHold(name(of), all_of=("persist", "other")), NEW),
        st.builds(lambda of, on, at: CreateCursor(name(of), "", tuple(map(name, on)), ROWS, at), NEW, reads, TIMES),
        st.builds(lambda of, to: AdvanceHold(name(of), to), there(T.HOLD), TIMES),
        st.builds(lambda of, to: Acknowledge(name(of), to), there(T.CURSOR), st.integers(0, 24)),
        st.builds(lambda on, to, swap: Rename(*on, to, swap), of_kind, short, st.booleans()),
        st.builds(lambda on, cascade: Drop(on[0], (on[1],), cascade), of_kind, st.booleans()),
        st.builds(lambda cascade: Drop(T.SCHEMA, (name("other"),), cascade), st.booleans()),
        st.just(CreateSchema("other")),
        st.builds(lambda of, shard: Adopt(name(of), ShardId.named(shard), ROWS), NEW, st.sampled_from("xy")),
        st.builds(lambda of, cascade: Leave(name(of), cascade), there(T.TABLE), st.booleans()),
        st.builds(lambda on: SetRetain(*on, Retain(5)), of_kind),
        st.builds(add, there(T.TABLE, T.VIEW, T.SUBSOURCE), short),
        st.builds(lambda on, text: CommentOn(*on, text), of_kind, st.none() | st.just("?")),
        st.builds(lambda on, which: Grant(which, *on, ("alice",)), of_kind, st.sampled_from("rw")),
        st.builds(lambda on: SetOwner(*on, "alice"), of_kind),
    )


class Catalogs(RuleBasedStateMachine):
    """A catalog that statements change, one transaction after another."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.world.run(CreateRole("alice"))
        self.world.run(CreateSchema("other"))
        for statement in (table("a"), table("b"), view("c", "a"), materialized("d", "c", "b"), hold("e", "d", "a")):
            self.world.run(statement)
        self.shards = {row.data_shard for row in self.world.snapshot.objects(STORAGE_COLLECTION_METADATA).values()}

    @rule(data=st.data(), count=st.sampled_from([1, 1, 1, 2, 3]), session=SESSIONS)
    def execute(self, data: st.DataObject, count: int, session: Session) -> None:
        world = self.world
        one = statements_over(world)
        statements = [data.draw(one) for _ in range(count)]
        before, events = world.everything(), len(world.events)
        tx = CatalogTransaction(world.snapshot)
        try:
            frontiers = world.frontiers(*statements, session=session)
            effects, executed = plan(tx, statements, session, frontiers, world.now_ms)
        except UsageError:
            assert tx.batch().changes == ()
            return
        world.commit(tx)
        assert len(executed) == len(statements)
        self.check_events(before, events)
        for each in effects.created:
            assert world.view.get(each.id) == each
            assert each.data is not None
            assert each.data not in effects.dropped
        for each in effects.grown:
            assert world.view.get(each.id) == each
            assert each not in effects.created
        for gone in effects.dropped:
            assert world.view.owner_of(gone) is None
        for held in effects.held:
            assert world.view.hold(held.id).at == held.at
        # A shard of a collection that SQL makes is never one that was another's.
        fresh = {str(each.data) for each in effects.created} - {str(ShardId.named(each)) for each in "xy"}
        assert not fresh & self.shards
        self.shards |= fresh

    def check_events(self, before: dict[str, dict[Any, Any]], since: int) -> None:
        told = self.world.events[since:]
        items, now = before[ITEM.tag], self.world.everything()[ITEM.tag]
        for event, ids in (
            (AuditEventType.CREATE, now.keys() - items.keys()),
            (AuditEventType.DROP, items.keys() - now.keys()),
        ):
            said = {each.details.id for each in told if each.event_type is event and each.object_type is not T.SCHEMA}
            assert {str(key.id) for key in ids} <= said
        changed = {str(key.id) for key in items.keys() & now.keys() if items[key] != now[key]}
        assert changed <= {each.details.id for each in told}
        assert [each.id for each in self.world.events] == list(range(1, len(self.world.events) + 1))

    @invariant()
    def nothing_dangles(self) -> None:
        objects = self.world.snapshot.objects
        items = objects(ITEM)
        for key, item in items.items():
            assert SchemaKey(item.schema_id) in objects(SCHEMA)
            fed_by = item.details.fed_by
            for on in (*item.details.depends_on, *(() if fed_by is None else (fed_by,))):
                assert ItemKey(on) in items
            assert (HoldKey(key.id) in objects(HOLD)) == (item.item_type in (T.HOLD, T.CURSOR))
            assert (CursorKey(key.id) in objects(CURSOR)) == (item.item_type is T.CURSOR)
            stored = (
                item.item_type in (T.TABLE, T.SUBSOURCE, T.MATERIALIZED_VIEW, T.INDEX) and key.id.space is Space.USER
            )
            assert (StorageCollectionMetadataKey(key.id) in objects(STORAGE_COLLECTION_METADATA)) == stored
        for held, row in objects(HOLD).items():
            assert ItemKey(held.item_id) in items
            assert row.objects
            assert all(ItemKey(id) in items for id in row.objects)
        for metadata in objects(STORAGE_COLLECTION_METADATA):
            assert ItemKey(metadata.id) in items
        for comment in objects(COMMENT):
            assert comment.object_type is T.SCHEMA or items[ItemKey(comment.id)].item_type is comment.object_type

    @invariant()
    def columns_that_are_known_are_those_that_were_there_first(self) -> None:
        view = self.world.view
        for item in view.items():
            for known in item.known:
                assert known.id in item.depends_on
                there = view.get(known.id).column_names
                assert there[: len(known.columns)] == known.columns
                assert len(known.columns) < len(there)

    @invariant()
    def shards_have_one_owner(self) -> None:
        rows = self.world.snapshot.objects(STORAGE_COLLECTION_METADATA).values()
        shards = [row.data_shard for row in rows]
        assert len(shards) == len(set(shards))
        doomed = {key.shard for key in self.world.snapshot.objects(UNFINALIZED_SHARD)}
        assert not doomed.intersection(shards)

    @invariant()
    def everything_is_of_one_timeline(self) -> None:
        timed = self.world.view.timed()
        for id in timed:
            timeline_context(timed, [id])

    @invariant()
    def the_view_is_that_of_the_catalog(self) -> None:
        anew = CatalogView(self.world.snapshot)
        kept = self.world.view
        assert list(kept.items()) == list(anew.items())
        for each in anew.items():
            assert kept.dependants(each.id) == anew.dependants(each.id)
            assert kept.held(each.id) == anew.held(each.id)
            assert kept.find(each.name, ME) == each.id or each.id.space is Space.SYSTEM
        assert isinstance(next(anew.items()).id, Id)


TestCatalogs = Catalogs.TestCase
TestCatalogs.settings = settings(max_examples=30 if FULL else 10, stateful_step_count=25, deadline=None)
