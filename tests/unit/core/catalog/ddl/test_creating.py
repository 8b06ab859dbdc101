"""Tables, sources, views, materialized views, indexes, sinks, and shards that become items. Design document 4."""

from typing import Any

import pyarrow as pa
import pytest
from unit.core.catalog.ddl.world import ME, ROWS, World, drop, hold, index, materialized, name, source, table, view

from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.statements import (
    Adopt,
    CreateCursor,
    CreateRole,
    CreateSchema,
    CreateSink,
    CreateSource,
    Drop,
    Export,
    Grant,
    Leave,
    Rename,
    SetSystem,
)
from persist.core.catalog.errors import PrivilegeMissing, UniquenessViolation, UnknownObject
from persist.core.catalog.kinds import STORAGE_COLLECTION_METADATA, UNFINALIZED_SHARD
from persist.core.catalog.objects import StorageCollectionMetadataKey, UnfinalizedShardKey
from persist.core.catalog.values import AuditEventType, AuditNamedV1, Id, ObjectType, Retain, Space
from persist.core.data.schema import Schema
from persist.core.ids import ShardId
from persist.core.names import new_shard
from persist.core.time.collections import TimelineDependent, timeline_context
from persist.core.time.errors import DependentObjects, MultipleTimelines
from persist.core.time.timeline import EPOCH_MILLISECONDS, CounterTimeline, ExternalTimeline, UserTimeline
from persist.errors import InvalidArgument

ALICE = Session("alice")


@pytest.fixture
def world() -> World:
    return World()


def test_a_table_has_a_shard_a_timeline_and_a_policy(world: World) -> None:
    effects, (done,) = world.run(table("t", sql="CREATE TABLE t"))
    made = world.get("t")
    assert (done.tag, done.id, done.name) == ("CREATE TABLE", made.id, "persist.public.t")
    assert effects.created == (made,)
    assert (made.kind, made.schema, made.timeline, made.mode) == (ObjectType.TABLE, ROWS, EPOCH_MILLISECONDS, "wal")
    assert (made.retain, made.sql, made.data) == (Retain(1000), "CREATE TABLE t", new_shard("t", "wal"))
    (event,) = world.events
    assert event.details == AuditNamedV1(str(made.id), "persist.public.t")
    assert (event.event_type, event.object_type, event.user, event.occurred_at_ms) == (
        AuditEventType.CREATE, ObjectType.TABLE, "persist", world.now_ms,
    )  # fmt: skip


def test_the_first_shard_of_a_bare_name_is_the_one_it_has_without_a_catalog(world: World) -> None:
    world.run(table("t", mode="direct"))
    world.run(CreateSchema("other"))
    world.run(table("other.t", mode="direct"))
    assert world.get("t").data == new_shard("t") == ShardId.named("table", "t")
    assert world.get("other.t").data == ShardId.named("persist.collection", "default", str(world.get("other.t").id))
    apart = World(environment="apart")
    apart.run(table("t", mode="direct"))
    assert apart.get("t").data not in (new_shard("t"), world.get("t").data)


def test_a_dropped_and_recreated_name_gets_a_new_shard(world: World) -> None:
    shards = []
    for _ in range(3):
        world.run(table("t"))
        shards.append(world.get("t").data)
        effects, _ = world.run(drop(ObjectType.TABLE, "t"))
        assert effects.dropped == (shards[-1],)
        assert world.snapshot.get(UNFINALIZED_SHARD, UnfinalizedShardKey(str(shards[-1]))) is not None
    assert len(set(shards)) == 3
    assert dict(world.snapshot.objects(STORAGE_COLLECTION_METADATA)) == {}


def test_the_shard_of_a_renamed_table_stays_its_own(world: World) -> None:
    world.run(table("t"))
    world.run(Rename(ObjectType.TABLE, name("t"), "old"))
    world.run(table("t"))
    assert world.get("old").data == new_shard("t", "wal")
    assert world.get("t").data != new_shard("t", "wal")


