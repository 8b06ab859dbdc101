"""Transactions: read-your-writes, uniqueness, failures without effect, batches. Catalog-semantics.md section 1.2.6."""

from dataclasses import replace
from typing import Any

import pytest
from steps import steps_of_the_loop
from unit.core.catalog.samples import (
    OWNER,
    changes,
    cluster,
    commit,
    database,
    everything,
    item,
    schema,
    snapshot,
    system,
    token,
    user,
)

from persist.core.catalog.errors import DuplicateKey, IdExhaustion, OutOfSync, UniquenessViolation
from persist.core.catalog.kinds import (
    CLUSTER,
    CLUSTER_REPLICA,
    COMMIT,
    DATABASE,
    FENCE_TOKEN,
    ID_ALLOCATOR,
    ITEM,
    KINDS,
    ROLE,
    SCHEMA,
    SETTING,
    STORAGE_USAGE,
)
from persist.core.catalog.objects import (
    ClusterKey,
    ClusterReplica,
    ClusterReplicaKey,
    Commit,
    CommitKey,
    DatabaseKey,
    FenceTokenKey,
    IdAllocator,
    IdAllocatorKey,
    ItemKey,
    Role,
    RoleKey,
    SchemaKey,
    Setting,
    SettingKey,
    StorageUsageKey,
)
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import U64_MAX, ManagedLocation, ObjectType, RoleRef, Space, Unit
from persist.core.ids import Token
from persist.errors import InvalidArgument
from persist.wire.catalog.rows import CODEC

ONE, TWO, THREE = (DatabaseKey(user(n)) for n in (1, 2, 3))
USAGE = StorageUsageKey(1, None, 2, 3)


def replica(name: str, of: int) -> ClusterReplica:
    return ClusterReplica(user(of), name, OWNER, ManagedLocation("small"))


@pytest.fixture
def state() -> Snapshot:
    return snapshot((DATABASE, ONE, database("a")), (DATABASE, TWO, database("b")))


def test_transaction_reads_its_own_writes(state):
    tx = CatalogTransaction(state)
    tx.insert(DATABASE, THREE, database("c"))
    tx.set(DATABASE, ONE, None)
    tx.set(DATABASE, TWO, database("z"))
    assert tx.get(DATABASE, ONE) is None
    assert tx.objects(DATABASE) == {TWO: database("z"), THREE: database("c")}
    assert (tx.find(DATABASE, ("c",)), tx.find(DATABASE, ("a",))) == (THREE, None)
    assert state.objects(DATABASE) == {ONE: database("a"), TWO: database("b")}, "no other sees them"


def test_insert_over_a_key_is_refused(state):
    tx = CatalogTransaction(state)
    with pytest.raises(DuplicateKey):
        tx.insert(DATABASE, ONE, database("new"))
    tx.insert(DATABASE, THREE, database("c"))
    with pytest.raises(DuplicateKey):
        tx.insert(DATABASE, THREE, database("d"))


def test_insert_of_a_taken_name_is_refused_naming_who_has_it(state):
    with pytest.raises(UniquenessViolation) as told:
        CatalogTransaction(state).insert(DATABASE, THREE, database("a"))
    assert told.value.details["clashing_key"] == str(ONE)
    assert told.value.details["kind"] == "database"


def test_set_returns_the_previous_value(state):
    tx = CatalogTransaction(state)
    assert tx.set(DATABASE, ONE, database("x")) == database("a")
    assert tx.set(DATABASE, ONE, None) == database("x")
    assert tx.set(DATABASE, ONE, database("y")) is None


def test_update_changes_what_it_returns_a_value_for_and_counts(state):
    tx = CatalogTransaction(state)
    assert tx.update(DATABASE, lambda key, it: replace(it, name="z") if key == ONE else None) == 1
    assert tx.objects(DATABASE) == {ONE: database("z"), TWO: database("b")}


def test_delete_returns_what_is_gone(state):
    tx = CatalogTransaction(state)
    assert tx.delete(DATABASE, lambda key, _: key == ONE) == [(ONE, database("a"))]
    assert tx.objects(DATABASE) == {TWO: database("b")}


def test_update_may_let_names_change_hands(state):
    tx = CatalogTransaction(state)
    tx.update(DATABASE, lambda _, it: replace(it, name={"a": "b", "b": "a"}[it.name]))
    assert (tx.find(DATABASE, ("a",)), tx.find(DATABASE, ("b",))) == (TWO, ONE)


def test_delete_then_insert_of_the_same_unique_name_is_legal(state):
    tx = CatalogTransaction(state)
    tx.set(DATABASE, ONE, None)
    tx.insert(DATABASE, THREE, database("a"))
    assert changes(tx) == [(ONE, database("a"), None), (THREE, None, database("a"))]


def _raise(*_):
    raise RuntimeError("of the caller")


