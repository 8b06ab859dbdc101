"""Names that change, owners, privileges, policies, comments; what goes with what is dropped; refusals."""

import pytest
from unit.core.catalog.ddl.world import ME, World, drop, hold, index, materialized, name, source, table, view

from persist.core.catalog.ddl.described import SUPERUSER, Session
from persist.core.catalog.ddl.plan import plan
from persist.core.catalog.ddl.privileges import check_may_in_system, letters, may_in_system
from persist.core.catalog.ddl.statements import (
    CommentOn,
    CreateDatabase,
    CreateRole,
    CreateSchema,
    Grant,
    Rename,
    SetOwner,
    SetRetain,
)
from persist.core.catalog.errors import OutOfSync, PrivilegeMissing, UniquenessViolation, UnknownObject
from persist.core.catalog.kinds import COMMENT, SYSTEM_PRIVILEGE
from persist.core.catalog.objects import Comment, CommentKey
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import AuditEventType, AuditRenamedV1, ObjectType, Retain
from persist.core.time.errors import DependentObjects
from persist.errors import InvalidArgument

T = ObjectType
ALICE = Session("alice")


@pytest.fixture
def world() -> World:
    made = World()
    made.run(table("t"))
    made.run(CreateRole("alice"))
    made.events.clear()
    return made


def test_a_renamed_item_is_the_same(world: World) -> None:
    id = world.get("t").id
    world.run(Rename(T.TABLE, name("t"), "u"))
    assert world.get("u").id == id
    assert world.view.find(name("t"), ME) is None
    (event,) = world.events
    assert event.details == AuditRenamedV1(str(id), "persist.public.t", "persist.public.u")
    assert event.event_type is AuditEventType.ALTER


def test_a_name_that_is_taken_is_not_given_again(world: World) -> None:
    world.run(table("u"))
    with pytest.raises(UniquenessViolation):
        world.run(Rename(T.TABLE, name("t"), "u"))
    with pytest.raises(InvalidArgument, match="reserved"):
        world.run(Rename(T.TABLE, name("t"), "mz_t"))
    with pytest.raises(UnknownObject):
        world.run(Rename(T.TABLE, name("none"), "v"))
    _, (done,) = world.run(Rename(T.TABLE, name("none"), "v", if_exists=True))
    assert done.notice == "none does not exist, skipping"


def test_two_tables_swap_their_names_and_keep_their_shards(world: World) -> None:
    world.run(table("u"))
    t, u = world.get("t"), world.get("u")
    world.run(Rename(T.TABLE, name("t"), "u", swap=True))
    assert (world.get("u").data, world.get("t").data) == (t.data, u.data)


def test_what_a_query_names_keeps_its_name(world: World) -> None:
    world.run(view("v", "t"))
    with pytest.raises(DependentObjects, match=r"persist\.public\.v") as refused:
        world.run(Rename(T.TABLE, name("t"), "u"))
    assert "drop them first" in refused.value.hint
    with pytest.raises(DependentObjects):
        world.run(Rename(T.SCHEMA, name("public"), "elsewhere"))
    world.run(hold("h", "t"))
    world.run(Rename(T.HOLD, name("h"), "g"))


def test_schemas_databases_and_roles_are_renamed(world: World) -> None:
    world.run(CreateSchema("s"))
    world.run(table("s.x"))
    world.run(Rename(T.SCHEMA, name("s"), "r"))
    assert str(world.get("r.x").name) == "persist.r.x"
    world.run(CreateDatabase("d"))
    world.run(Rename(T.DATABASE, name("d"), "e"))
    world.run(Rename(T.ROLE, name("alice"), "bob"))
    assert world.view.role("bob")
    with pytest.raises(InvalidArgument, match="swap"):
        world.run(Rename(T.SCHEMA, name("r"), "public", swap=True))
    with pytest.raises(InvalidArgument, match="the system made this"):
        world.run(Rename(T.SCHEMA, name("mz_catalog"), "mine"))


def test_owners_change(world: World) -> None:
    world.run(SetOwner(T.TABLE, name("t"), "alice"))
    assert world.get("t").owner == world.view.role("alice")
    with pytest.raises(PrivilegeMissing, match="membership"):
        world.run(SetOwner(T.TABLE, name("t"), "persist"), session=ALICE)
    for kind, of in ((T.SCHEMA, "public"), (T.DATABASE, "persist"), (T.CLUSTER, "default")):
        world.run(SetOwner(kind, name(of), "alice"))
    world.run(drop(T.TABLE, "t"), session=ALICE)
    with pytest.raises(UnknownObject, match="role"):
        world.run(SetOwner(T.SCHEMA, name("public"), "nobody"))