def test_what_is_retained_by_default(world: World) -> None:
    world.run(table("clock"))
    world.run(table("times", "U.x"))
    world.run(table("kept", retain=Retain()))
    world.run(table("direct", mode="direct"))
    world.run(SetSystem("retain_history", "all"), table("later"))
    assert [world.get(each).retain for each in ("clock", "times", "kept", "later", "direct")] == [
        Retain(1000), Retain(1), Retain(), Retain(), Retain(),
    ]  # fmt: skip


def test_a_table_has_a_mode_that_there_is(world: World) -> None:
    with pytest.raises(InvalidArgument, match="direct or wal"):
        world.run(table("t", mode="sideways"))


def test_shards_that_exist_become_items_and_cease_to_be(world: World) -> None:
    shard = new_shard("flights")
    effects, _ = world.run(Adopt(name("flights"), shard, ROWS))
    made = world.get("flights")
    assert (made.data, made.mode, made.retain, effects.created) == (shard, "direct", Retain(), (made,))
    with pytest.raises(InvalidArgument, match="another item has this shard"):
        world.run(Adopt(name("again"), shard, ROWS))
    with pytest.raises(InvalidArgument, match="transaction of its own"):
        world.run(Adopt(name("other"), new_shard("other"), ROWS), hold("h", "other"))
    world.run(view("v", "flights"))
    with pytest.raises(DependentObjects):
        world.run(Leave(name("flights")))
    effects, (done,) = world.run(Leave(name("flights"), cascade=True))
    assert (effects.left, effects.dropped, done.notice) == ((shard,), (), "drop cascades to persist.public.v")
    world.run(Adopt(name("flights"), shard, ROWS))
    assert world.get("flights").data == shard


def test_if_not_exists_makes_nothing(world: World) -> None:
    for statement in (
        table("x", if_not_exists=True),
        source("x", if_not_exists=True),
        view("x", if_not_exists=True),
        CreateSink(name("x"), name("x"), "files", if_not_exists=True),
        CreateCursor(name("x"), "", (), ROWS, if_not_exists=True),
    ):
        world.run(*() if world.view.find(name("x"), ME) else (table("x"),))
        before = world.everything()
        effects, (done,) = world.run(statement)
        assert (done.notice, effects.created) == ("table persist.public.x exists, skipping", ())
        assert world.everything() == before


# ---- sources and timelines -------------------------------------------------------------------------------------------


def test_a_source_feeds_subsources(world: World) -> None:
    given = ShardId.named("given")
    statement = CreateSource(name("s"), "kafka", (("topic", "x"),), (Export("a", ROWS), Export("b", ROWS, given)))
    effects, _ = world.run(statement)
    made, a, b = world.get("s"), world.get("a"), world.get("b")
    assert (made.options, made.timeline, made.data) == ((("topic", "x"), ("type", "kafka")), EPOCH_MILLISECONDS, None)
    assert (a.kind, a.fed_by, a.timeline, a.data) == (ObjectType.SUBSOURCE, made.id, None, new_shard("a"))
    assert b.data == given
    assert effects.created == (a, b)
    with pytest.raises(InvalidArgument, match="goes with its source"):
        world.run(drop(ObjectType.SUBSOURCE, "a"))
    effects, _ = world.run(drop(ObjectType.SOURCE, "s"))
    assert set(effects.dropped) == {a.data, given}
    assert world.names(ObjectType.SUBSOURCE) == []


def cdc(text: str, feeds: str, **options: Any) -> CreateSource:
    return source(text, feeds, type="cdcv2", **options)


def test_variants_of_timelines(world: World) -> None:
    """Variants of Timeline:
    • EpochMilliseconds for anything producing timestamps near wall-clock now.
    • Counter(struct) for Debezium consistency topics, with a struct to track broker/topic to tell apart different
    sources.
    • External(String) for CDCv2 sources with the source's name attached, making a CDCv2 source only joinable with
    itself.
    • User(String) for user-defined timelines by a name chosen by the user.
    """
    world.run(source("clock", "a"))
    world.run(source("counter", "b", timeline="C.brokers/topic"))
    world.run(cdc("external", "c"))
    world.run(source("user", "d", timeline="some_name"))
    assert world.get("clock").timeline == EPOCH_MILLISECONDS
    assert world.get("counter").timeline == CounterTimeline("brokers", "topic")
    assert world.get("external").timeline == ExternalTimeline(str(world.get("external").id))
    assert world.get("user").timeline == UserTimeline("some_name")