@pytest.mark.parametrize(
    ("operation", "refusal"),
    [
        (lambda tx: tx.insert(DATABASE, THREE, database("b")), UniquenessViolation),
        (lambda tx: tx.insert(DATABASE, TWO, database("new")), DuplicateKey),
        (lambda tx: tx.set(DATABASE, ONE, database("b")), UniquenessViolation),
        (lambda tx: tx.set_all(DATABASE, [(THREE, database("c")), (ONE, database("b"))]), UniquenessViolation),
        (lambda tx: tx.update(DATABASE, lambda _, it: replace(it, name="same")), UniquenessViolation),
        (lambda tx: tx.update(DATABASE, _raise), RuntimeError),
        (lambda tx: tx.delete(DATABASE, _raise), RuntimeError),
        (lambda tx: tx.allocate("nothing"), InvalidArgument),
        (lambda tx: tx.allocate("user", U64_MAX), IdExhaustion),
        (lambda tx: tx.insert(STORAGE_USAGE, USAGE, Unit()), DuplicateKey),
    ],
    ids=[
        "insert",
        "insert over",
        "set",
        "set all",
        "update",
        "update raises",
        "delete raises",
        "name",
        "ids",
        "append",
    ],
)
def test_failed_operation_changes_nothing_and_the_transaction_goes_on(state, operation, refusal):
    tx = CatalogTransaction(state)
    tx.set(DATABASE, ONE, database("x"))
    tx.insert(STORAGE_USAGE, USAGE, Unit())
    before = tx.batch()
    with pytest.raises(refusal):
        operation(tx)
    assert tx.batch() == before
    tx.insert(DATABASE, THREE, database("a"))
    commit(tx, state)
    assert state.objects(DATABASE) == {ONE: database("x"), TWO: database("b"), THREE: database("a")}


# ---- uniqueness ------------------------------------------------------------------------------------------------------

R1, R2 = (RoleKey(RoleRef(Space.USER, n)) for n in (1, 2))
I1, I2 = (ItemKey(user(n)) for n in (1, 2))
CLASHES = {
    "database(name)": (DATABASE, ONE, TWO, database("n"), database("n"), database("m")),
    "schema(database, name)": (
        SCHEMA,
        SchemaKey(user(1)),
        SchemaKey(user(2)),
        schema("n", user(1)),
        schema("n", user(1)),
        schema("n", user(2)),
    ),
    "schema(ambient, name)": (
        SCHEMA,
        SchemaKey(system(1)),
        SchemaKey(system(2)),
        schema("n"),
        schema("n"),
        schema("n", user(2)),
    ),
    "role(name)": (ROLE, R1, R2, Role("n"), Role("n"), Role("m")),
    "cluster(name)": (CLUSTER, ClusterKey(user(1)), ClusterKey(user(2)), cluster("n"), cluster("n"), cluster("m")),
    "replica(cluster, name)": (
        CLUSTER_REPLICA,
        ClusterReplicaKey(user(1)),
        ClusterReplicaKey(user(2)),
        replica("n", 1),
        replica("n", 1),
        replica("n", 2),
    ),
    "item(schema, name)": (ITEM, I1, I2, item("n"), item("n"), item("n", of=2)),
    "item(schema, name, session)": (ITEM, I1, I2, item("n", session="x"), item("n", session="x"), item("n")),
}


@pytest.mark.parametrize("case", CLASHES.values(), ids=CLASHES)
def test_uniqueness_of(case):
    kind, one, two, value, clashing, free = case
    tx = CatalogTransaction(snapshot((kind, one, value)))
    with pytest.raises(UniquenessViolation):
        tx.insert(kind, two, clashing)
    tx.insert(kind, two, free)
    with pytest.raises(UniquenessViolation):
        tx.set(kind, two, clashing)


NOT_TYPES = [
    ObjectType.TABLE,
    ObjectType.SOURCE,
    ObjectType.SUBSOURCE,
    ObjectType.VIEW,
    ObjectType.MATERIALIZED_VIEW,
    ObjectType.INDEX,
    ObjectType.SINK,
    ObjectType.FUNCTION,
    ObjectType.SECRET,
    ObjectType.CONNECTION,
    ObjectType.HOLD,
    ObjectType.CURSOR,
]
MAKES_ROW_TYPE = NOT_TYPES[:5]


@pytest.mark.parametrize("kind", NOT_TYPES)
@pytest.mark.parametrize("type_first", [True, False], ids=["type first", "type last"])
def test_a_type_and_a_non_type_clash_only_if_that_makes_a_row_type(kind, type_first):
    pair = [item("n", ObjectType.TYPE), item("n", kind)]
    first, second = pair if type_first else reversed(pair)
    tx = CatalogTransaction(snapshot((ITEM, I1, first)))
    if kind in MAKES_ROW_TYPE:
        with pytest.raises(UniquenessViolation):
            tx.insert(ITEM, I2, second)
    else:
        tx.insert(ITEM, I2, second)