def test_privileges_are_granted_and_taken_back(world: World) -> None:
    world.run(Grant("ra", T.TABLE, name("t"), ("alice", "PUBLIC")))
    assert letters(world.get("t").acls) == "p=ar/s1,u1=ar/s1"
    world.run(Grant("a", T.TABLE, name("t"), ("alice",), revoke=True))
    assert letters(world.get("t").acls) == "p=ar/s1,u1=r/s1"
    world.run(Grant("ar", T.TABLE, name("t"), ("alice",), revoke=True))
    assert letters(world.get("t").acls) == "p=ar/s1"
    assert [event.event_type.value for event in world.events] == ["grant", "revoke", "revoke"]
    with pytest.raises(InvalidArgument, match="no such privilege"):
        world.run(Grant("U", T.TABLE, name("t"), ("alice",)))
    with pytest.raises(PrivilegeMissing, match="ownership"):
        world.run(Grant("r", T.TABLE, name("t"), ("alice",)), session=ALICE)


def test_privileges_on_the_environment(world: World) -> None:
    with pytest.raises(PrivilegeMissing):
        world.run(CreateDatabase("d"), session=ALICE)
    world.run(Grant("CA", T.SYSTEM, name("x"), ("alice",)))
    world.run(CreateDatabase("d"), session=ALICE)
    alice = world.view.role("alice")
    check_may_in_system(world.view, alice, "A")
    world.run(Grant("CA", T.SYSTEM, name("x"), ("alice",), revoke=True))
    assert not may_in_system(world.view, alice, "A")
    assert may_in_system(world.view, SUPERUSER, "A")
    assert dict(world.snapshot.objects(SYSTEM_PRIVILEGE)) == {}
    with pytest.raises(PrivilegeMissing, match="superuser"):
        world.run(Grant("C", T.SYSTEM, name("x"), ("alice",)), session=ALICE)


def test_history_is_retained_differently(world: World) -> None:
    effects, _ = world.run(SetRetain(T.TABLE, name("t"), Retain(5)))
    assert (world.get("t").retain, effects.changed) == (Retain(5), (world.get("t").id,))
    world.run(source("s", "a", "b"))
    effects, _ = world.run(SetRetain(T.SOURCE, name("s"), Retain()))
    assert [world.get(each).retain for each in ("s", "a", "b")] == [Retain()] * 3
    assert effects.changed == (world.get("a").id, world.get("b").id)
    world.run(view("v", "t"))
    with pytest.raises(InvalidArgument, match="no history"):
        world.run(SetRetain(T.VIEW, name("v"), Retain(5)))


def test_comments_follow_what_they_are_on(world: World) -> None:
    id = world.get("t").id
    world.run(CommentOn(T.TABLE, name("t"), "rows"), CommentOn(T.TABLE, name("t"), "a value", "v"))
    world.run(CommentOn(T.SCHEMA, name("public"), "first"))
    world.run(Rename(T.TABLE, name("t"), "u"))
    found = dict(world.snapshot.objects(COMMENT))
    assert (found[CommentKey(T.TABLE, id)], found[CommentKey(T.TABLE, id, 2)]) == (Comment("rows"), Comment("a value"))
    with pytest.raises(UnknownObject, match="column"):
        world.run(CommentOn(T.TABLE, name("u"), "?", "w"))
    world.run(CommentOn(T.TABLE, name("u"), None))
    world.run(drop(T.TABLE, "u"))
    assert [key.object_type for key in world.snapshot.objects(COMMENT)] == [T.SCHEMA]


# ---- dropping --------------------------------------------------------------------------------------------------------


def test_drop_refuses_with_the_list_and_cascade_names_what_goes(world: World) -> None:
    world.run(view("v", "t"))
    world.run(materialized("mv", "v"))
    world.run(index("i", "mv"))
    with pytest.raises(DependentObjects) as refused:
        world.run(drop(T.TABLE, "t"))
    assert refused.value.details["ids"] == (
        "persist.public.i (index), persist.public.mv (materialized view), persist.public.v (view)"
    )
    shards = {world.get(each).data for each in ("t", "mv", "i")}
    effects, (done,) = world.run(drop(T.TABLE, "t", cascade=True))
    assert done.notice == "drop cascades to persist.public.i, persist.public.mv, persist.public.v"
    assert set(effects.dropped) == shards
    assert [event.event_type.value for event in world.events[-4:]] == ["drop"] * 4