def test_sources_and_tables_provide_their_timeline(world: World) -> None:
    """This is implemented by adding a Timeline enum, and requiring sources and tables to provide their Timeline to the
    Coordinator."""
    world.run(cdc("external", "c"))
    context = timeline_context(world.view.timed(), [str(world.get("c").id)])
    assert context == TimelineDependent(ExternalTimeline(str(world.get("external").id)))
    world.run(table("t"))
    assert timeline_context(world.view.timed(), [str(world.get("t").id)]) == TimelineDependent(EPOCH_MILLISECONDS)


def test_all_sources_can_choose_a_timeline(world: World) -> None:
    """All sources can specify WITH (timeline='some_name') to choose the User variant. This will group any set of
    sources together if users need to join CDCv2 and realtime sources, or multiple CDCv2 sources."""
    world.run(CreateSource(name("s1"), "cdcv2", (("timeline", "some_name"),), (Export("a", ROWS),)))
    world.run(CreateSource(name("s2"), "cdcv2", (("timeline", "some_name"),), (Export("b", ROWS),)))
    world.run(CreateSource(name("s3"), "kafka", (("timeline", "some_name"),), (Export("c", ROWS),)))
    world.run(view("v", "a", "b", "c"))
    assert world.get("s1").timeline == UserTimeline("some_name")


def test_a_source_that_brings_times_is_joined_with_itself_only(world: World) -> None:
    """By default, a CDCv2 source is joinable only with itself. We do not allow them to join with even other CDCv2
    sources because of side effects in linearizability and time domains, which might like to advance to the most recent
    time."""
    world.run(source("s1", "a", "b", type="cdcv2"))
    world.run(cdc("s2", "c"))
    world.run(view("v", "a", "b"))
    with pytest.raises(MultipleTimelines):
        world.run(view("w", "a", "c"))


def test_a_source_may_claim_milliseconds(world: World) -> None:
    """CDCv2 sources have a special WITH (epoch_ms_timeline=true) syntax to put that source into the EpochMilliseconds
    timeline."""
    world.run(cdc("s", "a", claims_epoch=True))
    world.run(CreateSource(name("s2"), "cdcv2", (("epoch_ms_timeline", "true"),), (Export("b", ROWS),)))
    world.run(table("t"))
    world.run(view("v", "a", "b", "t"))
    assert (world.get("s").timeline, world.get("s").claims_epoch) == (EPOCH_MILLISECONDS, True)
    assert world.view.timed()[str(world.get("s2").id)].claims_epoch
    with pytest.raises(InvalidArgument):
        world.run(CreateSource(name("s3"), "kafka", (("epoch_ms_timeline", "true"),)))
    with pytest.raises(InvalidArgument):
        world.run(CreateSource(name("s3"), "cdcv2", (("epoch_ms_timeline", "false"),)))


def test_create_view_is_refused_over_several_timelines(world: World) -> None:
    """At the points in the system at which it is possible to join different sources together, we will return an error
    to the user if there is more than one timeline present."""
    world.run(table("t"))
    world.run(table("c", "U.x"))
    world.run(view("v", "c"))
    world.run(view("w", "v"))
    before = world.everything()
    for statement in (
        view("bad", "t", "w"),
        materialized("bad", "t", "w"),
        CreateCursor(name("bad"), "", (name("t"), name("w")), ROWS),
        hold("bad", "t", "c", max_lag=1),
    ):
        with pytest.raises(MultipleTimelines) as refused:
            world.run(statement)
        assert "persist.public.t" in refused.value.details["timelines"]
    with pytest.raises(MultipleTimelines) as refused:
        world.run(view("bad", "t", "w"))
    assert "persist.public.w > persist.public.v > persist.public.c" in refused.value.details["paths"]
    assert world.everything() == before