def test_two_non_types_always_clash():
    for kind in NOT_TYPES:
        with pytest.raises(UniquenessViolation):
            CatalogTransaction(snapshot((ITEM, I1, item("n")))).insert(ITEM, I2, item("n", kind))


def test_other_kinds_are_unique_by_key_only():
    tx = CatalogTransaction(Snapshot())
    tx.insert(SETTING, SettingKey("a"), Setting("same"))
    tx.insert(SETTING, SettingKey("b"), Setting("same"))
    with pytest.raises(DuplicateKey):
        tx.insert(SETTING, SettingKey("a"), Setting("other"))


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_insert_and_delete_in_one_transaction_is_no_change(state):
    tx = CatalogTransaction(state)
    tx.insert(DATABASE, THREE, database("c"))
    tx.set(DATABASE, THREE, None)
    assert changes(tx) == []


def test_set_to_the_same_is_no_change(state):
    tx = CatalogTransaction(state)
    tx.set(DATABASE, ONE, database("other"))
    tx.set(DATABASE, ONE, database("a"))
    assert changes(tx) == []
    assert tx.batch().rows(CODEC, 5) == []


def test_many_sets_of_one_key_are_one_change(state):
    tx = CatalogTransaction(state)
    for name in "xyz":
        tx.set(DATABASE, ONE, database(name))
    assert tx.batch().rows(CODEC, 5) == [
        (CODEC.encode("database", ONE, database("a")), -1),
        (CODEC.encode("database", ONE, database("z")), 1),
    ]


def test_set_all_retracts_what_is_there_skips_equals_and_adds_the_rest(state):
    tx = CatalogTransaction(state)
    tx.set_all(DATABASE, [(ONE, database("a")), (TWO, database("y")), (THREE, database("c"))])
    assert changes(tx) == [(TWO, database("b"), database("y")), (THREE, None, database("c"))]


def test_changes_say_which_operation_they_are_of(state):
    tx = CatalogTransaction(state)
    tx.set(DATABASE, ONE, database("x"))
    assert tx.next_op() == 1
    tx.set(DATABASE, TWO, database("y"))
    assert [change.op for change in tx.batch().changes] == [0, 1]


def test_token_leaves_a_row_with_the_batch(state):
    mine = Token.of(bytes(16))
    tx = CatalogTransaction(state, token=mine)
    assert tx.batch().rows(CODEC, 9) == [], "a transaction without changes leaves nothing"
    tx.set(DATABASE, ONE, None)
    assert tx.batch().rows(CODEC, 9)[-1] == (CODEC.encode("commit", CommitKey(mine), Commit(9)), 1)
    commit(tx, state, 9)
    assert state.get(COMMIT, CommitKey(mine)) == Commit(9)


def test_kinds_of_opening_and_committing_are_not_written(state):
    tx = CatalogTransaction(state)
    forbidden: list[tuple[Any, Any, Any]] = [
        (FENCE_TOKEN, FenceTokenKey(), token(1, 1)),
        (COMMIT, CommitKey("t"), Commit(1)),
    ]
    for kind, key, value in forbidden:
        with pytest.raises(InvalidArgument):
            tx.set(kind, key, value)
    assert tx.get(FENCE_TOKEN, FenceTokenKey()) is None


def test_append_only_kinds_are_written_and_retracted_but_not_read(state):
    tx = CatalogTransaction(state)
    tx.insert(STORAGE_USAGE, USAGE, Unit())
    commit(tx, state)
    assert state.count(STORAGE_USAGE) == 1
    for read in (lambda tx: tx.get(STORAGE_USAGE, USAGE), lambda tx: tx.objects(STORAGE_USAGE)):
        with pytest.raises(InvalidArgument):
            read(CatalogTransaction(state))
    tx = CatalogTransaction(state)
    tx.retract(STORAGE_USAGE, USAGE)
    commit(tx, state)
    assert state.count(STORAGE_USAGE) == 0
    with pytest.raises(InvalidArgument):
        tx.retract(DATABASE, ONE)  # type: ignore[arg-type]  # what types refuse is refused at run time, too


def test_batch_of_an_append_that_was_retracted_is_empty(state):
    tx = CatalogTransaction(state)
    tx.insert(STORAGE_USAGE, USAGE, Unit())
    tx.retract(STORAGE_USAGE, USAGE)
    assert changes(tx) == []


# ---- ids -------------------------------------------------------------------------------------------------------------


def test_allocate_is_contiguous_and_starts_where_defaults_end():
    tx = CatalogTransaction(Snapshot())
    assert [*tx.allocate("database", 3), *tx.allocate("database")] == [2, 3, 4, 5]
    assert (tx.allocate("schema")[0], tx.allocate("user")[0], tx.allocate("replica")[0]) == (7, 1, 2)