def test_of_many_dependants_some_are_named(world: World) -> None:
    world.run(*(view(f"v{number}", "t") for number in range(230)))
    with pytest.raises(DependentObjects, match="and 210 more"):
        world.run(drop(T.TABLE, "t"))
    _, (done,) = world.run(drop(T.TABLE, "t", cascade=True))
    assert done.notice.endswith(" and 30 more")
    assert world.names(T.VIEW) == []


def test_indexes_go_with_what_they_are_on(world: World) -> None:
    world.run(index("i", "t"))
    _, (done,) = world.run(drop(T.TABLE, "t"))
    assert done.notice == "drop cascades to persist.public.i"


def test_several_are_dropped_at_once(world: World) -> None:
    world.run(view("v", "t"))
    world.run(view("w", "v"))
    world.run(drop(T.VIEW, "v", "w"))
    _, (done,) = world.run(drop(T.TABLE, "t", "none", if_exists=True))
    assert done.notice == "table none does not exist, skipping"
    with pytest.raises(UnknownObject):
        world.run(drop(T.TABLE, "t"))


def test_the_wrong_kind_is_not_dropped(world: World) -> None:
    world.run(view("v", "t"))
    with pytest.raises(InvalidArgument, match="it is a view"):
        world.run(drop(T.TABLE, "v", if_exists=True))


def test_schemas_and_databases_go_with_what_is_in_them(world: World) -> None:
    world.run(CreateDatabase("d"))
    world.run(CreateSchema("s", "d"))
    world.run(table("d.s.x"))
    with pytest.raises(DependentObjects, match=r"d\.s\.x"):
        world.run(drop(T.SCHEMA, "d.s"))
    with pytest.raises(DependentObjects, match=r"d\.s\.x"):
        world.run(drop(T.DATABASE, "d"))
    world.run(view("v", "d.s.x"))
    _, (done,) = world.run(drop(T.SCHEMA, "d.s", cascade=True))
    assert "persist.public.v" in done.notice
    world.run(drop(T.DATABASE, "d"))
    assert [row.name for row in world.view.databases.values()] == ["persist"]
    assert {row.name for row in world.view.schemas.values()} == {"public", "mz_catalog", "persist_catalog"}
    with pytest.raises(InvalidArgument, match="the system made this"):
        world.run(drop(T.SCHEMA, "mz_catalog", cascade=True))


def test_roles_are_dropped_when_they_have_nothing(world: World) -> None:
    world.run(Grant("r", T.TABLE, name("t"), ("alice",)))
    with pytest.raises(DependentObjects):
        world.run(drop(T.ROLE, "alice"))
    world.run(Grant("r", T.TABLE, name("t"), ("alice",), revoke=True))
    world.run(drop(T.ROLE, "alice"))
    with pytest.raises(UnknownObject):
        world.run(drop(T.ROLE, "alice"))
    world.run(drop(T.ROLE, "alice", if_exists=True))
    with pytest.raises(InvalidArgument):
        world.run(drop(T.ROLE, "persist"))


def test_what_is_made_and_dropped_at_once_was_never_there(world: World) -> None:
    effects, _ = world.run(table("x"), drop(T.TABLE, "x"))
    assert (effects.created, effects.dropped) == ((), ())


# ---- all or nothing --------------------------------------------------------------------------------------------------


def test_a_refused_plan_leaves_the_transaction_as_it_was(world: World) -> None:
    tx = CatalogTransaction(world.snapshot)
    plan(tx, [table("before")], ME, {}, 0)
    before = tx.batch()
    with pytest.raises(UnknownObject):
        plan(tx, [table("x"), view("v", "x"), drop(T.TABLE, "none")], ME, {}, 0)
    assert tx.batch() == before
    world.commit(tx)
    assert world.names(T.TABLE) == ["persist.public.t", "persist.public.before"]


def test_statements_of_one_transaction_see_each_other(world: World) -> None:
    world.run(table("x"), view("v", "x"), Rename(T.VIEW, name("v"), "w"), CommentOn(T.VIEW, name("w"), "?"))
    assert world.get("w").depends_on == (world.get("x").id,)


def test_what_changed_meanwhile_is_a_conflict(world: World) -> None:
    made, _, _ = world.plan(view("v", "t"))
    world.run(drop(T.TABLE, "t"))
    with pytest.raises(OutOfSync):
        made.batch()
    world.run(table("u"))
    dropped, _, _ = world.plan(drop(T.TABLE, "u"))
    world.run(view("v", "u"))
    with pytest.raises(OutOfSync):
        dropped.batch()