def test_what_a_view_is_made_of_is_crawled(world: World) -> None:
    """When a VIEW or SELECT is planned, its MirRelationExpr is crawled to discover all timelines."""
    world.run(table("c", "U.x"))
    for number in range(5):
        world.run(view(f"v{number}", "c" if not number else f"v{number - 1}"))
    world.run(materialized("mv", "v4"))
    world.run(index("i", "mv"))
    for each in ("v4", "mv", "i"):
        context = timeline_context(world.view.timed(), [str(world.get(each).id)])
        assert context == TimelineDependent(UserTimeline("x"))
    assert (world.get("mv").retain, world.get("i").retain) == (Retain(1), Retain(1))


# ---- what is derived -------------------------------------------------------------------------------------------------


def test_a_materialized_view_begins_where_its_inputs_do(world: World) -> None:
    world.run(table("t"))
    world.run(table("u"))
    world.at("u", since=17)
    effects, _ = world.run(materialized("mv", "t", "u"))
    made = world.get("mv")
    assert (effects.begins, effects.created) == (((made.id, 17),), (made,))
    assert (made.mode, made.refresh is not None, made.depends_on) == (
        "view",
        True,
        (Id(Space.USER, 1), Id(Space.USER, 2)),
    )
    world.run(view("v", "mv"))
    assert world.view.collections([world.get("v").id]) == (made.id,)


def test_an_index_has_the_same_rows_by_other_columns(world: World) -> None:
    world.run(table("t"))
    world.run(index("i", "t"))
    made = world.get("i")
    assert made.schema == Schema({"v": pa.string(), "k": pa.int64()})
    assert (made.depends_on, dict(made.options)) == ((world.get("t").id,), {"columns": "v", "key_columns": "1"})
    for wrong in (("nothing",), (), ("v", "v")):
        with pytest.raises(InvalidArgument):
            world.run(index("j", "t").__class__("j", name("t"), wrong))
    world.run(view("v", "t"))
    with pytest.raises(InvalidArgument, match="cannot be indexed"):
        world.run(index("j", "v"))
    world.run(drop(ObjectType.TABLE, "t", cascade=True))
    assert world.names(ObjectType.INDEX) == []


def test_what_the_system_computes_has_no_history(world: World) -> None:
    with pytest.raises(InvalidArgument, match="no history"):
        world.run(materialized("mv", "mz_holds"))
    world.run(view("v", "mz_holds"))
    with pytest.raises(InvalidArgument, match="no history"):
        world.run(materialized("mv", "v"))


def test_a_view_is_replaced_in_its_place(world: World) -> None:
    world.run(table("t"))
    world.run(table("u"))
    world.run(view("v", "t"))
    id = world.get("v").id
    world.run(view("v", "u", replace=True))
    assert (world.get("v").id, world.get("v").depends_on) == (id, (world.get("u").id,))
    with pytest.raises(InvalidArgument, match="does not read itself"):
        world.run(view("v", "v", replace=True))
    world.run(view("w", "v"))
    with pytest.raises(DependentObjects, match=r"persist\.public\.w"):
        world.run(view("v", "t", replace=True))
    with pytest.raises(InvalidArgument, match="this is no view"):
        world.run(view("t", "u", replace=True))


def test_queries_read_what_the_role_may_read(world: World) -> None:
    world.run(table("t"))
    world.run(CreateRole("alice"), Grant("C", ObjectType.SCHEMA, name("public"), ("alice",)))
    for statement in (
        view("v", "t"),
        materialized("v", "t"),
        CreateSink(name("v"), name("t"), "files", (("path", "x"),)),
    ):
        with pytest.raises(PrivilegeMissing, match="SELECT"):
            world.run(statement, session=ALICE)
    world.run(Grant("r", ObjectType.TABLE, name("t"), ("alice",)))
    world.run(view("v", "t"), session=ALICE)
    with pytest.raises(PrivilegeMissing, match="ownership"):
        world.run(index("i", "t"), session=ALICE)
    with pytest.raises(UnknownObject):
        world.run(view("w", "none"), session=ALICE)
    world.run(hold("h", "t"))
    with pytest.raises(InvalidArgument, match="a query cannot read this"):
        world.run(view("w", "h"))


def test_a_sink_is_on_something_stored(world: World) -> None:
    world.run(table("t"))
    world.run(CreateSink(name("k"), name("t"), "files", (("path", "x"),)))
    assert world.get("k").options == (("path", "x"), ("type", "files"))
    with pytest.raises(InvalidArgument, match="what is stored"):
        world.run(CreateSink(name("l"), name("mz_holds"), "files", (("path", "x"),)))


