"""Names: what every environment begins with, where they are looked up, and what is said when nothing is there."""

import pytest
from sure import as_a
from unit.core.catalog.ddl.world import ME, ROWS, World, drop, hold, name, source, table, view
from unit.core.catalog.samples import commit, database, snapshot, user

from persist.core.catalog.ddl.bootstrap import bootstrap
from persist.core.catalog.ddl.described import SUPERUSER, Session
from persist.core.catalog.ddl.resolve import places
from persist.core.catalog.ddl.statements import (
    CreateDatabase,
    CreateRole,
    CreateSchema,
    CreateTable,
    QualifiedName,
    Rename,
    SetSystem,
)
from persist.core.catalog.ddl.system_tables import SYSTEM_COLLECTIONS, Live
from persist.core.catalog.ddl.variables import VARIABLES
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import PrivilegeMissing, UniquenessViolation, UnknownObject
from persist.core.catalog.kinds import DATABASE, ROLE, SCHEMA, SYSTEM_OBJECT_FINGERPRINT
from persist.core.catalog.objects import DatabaseKey, Role, RoleKey
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import Id, ObjectType, RoleRef, Space
from persist.core.frontier import Antichain
from persist.errors import InvalidArgument


@pytest.fixture
def world() -> World:
    return World()


def test_an_environment_begins_with_something(world: World) -> None:
    view = world.view
    assert [row.name for row in view.databases.values()] == ["persist"]
    assert sorted(row.name for row in view.schemas.values()) == ["mz_catalog", "persist_catalog", "public"]
    assert [(id, row.name, row.attributes.superuser) for id, row in view.roles.items()] == [
        (SUPERUSER, "persist", True)
    ]
    assert [row.name for row in view.clusters.values()] == ["default"]
    assert view.variables == {each: known.default for each, known in VARIABLES.items()}


def test_bootstrap_changes_nothing_the_second_time(world: World) -> None:
    tx = CatalogTransaction(world.snapshot)
    bootstrap(tx)
    assert tx.batch().changes == ()


def test_bootstrap_leaves_what_is_there_alone() -> None:
    older = snapshot(
        (DATABASE, DatabaseKey(user(1)), database("mine")), (ROLE, RoleKey(RoleRef(Space.USER, 1)), Role("persist"))
    )
    tx = CatalogTransaction(older)
    bootstrap(tx)
    commit(tx, older)
    names = {key.id: row.name for key, row in older.objects(DATABASE).items()}
    assert names == {user(1): "mine", user(2): "persist"}
    assert older.objects(ROLE)[RoleKey(SUPERUSER)].name == "persist_persist"
    assert (user(2), "public") in [(row.database_id, row.name) for row in older.objects(SCHEMA).values()]


def test_a_changed_system_collection_keeps_its_id(world: World) -> None:
    key, row = next(iter(world.snapshot.objects(SYSTEM_OBJECT_FINGERPRINT).items()))
    tx = CatalogTransaction(world.snapshot)
    tx.set(SYSTEM_OBJECT_FINGERPRINT, key, type(row)(row.item_id, row.global_id, "older"))
    world.commit(tx)
    tx = CatalogTransaction(world.snapshot)
    bootstrap(tx)
    world.commit(tx)
    assert world.snapshot.objects(SYSTEM_OBJECT_FINGERPRINT)[key] == row


def test_mz_holds_has_the_columns_of_the_design(world: World) -> None:
    """To monitor HOLDs, a new mz_catalog.mz_holds table will be maintained with structure: • id text: the HOLD's
    id • schema_id text • name text • at uint8: the HOLD's time"""
    world.run(table("t"))
    world.run(hold("h", "t"))
    schema = world.get("mz_catalog.mz_holds").schema
    assert schema is not None
    columns = [(field.name, str(field.type)) for field in (*schema.key, *schema.val)]
    assert columns == [("id", "string"), ("schema_id", "string"), ("name", "string"), ("at", "uint64")]
    assert rows(world, "mz_holds") == [{"id": "u2", "schema_id": "u3", "name": "h", "at": 10}]