def test_ids_are_never_reused_even_after_drop():
    state = Snapshot()
    tx = CatalogTransaction(state)
    key = DatabaseKey(user(tx.allocate("database")[0]))
    tx.insert(DATABASE, key, database("a"))
    commit(tx, state)
    tx = CatalogTransaction(state)
    tx.set(DATABASE, key, None)
    commit(tx, state)
    assert CatalogTransaction(state).allocate("database")[0] == key.id.number + 1


def test_allocator_never_goes_back():
    tx = CatalogTransaction(snapshot((ID_ALLOCATOR, IdAllocatorKey("user"), IdAllocator(9))))
    for value in (IdAllocator(8), None):
        with pytest.raises(InvalidArgument):
            tx.set(ID_ALLOCATOR, IdAllocatorKey("user"), value)
    assert tx.allocate("user")[0] == 9


def test_system_ids_are_given_during_bootstrap_only():
    with pytest.raises(InvalidArgument):
        CatalogTransaction(Snapshot()).allocate("system")
    assert CatalogTransaction(Snapshot(), bootstrap=True).allocate("system")[0] == 1


def test_oids_skip_what_is_taken_by_others_and_by_the_transaction():
    tx = CatalogTransaction(snapshot((ITEM, I1, item("t", oid=20_000))))
    tx.insert(DATABASE, ONE, database("a", oid=20_002))
    assert tx.allocate_oids(2) == [20_001, 20_003]


def test_oids_that_a_transaction_gave_up_are_not_taken():
    tx = CatalogTransaction(snapshot((DATABASE, ONE, database("a", oid=20_000))))
    tx.set(DATABASE, TWO, database("b", oid=20_001))
    tx.set(DATABASE, TWO, database("b", oid=20_002))
    tx.savepoint()
    tx.set(DATABASE, TWO, None)
    tx.set(DATABASE, ONE, None)
    tx.insert(DATABASE, DatabaseKey(user(3)), database("c", oid=20_003))
    tx.savepoint()
    assert tx.allocate_oids(3) == [20_001, 20_002, 20_004]
    tx.rollback()
    assert tx.allocate_oids(1) == [20_001]
    tx.rollback()
    assert tx.allocate_oids(2) == [20_001, 20_003]


def test_a_transaction_of_twice_as_many_objects_takes_twice_as_long():
    counted = []
    for count in (50, 100):
        tx = CatalogTransaction(Snapshot())
        with steps_of_the_loop() as steps:
            for at in range(count):
                (oid,) = tx.allocate_oids()
                tx.insert(DATABASE, DatabaseKey(user(at + 1)), database(f"d{at}", oid=oid))
        counted.append(steps.most)
    assert counted[1] < 2.5 * counted[0]


def test_oids_are_recycled_after_wrap_around():
    tx = CatalogTransaction(snapshot((ID_ALLOCATOR, IdAllocatorKey("oid"), IdAllocator(2**32 - 1))))
    assert tx.allocate_oids(2) == [2**32 - 1, 20_000]


def test_replaying_a_batch_onto_a_copy_gives_the_same(state):
    copy = snapshot((DATABASE, ONE, database("a")), (DATABASE, TWO, database("b")))
    tx = CatalogTransaction(state)
    tx.set(DATABASE, ONE, None)
    rows = tx.batch().rows(CODEC, 3)
    for each in (state, copy):
        each.apply(CODEC, rows)
    assert everything(state, KINDS) == everything(copy, KINDS)


def test_what_was_done_since_a_savepoint_is_undone_or_stays():
    tx = CatalogTransaction(snapshot((DATABASE, DatabaseKey(user(1)), database("a"))))
    tx.set(DATABASE, DatabaseKey(user(1)), database("b"))
    tx.savepoint()
    tx.savepoint()
    first = tx.allocate("user")
    tx.set(DATABASE, DatabaseKey(user(2)), database("a"))
    tx.rollback()
    assert tx.find(DATABASE, ("a",)) is None
    assert tx.allocate("user") == first
    tx.set(DATABASE, DatabaseKey(user(3)), database("c"))
    tx.release()
    assert tx.objects(DATABASE) == {DatabaseKey(user(1)): database("b"), DatabaseKey(user(3)): database("c")}


def test_a_transaction_may_depend_on_whole_kinds():
    state = snapshot()
    tx = CatalogTransaction(state)
    tx.depend_on([DATABASE])
    tx.insert(ITEM, ItemKey(user(1)), item("t"))
    other = CatalogTransaction(state)
    other.insert(DATABASE, DatabaseKey(user(1)), database("a"))
    commit(other, state)
    with pytest.raises(OutOfSync):
        tx.batch()