def test_names_taken_by_an_export_refuse_the_whole_source(world: World) -> None:
    world.run(table("b"))
    before = world.everything()
    with pytest.raises(UniquenessViolation):
        world.run(source("s", "a", "b"))
    assert world.everything() == before
    with pytest.raises(InvalidArgument, match="another item has this shard"):
        world.run(CreateSource(name("s"), "kafka", (), (Export("c", ROWS, world.get("b").data),)))
    remap = ShardId.named("remap")
    world.run(CreateSource(name("s"), "kafka", remap=remap))
    assert world.get("s").remap == remap
    key = StorageCollectionMetadataKey(world.get("s").id)
    assert world.snapshot.objects(STORAGE_COLLECTION_METADATA)[key].remap_shard == remap
    effects, _ = world.run(Leave(name("s")))
    assert (effects.left, effects.dropped) == ((remap,), ())


def test_a_source_that_a_pipeline_ingests_is_given_back_and_never_deleted_under_it(world: World) -> None:
    data, remap = ShardId.named("data"), ShardId.named("remap")
    made = CreateSource(name("s"), "cdcv2", (), (Export("a", ROWS, data),), f"E.{remap}", remap=remap, retain=Retain())
    world.run(made)
    # The timeline is that of the record, whatever the item's id is.
    assert (str(world.get("s").timeline), world.get("a").data) == (f"E.{remap}", data)
    world.run(view("v", "a"))
    for statement in (drop(ObjectType.SOURCE, "s", cascade=True), Drop(ObjectType.SCHEMA, (name("public"),), True)):
        with pytest.raises(InvalidArgument, match="a pipeline ingests") as refused:
            world.run(statement)
        assert "persist source drop" in refused.value.hint
    for each in ("a", "s"):
        with pytest.raises(DependentObjects):
            world.run(Leave(name(each)))
    effects, (done,) = world.run(Leave(name("s"), cascade=True))
    assert (set(effects.left), effects.dropped) == ({data, remap}, ())
    assert (done.notice, world.view.find(name("v"), ME)) == ("drop cascades to persist.public.v", None)
    world.run(made)
    assert world.get("a").data == data
    # Its source ends one by itself; as long as it does not, it is adopted again.
    effects, _ = world.run(Leave(name("a")))
    assert (effects.left, effects.dropped, world.view.find(name("a"), ME)) == ((data,), (), None)
    assert world.get("s").remap == remap
    world.run(made)
    assert world.get("a").data == data


def test_what_is_derived_begins_no_earlier_than_it_is_retained(world: World) -> None:
    """However much history its inputs have: a hold in the same transaction asks for more."""
    day = 24 * 3_600_000
    world.now_ms = 1_700_000_000_000
    world.run(table("t", retain=Retain(30 * day)))
    since, upper = world.now_ms - 30 * day, world.now_ms + 1
    world.at("t", since=since, upper=upper)
    for create, made in ((materialized("mv", "t"), "mv"), (index("i", "t"), "i")):
        effects, _ = world.run(create)
        assert effects.begins == ((world.get(made).id, upper - 1_000),)
    effects, _ = world.run(materialized("whole", "t"), hold("on_whole", "whole"))
    assert (effects.begins, effects.held[0].at) == (((world.get("whole").id, since),), since)
    effects, _ = world.run(materialized("some", "t"), hold("on_some", "some", at=since + 5))
    assert (effects.begins, effects.held[0].at) == (((world.get("some").id, since + 5),), since + 5)
    # What is complete already says how far back: not the clock, and not an input that was closed.
    world.at("t", since=since, upper=since + day)
    effects, _ = world.run(materialized("slow", "t"))
    assert effects.begins[0][1] == since + day - 1_000
    world.at("t", since=since, upper=None)
    effects, _ = world.run(materialized("closed", "t"))
    assert effects.begins[0][1] == since
    world.at("t", since=since, upper=world.now_ms + day)
    effects, _ = world.run(materialized("ahead", "t"))
    assert effects.begins[0][1] == world.now_ms + 1 - 1_000