def test_mz_hold_objects_describes_what_belongs_to_a_hold(world: World) -> None:
    """A mz_catalog.mz_hold_objects describes objects belonging to a HOLD • hold_id text: the HOLD's id • on_id text:
    the object's id"""
    world.run(table("t"))
    world.run(table("u"))
    world.run(hold("h", "u", "t"))
    assert rows(world, "mz_hold_objects") == [{"hold_id": "u3", "on_id": "u2"}, {"hold_id": "u3", "on_id": "u1"}]


def test_the_life_of_holds_is_shown(world: World) -> None:
    world.run(table("t"))
    world.run(hold("h", "t"))
    assert [(row["state"], row["reason"]) for row in rows(world, "holds")] == [("ok", "")]
    far = Live(uppers={world.get("t").id: Antichain.of(20_000_000)}, retained_bytes={world.get("h").id: 77})
    (late,) = rows(world, "holds", far)
    assert (late["state"], late["retained_bytes"]) == ("lagging", 77)
    assert late["reason"] == "it is behind persist.public.t by 5h33m19s990ms of the 3h that it may be"
    half = as_a(int, rows(world, "mz_holds")[0]["at"]) + as_a(int, late["max_lag"]) // 2
    near = [rows(world, "holds", Live(uppers={world.get("t").id: Antichain.of(half + more)})) for more in (0, 1)]
    assert [row["state"] for (row,) in near] == ["ok", "lagging"]


def test_system_collections_show_what_there_is(world: World) -> None:
    world.run(table("t", multiset=True))
    world.run(view("v", "t"))
    world.run(source("s", "fed", timeline="U.x"))
    by_name = {row["name"]: row for row in rows(world, "objects") if not row["is_system"]}
    assert {each: row["kind"] for each, row in by_name.items()} == {
        "t": "table", "v": "view", "s": "source", "fed": "subsource",
    }  # fmt: skip
    tables = {row["name"]: row for row in rows(world, "tables")}
    assert (tables["t"]["mode"], tables["t"]["multiset"], tables["t"]["timeline"]) == ("wal", True, "M")
    assert (tables["fed"]["source_id"], tables["fed"]["timeline"]) == (str(world.get("s").id), "U.x")
    assert [(row["name"], row["is_key"]) for row in rows(world, "columns") if row["id"] == "u1"] == [
        ("k", True),
        ("v", False),
    ]
    assert {row["id"]: row["on_id"] for row in rows(world, "dependencies")} == {"u2": "u1", "u4": "u3"}
    events = rows(world, "audit_events", Live(events=world.events))
    assert [(row["event_type"], row["name"]) for row in events] == [
        ("create", f"persist.public.{each}") for each in ("t", "v", "s", "fed")
    ]


def rows(world: World, of: str, live: Live | None = None) -> list[dict[str, object]]:
    (collection,) = (each for each in SYSTEM_COLLECTIONS if each.name == of)
    return collection.rows(world.view, live or Live()).to_pylist()


def test_a_name_may_say_its_schema_and_database(world: World) -> None:
    world.run(CreateSchema("other"))
    world.run(table("t"))
    world.run(table("other.t"))
    bare, full = world.get("t"), world.get("persist.other.t")
    assert (str(bare.name), str(full.name)) == ("persist.public.t", "persist.other.t")
    assert world.get("public.t").id == bare.id
    there = Session(path=(("persist", "other"), ("persist", "public")))
    assert world.view.resolve(name("t"), there).id == full.id


def test_a_name_of_the_system_is_found_bare_and_after_those_of_users(world: World) -> None:
    assert str(world.get("mz_holds").name) == "mz_catalog.mz_holds"
    assert world.get("persist.mz_catalog.mz_holds").id == world.get("mz_holds").id
    assert str(world.get("tables").name) == "persist_catalog.tables"
    world.run(table("tables"))
    assert str(world.get("tables").name) == "persist.public.tables"
    assert places(QualifiedName("t"), ME)[0] == ("persist", "public")


def test_an_unknown_name_names_what_is_near(world: World) -> None:
    world.run(CreateSchema("other"))
    world.run(table("flights"))
    world.run(table("other.birds"))
    with pytest.raises(UnknownObject, match=r"did you mean persist\.public\.flights") as refused:
        world.get("flihgts")
    assert refused.value.details["path"].startswith("persist.public, mz_catalog")
    with pytest.raises(UnknownObject, match=r"persist\.other\.birds"):
        world.get("birds")
    with pytest.raises(UnknownObject):
        world.get("nowhere.t")


