"""HOLD and CURSOR as statements. Design document 5, each sentence beside what shows it."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sure import as_a
from unit.core.catalog.ddl.world import (
    ME,
    ROWS,
    SINCE,
    World,
    drop,
    hold,
    index,
    materialized,
    name,
    source,
    table,
    view,
)

from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.effects import Born, Executed, Held
from persist.core.catalog.ddl.plan import plan
from persist.core.catalog.ddl.statements import (
    Acknowledge,
    AdvanceHold,
    CreateCursor,
    CreateDatabase,
    CreateHold,
    CreateRole,
    CreateSchema,
    CreateSink,
    Grant,
    Rename,
    SetOwner,
    SetSystem,
)
from persist.core.catalog.errors import OutOfSync, PrivilegeMissing, UniquenessViolation, UnknownObject
from persist.core.catalog.kinds import HOLD
from persist.core.catalog.objects import Hold as HoldRow
from persist.core.catalog.objects import HoldKey
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import AuditAlteredV1, ObjectType, Retain
from persist.core.frontier import Antichain
from persist.core.time.errors import DependentObjects, HoldOverdue, MultipleTimelines
from persist.core.time.hold import HOUR_MS, Interval, OnLag
from persist.core.time.timeline import EPOCH_MILLISECONDS
from persist.errors import InvalidArgument, NotReadable, ShardClosed

HOLD_TYPE, TABLE = ObjectType.HOLD, ObjectType.TABLE
ALICE = Session("alice")


@pytest.fixture
def world() -> World:
    made = World()
    made.run(table("t"))
    made.run(table("u"))
    made.run(view("v", "t"))
    made.run(materialized("mv", "t"))
    made.run(index("i", "t"))
    made.run(source("s", "fed", "fed_too"))
    return made


def test_a_hold_is_created_at_a_time(world: World) -> None:
    """If AT <time> is specified, the read hold is created at that time."""
    effects, (done,) = world.run(hold("h", "t", "u", at=15))
    made = world.get("h")
    assert done == Executed("CREATE HOLD", made.id, "persist.public.h")
    assert effects.held == (Held(made.id, (world.get("t").id, world.get("u").id), 15),)
    assert world.hold("h").at == 15
    assert made.depends_on == (world.get("t").id, world.get("u").id)


def test_objects_keep_their_order_and_are_each_there_once(world: World) -> None:
    world.run(hold("h", "u", "t"))
    assert world.hold("h").objects == (str(world.get("u").id), str(world.get("t").id))
    world.run(hold("g", "s", "t", "fed", "t"))
    assert world.get("g").depends_on == (world.get("fed").id, world.get("fed_too").id, world.get("t").id)


@pytest.mark.parametrize("on", ["i", "mv", "t", "s", "fed"])
def test_what_can_be_held(world: World, on: str) -> None:
    """A HOLD can be created on indexes, materialized views, tables, and sources."""
    world.run(hold("h", on))
    assert world.hold("h").at == 10


def test_what_cannot_be_held(world: World) -> None:
    """It cannot exist on sinks or unmaterialized views."""
    world.run(CreateSink(name("k"), name("t"), "files", (("path", "x"),)))
    for on in ("v", "k", "mz_catalog.mz_holds"):
        with pytest.raises((InvalidArgument, PrivilegeMissing)):
            world.run(hold("h", on))
    assert world.names(HOLD_TYPE) == []


def test_a_hold_on_a_source_is_on_what_it_feeds(world: World) -> None:
    world.run(hold("h", "s"))
    assert world.get("h").depends_on == (world.get("fed").id, world.get("fed_too").id)


def test_a_hold_on_an_object_is_none_on_its_indexes(world: World) -> None:
    """A HOLD on any non-index object will not also create the HOLD on any indexes of the object."""
    effects, _ = world.run(hold("h", "t"))
    assert effects.held[0].objects == (world.get("t").id,)


def test_objects_of_several_schemas_and_databases(world: World) -> None:
    """The objects the HOLD is created on do not need to be in the same schema or database."""
    world.run(CreateSchema("other"))
    world.run(CreateDatabase("far"))
    world.run(table("other.x"))
    world.run(table("far.public.y"))
    world.run(hold("h", "t", "other.x", "far.public.y"))
    assert len(world.hold("h").objects) == 3


def granted(world: World, privileges: str, kind: ObjectType, on: str) -> None:
    world.run(Grant(privileges, kind, name(on), ("alice",)))


def test_a_hold_is_made_where_the_role_may_create(world: World) -> None:
    """The HOLD can be created in any schema on which the user has a CREATE privilege (see (Alternatives)[#Alternatives]
    for other takes on this)."""
    world.run(CreateRole("alice"))
    granted(world, "r", TABLE, "t")
    with pytest.raises(PrivilegeMissing, match="CREATE"):
        world.run(hold("h", "t"), session=ALICE)
    granted(world, "C", ObjectType.SCHEMA, "public")
    world.run(hold("h", "t"), session=ALICE)


def test_privileges_on_objects_and_clusters(world: World) -> None:
    """The user must have a SELECT privilege on all objects and a USAGE privilege on all affected clusters."""
    world.run(CreateRole("alice"))
    granted(world, "C", ObjectType.SCHEMA, "public")
    granted(world, "r", TABLE, "t")
    with pytest.raises(PrivilegeMissing, match="SELECT"):
        world.run(hold("h", "t", "mv"), session=ALICE)
    granted(world, "r", ObjectType.MATERIALIZED_VIEW, "mv")
    world.run(Grant("U", ObjectType.CLUSTER, name("default"), ("PUBLIC",), revoke=True))
    with pytest.raises(PrivilegeMissing, match="USAGE"):
        world.run(hold("h", "t", "mv"), session=ALICE)
    granted(world, "U", ObjectType.CLUSTER, "default")
    world.run(hold("h", "t", "mv"), session=ALICE)


def test_no_time_below_what_is_readable(world: World) -> None:
    """For each object in the HOLD, the time must be in advance of that object's read frontier or any other HOLD's time
    on that object, otherwise an error occurs."""
    world.at("u", since=12)
    with pytest.raises(NotReadable) as refused:
        world.run(hold("h", "t", "u", at=11))
    assert refused.value.details["since"] == "[12]"
    world.run(hold("h", "t", at=10))
    world.at("t", since=18)
    world.run(hold("g", "t", at=10))
    with pytest.raises(NotReadable):
        world.run(hold("f", "t", at=9))


def test_without_a_time_it_is_the_least_valid_one(world: World) -> None:
    """If AT <time> is not specified, Materialize automatically chooses the least valid read frontier among all objects
    of the HOLD."""
    world.at("u", since=14)
    world.run(hold("h", "t", "u"))
    assert world.hold("h").at == 14


def test_closed_objects_cannot_be_held_without_a_time(world: World) -> None:
    world.at("t", since=None)
    with pytest.raises(ShardClosed):
        world.run(hold("h", "t"))


def test_holds_are_dropped(world: World) -> None:
    """A DROP will release its current read hold."""
    world.run(hold("h", "t"))
    effects, _ = world.run(drop(HOLD_TYPE, "h"))
    assert effects.changed == (world.get("t").id,)
    assert (effects.held, world.names(HOLD_TYPE), dict(world.snapshot.objects(HOLD))) == ((), [], {})


def test_advance_to_a_time(world: World) -> None:
    """If TO <time> is specified, the new time will be created at that time."""
    world.run(hold("h", "t"))
    effects, _ = world.run(AdvanceHold(name("h"), 17))
    assert (effects.held[0].at, world.hold("h").at) == (17, 17)
    assert as_a(AuditAlteredV1, world.events[-1].details).property == "at"


def test_how_far_back_an_advance_may_go(world: World) -> None:
    """For each object of the HOLD, the new time must be greater or equal to the lowest of all HOLDs (including this
    one) and the implied_capability. (This implies that a HOLD can go backward in time if another HOLD satisfies the
    above condition.)"""
    world.run(hold("h", "t", at=11))
    world.run(hold("g", "t", at=13))
    world.at("t", since=15)
    world.run(AdvanceHold(name("g"), 11))
    assert world.hold("g").at == 11
    world.run(AdvanceHold(name("g"), 16), AdvanceHold(name("h"), 16))
    with pytest.raises(NotReadable):
        world.run(AdvanceHold(name("g"), 14))
    world.run(AdvanceHold(name("g"), 15))


def test_advance_without_a_time(world: World) -> None:
    """If TO <time> is not specified, the new time is the least common physical read frontier of all objects named in
    the HOLD."""
    world.run(hold("h", "t", "u"))
    world.at("t", since=13)
    world.at("u", since=17)
    world.run(AdvanceHold(name("h")))
    assert world.hold("h").at == 17


def test_max_lag_has_a_default_and_a_bound(world: World) -> None:
    """The MAX LAG option (required, but defaults to '3h') is a duration. Its upper bound is limited by a LD-configured
    setting."""
    world.run(hold("h", "t"))
    assert world.hold("h").max_lag == 3 * HOUR_MS
    with pytest.raises(InvalidArgument, match="out of bounds"):
        world.run(hold("g", "t", max_lag=Interval.parse("8d")))
    world.run(SetSystem("max_hold_lag", "9d"))
    world.run(hold("g", "t", max_lag=Interval.parse("8d"), on_lag=OnLag.ERROR))
    assert world.hold("g").on_lag is OnLag.ERROR
    world.run(SetSystem("max_hold_lag", "1h"))
    with pytest.raises(InvalidArgument, match="out of bounds"):
        world.run(hold("f", "t", max_lag=Interval.parse("2h")))


def test_max_lag_counts_times_without_a_clock(world: World) -> None:
    world.run(table("c", "U.x"))
    with pytest.raises(InvalidArgument, match="number of times"):
        world.run(hold("h", "c"))
    world.run(hold("h", "c", max_lag=7))
    assert world.hold("h").max_lag == 7
    world.run(SetSystem("max_hold_lag_times", "6"))
    with pytest.raises(InvalidArgument, match="out of bounds"):
        world.run(hold("g", "c", max_lag=7))


def test_an_object_in_a_hold_is_not_dropped(world: World) -> None:
    """It is an error to DROP an object that is part of a HOLD unless the DROP is CASCADE."""
    world.run(hold("h", "u"))
    with pytest.raises(DependentObjects, match=r"persist\.public\.h \(hold\)"):
        world.run(drop(TABLE, "u"))
    assert world.names(HOLD_TYPE) == ["persist.public.h"]


def test_cascade_drops_the_whole_hold(world: World) -> None:
    """If the DROP is CASCADE, any HOLDs on the dropped object are also dropped (even if the HOLD is also over other
    objects)."""
    world.run(hold("h", "u", "fed"))
    effects, (done,) = world.run(drop(TABLE, "u", cascade=True))
    assert "persist.public.h" in done.notice
    assert world.names(HOLD_TYPE) == []
    assert effects.changed == (world.get("fed").id,)


def test_holds_are_renamed_and_swapped_in_a_transaction(world: World) -> None:
    """HOLDs cannot be mutated (objects added or removed) after creation, but they can be renamed in a transaction like
    other objects, and so can achieve the same goal."""
    world.run(hold("h", "t"))
    world.run(hold("wider", "t", "u"))
    first, second = world.get("h").id, world.get("wider").id
    world.run(Rename(HOLD_TYPE, name("h"), "wider", swap=True))
    assert (world.get("h").id, world.get("wider").id) == (second, first)
    world.run(Rename(HOLD_TYPE, name("wider"), "old"), Rename(HOLD_TYPE, name("h"), "newer"))
    assert (world.get("newer").id, world.get("old").id) == (second, first)
    world.run(hold("h", "t", "u", "fed"), drop(HOLD_TYPE, "newer"))
    assert len(world.hold("h").objects) == 3


def test_an_index_or_view_begins_at_its_hold(world: World) -> None:
    """In order to specify a HOLD on a new index or materialized view whose underlying object may have a long history,
    HOLDs support a special multi-statement DDL."""
    world.at("t", since=18)
    world.run(hold("h", "u"))
    for create, made in ((index("j", "u"), "j"), (materialized("m", "u"), "m")):
        world.at("u", since=18)
        effects, _ = world.run(create, hold(f"on_{made}", made, at=11))
        id = world.get(made).id
        assert (effects.begins, effects.held[0].at, effects.held[0].objects) == (((id, 11),), 11, (id,))
    with pytest.raises(NotReadable, match="does not reach back"):
        world.run(index("k", "u"), hold("on_k", "k", at=9))
    effects, _ = world.run(index("k", "u"), hold("on_k", "k"))
    assert (effects.begins[0][1], effects.held[0].at) == (18, 18)


def test_a_hold_on_a_new_table_is_at_its_beginning(world: World) -> None:
    effects, _ = world.run(table("new"), hold("h", "new"))
    assert effects.held[0].at == 0
    assert [str(each.name) for each in effects.created] == ["persist.public.new"]


def test_what_is_made_and_held_at_once_begins_now(world: World) -> None:
    world.now_ms = 1_700_000_000_000
    retained = world.now_ms - 1_000
    effects, _ = world.run(table("new"), hold("h", "new"))
    assert effects.held[0].at == retained
    assert effects.born == (Born(world.get("new").id, retained, EPOCH_MILLISECONDS),)
    cursor = CreateCursor(name("c"), "SELECT * FROM other", (name("other"),), ROWS)
    effects, _ = world.run(table("other", retain=Retain(60_000)), cursor)
    assert (effects.held[0].at, effects.born[0].at) == (world.now_ms - 60_000, world.now_ms - 60_000)
    effects, _ = world.run(source("new_s", "a", "b"), hold("on_s", "new_s"))
    assert {each.at for each in effects.born} == {retained}
    # On timelines without a clock, and where everything is retained, there is no such time.
    effects, _ = world.run(table("counted", timeline="C.b/s"), hold("on_counted", "counted", max_lag=5))
    assert (effects.held[0].at, effects.born) == (0, ())
    effects, _ = world.run(table("all", retain=Retain()), hold("on_all", "all"))
    assert (effects.held[0].at, effects.born) == (0, ())
    effects, _ = world.run(source("d", "e", type="cdcv2", timeline="E"), hold("on_d", "d", max_lag=5))
    assert (effects.held[0].at, effects.born) == (0, ())


def test_what_is_made_begins_earlier_where_its_hold_says(world: World) -> None:
    world.now_ms = 1_700_000_000_000
    effects, _ = world.run(table("new"), hold("h", "new", at=5))
    assert (effects.held[0].at, effects.born[0].at) == (5, 5)
    later = world.now_ms + 5
    effects, _ = world.run(table("late"), hold("g", "late", at=later))
    assert (effects.held[0].at, effects.born[0].at) == (later, world.now_ms - 1_000)


@pytest.mark.parametrize(
    "statements",
    [
        (table("a"), hold("h", "t")),
        (table("a"), hold("h", "a", "t")),
        (table("a"), table("b"), hold("h", "a")),
        (table("a"), hold("h", "a"), hold("g", "a")),
        (hold("h", "t"), table("a")),
        (hold("h", "t"), hold("g", "t")),
    ],
    ids=["another", "more", "two creates", "two holds", "hold first", "two holds alone"],
)
def test_one_hold_follows_one_create(world: World, statements: tuple[object, ...]) -> None:
    """In a transaction, exactly one CREATE HOLD statement is allowed to follow a CREATE statement if the HOLD names
    exactly and only the created object."""
    before = world.everything()
    with pytest.raises(InvalidArgument, match="one CREATE HOLD"):
        world.run(*statements)  # type: ignore[arg-type]
    assert world.everything() == before


def test_a_hold_on_a_new_source_counts_as_one_on_what_was_created(world: World) -> None:
    world.run(source("fresh", "a", "b"), hold("h", "fresh"))
    assert world.get("h").depends_on == (world.get("a").id, world.get("b").id)


def test_a_hold_on_all_of_a_schema_or_database(world: World) -> None:
    world.run(CreateSchema("other"))
    world.run(table("other.x"))
    world.run(table("other.y"))
    world.run(CreateHold(name("h"), all_of=("persist", "other")))
    assert world.get("h").depends_on == (world.get("other.x").id, world.get("other.y").id)
    world.run(CreateHold(name("all"), all_of=("persist",)))
    found = {str(world.view.name_of(id)) for id in world.get("all").depends_on}
    assert found == {f"persist.public.{each}" for each in ("t", "u", "mv", "i", "fed", "fed_too")} | {
        "persist.other.x",
        "persist.other.y",
    }
    world.run(CreateSchema("empty"))
    with pytest.raises(InvalidArgument, match="nothing that can be held"):
        world.run(CreateHold(name("none"), all_of=("persist", "empty")))
    world.run(table("other.z", "U.x"))
    with pytest.raises(MultipleTimelines, match=r"persist\.other\.z"):
        world.run(CreateHold(name("mixed"), all_of=("persist", "other")))


def test_objects_of_several_timelines_are_not_held_together(world: World) -> None:
    world.run(table("c", "U.x"))
    with pytest.raises(MultipleTimelines) as refused:
        world.run(hold("h", "t", "c", max_lag=7))
    assert "U.x: persist.public.c" in refused.value.details["timelines"]


def test_if_not_exists_says_so(world: World) -> None:
    world.run(hold("h", "t"))
    _, (done,) = world.run(hold("h", "u", if_not_exists=True))
    assert (done.id, done.notice) == (world.get("h").id, "hold persist.public.h exists, skipping")
    with pytest.raises(UniquenessViolation):
        world.run(hold("h", "u"))


def test_many_advances_have_an_outcome_each(world: World) -> None:
    """Due to performance concerns of users simultaneously advancing many HOLDs at once, and DDLs needing to be
    serialized, we will batch all incoming ADVANCE requests."""
    for each in ("h", "g"):
        world.run(hold(each, "t"))
    world.run(CreateRole("alice"))
    world.events.clear()
    effects, told = world.advance(
        (AdvanceHold(name("h"), 12), ME),
        (AdvanceHold(name("none"), 12), ME),
        (AdvanceHold(name("g"), 3), ME),
        (AdvanceHold(name("h"), 14), ME),
        (AdvanceHold(name("g"), 13), ALICE),
        (AdvanceHold(name("g"), 13), Session("nobody")),
        (AdvanceHold(name("g"), 16), ME),
    )
    assert [type(each) for each in told] == [
        Executed,
        UnknownObject,
        NotReadable,
        Executed,
        PrivilegeMissing,
        UnknownObject,
        Executed,
    ]
    assert (world.hold("h").at, world.hold("g").at) == (14, 16)
    assert {each.at for each in effects.held} == {14, 16}
    details = [as_a(AuditAlteredV1, event.details) for event in world.events]
    assert [(each.before, each.after) for each in details] == [("10", "14"), ("10", "16")]


def test_the_time_is_stored_in_the_catalog(world: World) -> None:
    """The time will be stored in the catalog, so a DDL operation is performed."""
    world.run(hold("h", "t", at=15))
    row = world.snapshot.get(HOLD, HoldKey(world.get("h").id))
    assert row == HoldRow(15, 3 * HOUR_MS, (world.get("t").id,), "M", OnLag.ADVANCE, 24 * HOUR_MS, world.now_ms)


def test_a_hold_that_ended_is_not_advanced(world: World) -> None:
    world.run(hold("h", "t", on_lag=OnLag.ERROR))
    key = HoldKey(world.get("h").id)
    tx = CatalogTransaction(world.snapshot)
    row = world.snapshot.get(HOLD, key)
    assert row is not None
    tx.set(HOLD, key, HoldRow(row.at, row.max_lag, row.objects, row.timeline, OnLag.ERROR, overdue_since_ms=5))
    world.commit(tx)
    with pytest.raises(HoldOverdue):
        world.run(AdvanceHold(name("h"), 18))
    world.run(drop(HOLD_TYPE, "h"))


def test_only_the_owner_advances_and_drops(world: World) -> None:
    world.run(hold("h", "t"))
    world.run(CreateRole("alice"))
    for statement in (AdvanceHold(name("h")), drop(HOLD_TYPE, "h"), Rename(HOLD_TYPE, name("h"), "g")):
        with pytest.raises(PrivilegeMissing):
            world.run(statement, session=ALICE)
    world.run(SetOwner(HOLD_TYPE, name("h"), "alice"))
    world.run(AdvanceHold(name("h"), 12), session=ALICE)


def test_times_that_were_not_asked_make_the_plan_again(world: World) -> None:
    with pytest.raises(OutOfSync):
        plan(CatalogTransaction(world.snapshot), [hold("h", "t")], ME, {}, 0)


# ---- cursors ---------------------------------------------------------------------------------------------------------


def cursor(text: str, *reads: str, **options: object) -> CreateCursor:
    return CreateCursor(name(text), "SELECT", tuple(map(name, reads)), ROWS, **options)  # type: ignore[arg-type]


def test_a_cursor_holds_what_its_query_reads(world: World) -> None:
    effects, _ = world.run(cursor("c", "v", "mv"))
    made = world.get("c")
    assert made.depends_on == (world.get("v").id, world.get("mv").id)
    assert effects.held == (Held(made.id, (world.get("t").id, world.get("mv").id), 10),)
    assert world.view.acknowledged(made.id) is None


def test_acknowledging_moves_the_hold_to_the_time_before(world: World) -> None:
    world.run(cursor("c", "t"))
    id = world.get("c").id
    effects, _ = world.run(Acknowledge(name("c"), 16))
    assert (world.view.acknowledged(id), world.hold("c").at, effects.held[0].at) == (16, 15, 15)


def test_acknowledging_never_goes_back(world: World) -> None:
    world.run(cursor("c", "t", at=14))
    id = world.get("c").id
    world.run(Acknowledge(name("c"), 12))
    assert (world.view.acknowledged(id), world.hold("c").at) == (12, 14)
    world.run(Acknowledge(name("c"), 18))
    _, (done,) = world.run(Acknowledge(name("c"), 13))
    assert (world.view.acknowledged(id), world.hold("c").at) == (18, 17)
    assert done.notice == "acknowledged up to 18 already"


@pytest.mark.parametrize("to", [0, 21])
def test_only_what_was_delivered_is_acknowledged(world: World, to: int) -> None:
    world.run(cursor("c", "t"))
    with pytest.raises(InvalidArgument, match="delivered"):
        world.run(Acknowledge(name("c"), to))


def test_a_cursor_is_no_hold_to_statements_and_goes_with_what_it_reads(world: World) -> None:
    world.run(cursor("c", "u"))
    with pytest.raises(InvalidArgument, match="this is no hold"):
        world.run(AdvanceHold(name("c")))
    with pytest.raises(DependentObjects, match="cursor"):
        world.run(drop(TABLE, "u"))
    world.run(drop(TABLE, "u", cascade=True))
    assert world.names(ObjectType.CURSOR) == []


def test_a_cursor_over_nothing_that_is_stored_is_refused(world: World) -> None:
    with pytest.raises(InvalidArgument, match="what is stored"):
        world.run(cursor("c"))
    with pytest.raises(InvalidArgument, match="no history"):
        world.run(cursor("c", "mz_holds"))


@contextmanager
def calls() -> Iterator[list[int]]:
    """How many functions are called in the block."""
    count = [0]

    def seen(_frame: object, event: str, _argument: object) -> None:
        count[0] += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield count
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("what", ["create", "hold", "acknowledge", "advance", "drop", "view"])
def test_a_statement_costs_the_same_however_many_hold_the_same(what: str) -> None:
    costs = []
    for there in (50, 400):
        world = World()
        world.run(table("t"))
        world.at("t", since=SINCE, upper=1_000)
        for first in range(0, there, 50):
            world.run(*(cursor(f"c{number}", "t") for number in range(first, first + 50)))
        world.run(hold("h", "t"))
        with calls() as count:
            match what:
                case "create":
                    world.plan(*(cursor(f"d{number}", "t") for number in range(40)))
                case "hold":
                    world.plan(hold("g", "t", at=12))
                case "acknowledge":
                    world.advance(*((Acknowledge(name(f"c{number}"), 15), ME) for number in range(40)))
                case "advance":
                    world.advance(*((AdvanceHold(name("h"), 11 + number // 8), ME) for number in range(40)))
                case "drop":
                    world.plan(*(drop(ObjectType.CURSOR, f"c{number}") for number in range(40)))
                case "view":
                    world.plan(*(materialized(f"m{number}", "t") for number in range(40)))
        costs.append(count[0])
    assert costs[1] < 2 * costs[0], costs


def test_how_far_back_a_collection_is_readable_is_known_without_looking_at_all_that_hold_it() -> None:
    rng = random.Random(7)
    world = World()
    for each in ("t", "u"):
        world.run(table(each))
        world.at(each, since=SINCE, upper=1_000)
    held: list[str] = []
    for number in range(200):
        if held and rng.random() < 0.3:
            world.run(drop(HOLD_TYPE, held.pop(rng.randrange(len(held)))))
        elif held and rng.random() < 0.5:
            world.advance((AdvanceHold(name(rng.choice(held)), rng.randrange(SINCE, 1_000)), ME))
        else:
            held.append(f"h{number}")
            world.run(hold(held[-1], *rng.choice((("t",), ("u",), ("t", "u"))), at=rng.randrange(SINCE, 1_000)))
        implied = {world.get(each).id: Antichain.of(rng.randrange(2_000)) for each in ("t", "u")}
        for seen in (world.view, world.view.fork()):
            whole, least = seen.holds(implied), seen.least_holds(implied, implied)
            assert len(least.by_name) <= 2
            assert least.sinces() == whole.sinces()
            for id in map(str, implied):
                times = [hold.at for hold in whole.on(id)]
                assert whole.since_of(id).time == min([*times, whole.implied[id].time or 0])
