"""Transactions against a model that copies everything, and against each other in any order."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.budget import examples

from persist.core.catalog.conflicts import Overlapping, classify
from persist.core.catalog.errors import DuplicateKey, OutOfSync, UniquenessViolation
from persist.core.catalog.kinds import DATABASE, ITEM, SCHEMA
from persist.core.catalog.objects import CatalogSchema, Database, DatabaseKey, Item, ItemKey, SchemaKey
from persist.core.catalog.rows import RowUpdate, by_time
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import ROW_TYPED, Id, ObjectType, RoleRef, Space
from persist.wire.catalog.rows import CODEC

LAW = settings(deadline=None, max_examples=examples(200))
OWNER = RoleRef(Space.USER, 1)
TYPES = [ObjectType.TABLE, ObjectType.TYPE, ObjectType.FUNCTION]

NUMBERS = st.integers(1, 4)
NAMES = st.sampled_from("abc")
OBJECTS = st.one_of(
    st.builds(lambda n, name: (DATABASE, DatabaseKey(_id(n)), Database(name, OWNER)), NUMBERS, NAMES),
    st.builds(
        lambda n, of, name: (SCHEMA, SchemaKey(_id(n)), CatalogSchema(_id(of), name, OWNER)),
        NUMBERS,
        st.integers(1, 2),
        NAMES,
    ),
    st.builds(
        lambda n, kind, name, session: (
            ITEM,
            ItemKey(_id(n)),
            Item(_id(1), name, kind, "", OWNER, global_id=_id(n), session=session),
        ),
        NUMBERS,
        st.sampled_from(TYPES),
        NAMES,
        st.sampled_from([None, "s"]),
    ),
)
OPERATIONS = st.one_of(
    st.tuples(st.just("insert"), OBJECTS),
    st.tuples(st.just("set"), OBJECTS),
    st.tuples(st.just("drop"), OBJECTS),
    st.tuples(st.just("update"), OBJECTS),
    st.tuples(st.just("delete"), OBJECTS),
    st.tuples(st.just("set_all"), st.tuples(OBJECTS, OBJECTS, OBJECTS)),
    st.tuples(st.just("get"), OBJECTS),
    st.tuples(st.just("find"), OBJECTS),
    st.tuples(st.just("scan"), OBJECTS),
)


def _id(number):
    return Id(Space.USER, number)


class Model:
    """A dictionary by (kind, key); uniqueness by looking at every pair."""

    def __init__(self, objects=()):
        self.objects = dict(objects)

    def _clash(self, objects):
        for (kind, key), value in objects.items():
            for (other_kind, other_key), other in objects.items():
                if kind is other_kind and key != other_key and clash(value, other):
                    return True
        return False

    def _become(self, wanted):
        """All of the wanted at once: None for gone."""
        after = {**self.objects, **wanted}
        after = {at: value for at, value in after.items() if value is not None}
        if self._clash(after):
            raise UniquenessViolation("clash")
        self.objects = after

    def run(self, operation):
        what, of = operation
        if what == "set_all":
            kind = of[0][0]
            return self._become({(kind, key): value for other, key, value in of if other is kind})
        kind, key, value = of
        mine = {at: found for at, found in self.objects.items() if at[0] is kind}
        previous = self.objects.get((kind, key))
        if what == "insert" and previous is not None:
            raise DuplicateKey("there")
        if what in ("insert", "set", "drop"):
            self._become({(kind, key): None if what == "drop" else value})
            return None if what == "insert" else previous
        if what == "update":
            wanted = {at: value for at, found in mine.items() if found.name != value.name}
            self._become(wanted)
            return len(wanted)
        if what == "delete":
            gone = {at: None for at, found in mine.items() if found.name == value.name}
            self._become(gone)
            return Counter(key for _, key in gone)
        if what == "get":
            return previous
        if what == "scan":
            return {key: found for (_, key), found in mine.items()}
        return {key for (_, key), found in mine.items() if clash(value, found)}


def clash(one, other):
    """Whether two objects of a kind may not be there together, as the rules are written."""
    if isinstance(one, Database):
        return one.name == other.name
    if isinstance(one, CatalogSchema):
        return (one.database_id, one.name) == (other.database_id, other.name)
    if (one.schema_id, one.name, one.session) != (other.schema_id, other.name, other.session):
        return False
    types = [it.item_type for it in (one, other) if it.item_type is ObjectType.TYPE]
    others = [it.item_type for it in (one, other) if it.item_type is not ObjectType.TYPE]
    return len(types) != 1 or others[0] in ROW_TYPED


def run(tx, operation):
    what, of = operation
    if what == "set_all":
        kind = of[0][0]
        return tx.set_all(kind, [(key, value) for other, key, value in of if other is kind])
    kind, key, value = of
    if what == "insert":
        return tx.insert(kind, key, value)
    if what in ("set", "drop"):
        return tx.set(kind, key, None if what == "drop" else value)
    if what == "update":
        return tx.update(kind, lambda _, found: value if found.name != value.name else None)
    if what == "delete":
        return Counter(key for key, _ in tx.delete(kind, lambda _, found: found.name == value.name))
    if what == "get":
        return tx.get(kind, key)
    if what == "scan":
        return tx.objects(kind)
    return {holder for name in kind.names(value) if (holder := tx.find(kind, name)) is not None}


def outcome(operate, *arguments):
    try:
        return operate(*arguments)
    except (DuplicateKey, UniquenessViolation) as refusal:
        return type(refusal)


def held(snapshot):
    return {(kind, key): value for kind in (DATABASE, SCHEMA, ITEM) for key, value in snapshot.objects(kind).items()}


def begin(operations):
    """A catalog that these operations made."""
    snapshot = Snapshot()
    tx = CatalogTransaction(snapshot)
    for operation in operations:
        outcome(run, tx, operation)
    snapshot.apply(CODEC, tx.batch().rows(CODEC, 0))
    return snapshot


SCRIPTS = st.lists(OPERATIONS, max_size=12)


@LAW
@given(SCRIPTS, SCRIPTS)
def test_transaction_does_what_the_model_does(first, second):
    snapshot = begin(first)
    model, tx = Model(held(snapshot)), CatalogTransaction(snapshot)
    before = held(snapshot)
    for operation in second:
        assert outcome(run, tx, operation) == outcome(model.run, operation), operation
    assert held(snapshot) == before
    batch = tx.batch()
    keys = [(change.kind, change.key) for change in batch.changes]
    assert len(keys) == len(set(keys))
    assert all(change.before != change.after for change in batch.changes)
    snapshot.apply(CODEC, batch.rows(CODEC, 1))
    assert held(snapshot) == model.objects


@LAW
@given(SCRIPTS, SCRIPTS, SCRIPTS)
def test_transaction_that_is_not_out_of_sync_might_as_well_have_run_afterwards(first, mine, theirs):
    snapshot = begin(first)
    tx, other = CatalogTransaction(snapshot), CatalogTransaction(snapshot)
    answers = [outcome(run, tx, operation) for operation in mine]
    for operation in theirs:
        outcome(run, other, operation)
    snapshot.apply(CODEC, other.batch().rows(CODEC, 1))
    after = Model(held(snapshot))
    try:
        batch = tx.batch()
    except OutOfSync:
        return
    again = [outcome(after.run, operation) for operation in mine]
    assert answers == again
    snapshot.apply(CODEC, batch.rows(CODEC, 2))
    assert held(snapshot) == after.objects


@LAW
@given(SCRIPTS, SCRIPTS)
def test_writers_of_one_key_always_overlap(mine, theirs):
    snapshot = Snapshot()
    one, other = CatalogTransaction(snapshot), CatalogTransaction(snapshot)
    for tx, script in ((one, mine), (other, theirs)):
        for operation in script:
            outcome(run, tx, operation)
    written = [{(change.kind, change.key) for change in tx.batch().changes} for tx in (one, other)]
    found = classify(one.footprint, other.batch().changes)
    assert isinstance(found, Overlapping) or not written[0] & written[1]


@LAW
@given(st.lists(SCRIPTS, max_size=4))
def test_snapshot_of_all_updates_is_the_snapshot_that_followed_them(scripts):
    live, updates = Snapshot(), []
    for ts, script in enumerate(scripts):
        tx = CatalogTransaction(live)
        for operation in script:
            outcome(run, tx, operation)
        rows = tx.batch().rows(CODEC, ts)
        live.apply(CODEC, rows)
        updates += [RowUpdate(row, ts, diff) for row, diff in rows]
    followed = Snapshot()
    for _, changes in by_time(reversed(updates)):
        followed.apply(CODEC, changes)
    whole = Snapshot.of(CODEC, updates)
    assert held(live) == held(followed) == held(whole)
    for name in "abc":
        assert live.holder(DATABASE, (name,)) == followed.holder(DATABASE, (name,)) == whole.holder(DATABASE, (name,))