@pytest.mark.parametrize("reserved", ["mz_t", "persist_t", "", "x" * 256, "a\nb"])
def test_reserved_and_malformed_names_are_refused(world: World, reserved: str) -> None:
    before = world.everything()
    for statement in (
        CreateTable(QualifiedName(reserved), ROWS),
        CreateSchema(reserved),
        CreateDatabase(reserved),
        CreateRole(reserved),
    ):
        with pytest.raises(InvalidArgument):
            world.run(statement)
    assert world.everything() == before


def test_nothing_is_made_in_schemas_of_the_system(world: World) -> None:
    with pytest.raises(InvalidArgument, match="the system made this"):
        world.run(table("mz_catalog.t"))
    with pytest.raises(InvalidArgument, match="the system made this"):
        world.run(drop(ObjectType.TABLE, "mz_holds"))
    with pytest.raises(InvalidArgument, match="the system made this"):
        world.run(Rename(ObjectType.TABLE, name("mz_holds"), "mine"))


def test_a_name_is_there_once(world: World) -> None:
    world.run(table("t"))
    for statement in (table("t"), view("t", "t"), source("s", "t")):
        with pytest.raises(UniquenessViolation, match=r"persist\.public\.t"):
            world.run(statement)
    assert world.names(ObjectType.SOURCE) == []


def test_databases_come_with_a_schema(world: World) -> None:
    world.run(CreateDatabase("d"))
    world.run(table("d.public.t"))
    _, (done,) = world.run(CreateDatabase("d", if_not_exists=True))
    assert done.notice == "database d exists, skipping"
    _, (done,) = world.run(CreateSchema("public", "d", if_not_exists=True))
    assert done.notice == "schema d.public exists, skipping"
    with pytest.raises(UniquenessViolation):
        world.run(CreateDatabase("d"))
    with pytest.raises(UniquenessViolation):
        world.run(CreateSchema("public"))


def test_system_variables(world: World) -> None:
    world.run(SetSystem("max_hold_lag", "2d"))
    assert world.view.variables["max_hold_lag"] == "2d"
    world.run(SetSystem("max_hold_lag", None))
    assert world.view.variables["max_hold_lag"] == "7d"
    with pytest.raises(InvalidArgument, match="did you mean max_hold_lag"):
        world.run(SetSystem("max_hold_lagg", "2d"))
    for wrong in ("soon", "0s"):
        with pytest.raises(InvalidArgument):
            world.run(SetSystem("max_hold_lag", wrong))
    world.run(CreateRole("alice"))
    with pytest.raises(PrivilegeMissing, match="superuser"):
        world.run(SetSystem("max_hold_lag", "2d"), session=Session("alice"))


def test_a_view_follows_changes_as_if_it_was_made_anew(world: World) -> None:
    kept = CatalogView(world.snapshot)
    version = world.snapshot.version
    for statement in (
        table("t"),
        view("v", "t"),
        hold("h", "t"),
        CreateSchema("other"),
        Rename(ObjectType.HOLD, name("h"), "g"),
        drop(ObjectType.TABLE, "t", cascade=True),
    ):
        world.run(statement)
        changes = world.snapshot.since(version)
        assert changes is not None
        kept.apply(changes)
        version = world.snapshot.version
        anew = CatalogView(world.snapshot)
        assert list(kept.items()) == list(anew.items()) == list(world.view.items())
        assert dict(kept.timed()) == dict(anew.timed())


def test_a_fork_changes_alone(world: World) -> None:
    world.run(table("t"))
    fork = world.view.fork()
    fork.apply([change for change in world.plan(view("v", "t"))[0].batch().changes])
    assert fork.find(name("v"), ME) is not None
    assert world.view.find(name("v"), ME) is None
    assert world.view.dependants(world.get("t").id) == []
    assert fork.dependants(world.get("t").id) == [Id(Space.USER, 2)]


def test_a_view_of_a_snapshot_that_forgot_is_made_anew(world: World) -> None:
    kept = world.view
    assert CatalogView.at(world.snapshot) is kept
    world.snapshot._log.clear()
    world.snapshot.version += 1
    assert CatalogView.at(world.snapshot) is not kept
