"""What updates sum to, and how it changes. Catalog-semantics.md sections 1.2.3 and 1.2.8."""

import pytest
from sure import sure
from unit.core.catalog.samples import database, item, snapshot, updates, user

from persist.core.catalog.kinds import AUDIT_LOG, DATABASE, ITEM, KINDS, STORAGE_USAGE
from persist.core.catalog.objects import AuditLogKey, DatabaseKey, ItemKey, StorageUsageKey
from persist.core.catalog.rows import Row, RowUpdate, apply_changes, by_time, contents
from persist.core.catalog.snapshot import LOG_CHANGES, Snapshot
from persist.core.catalog.values import AuditEventType, AuditNamedV1, ObjectType, Unit
from persist.errors import CorruptData
from persist.wire.catalog.rows import CODEC

KEY = DatabaseKey(user(1))
A, B = ((DATABASE, KEY, database(name)) for name in "ab")


def net(*changes):
    return [(CODEC.encode(kind.tag, key, value), diff) for (kind, key, value), diff in changes]


def usage(number: int):
    return (STORAGE_USAGE, StorageUsageKey(number, None, 5, 6), Unit())


def test_snapshot_is_what_all_updates_sum_to():
    state = Snapshot.of(CODEC, [*updates(A), *updates(A, ts=3, diff=-1), *updates(B, ts=3)])
    assert state.objects(DATABASE) == {KEY: database("b")}
    assert state.holder(DATABASE, ("b",)) == KEY
    assert state.holder(DATABASE, ("a",)) is None


@pytest.mark.parametrize(
    "them",
    [[*updates(A), *updates(A, ts=1)], [*updates(A), *updates(B)], updates(A, diff=-1)],
    ids=["twice", "two values", "less than none"],
)
def test_sums_other_than_one_value_per_key_are_corrupt(them):
    with pytest.raises(CorruptData):
        Snapshot.of(CODEC, them)
    with pytest.raises(CorruptData):
        contents(them)


def test_two_objects_with_one_name_are_corrupt():
    with pytest.raises(CorruptData):
        snapshot(A, (DATABASE, DatabaseKey(user(2)), database("a")))


def test_rows_of_an_unknown_kind_are_corrupt():
    with pytest.raises(CorruptData):
        Snapshot.of(CODEC, [RowUpdate(Row("nothing", b"", b""), 0, 1)])


@pytest.mark.parametrize(
    "them",
    [net((B, 1)), net((B, -1)), net((B, -1), (A, 1)), [(CODEC.encode("database", KEY, database("z")), 2)]],
    ids=["insert over a key", "retract another value", "retract another value, insert", "diff 2"],
)
def test_changes_that_misfit_are_corrupt(them):
    with pytest.raises(CorruptData):
        snapshot(A).apply(CODEC, them)
    with pytest.raises(CorruptData):
        apply_changes(contents(updates(A)), them)


def test_retraction_of_what_is_not_there_is_corrupt():
    with pytest.raises(CorruptData):
        Snapshot().apply(CODEC, net((A, -1)))


def test_replacing_a_value_is_one_change():
    state = snapshot(A)
    assert state.apply(CODEC, net((A, -1), (B, 1))) == ((DATABASE, KEY, database("a"), database("b"), 0),)


def test_names_can_change_hands_within_one_time():
    other = DatabaseKey(user(2))
    state = snapshot(A, (DATABASE, other, database("b")))
    swap = net((A, -1), ((DATABASE, other, database("b")), -1), (B, 1), ((DATABASE, other, database("a")), 1))
    state.apply(CODEC, swap)
    assert (state.holder(DATABASE, ("a",)), state.holder(DATABASE, ("b",))) == (other, KEY)


def test_times_come_one_by_one_consolidated_retractions_first():
    them = [*updates(B, ts=7), *updates(A, ts=7, diff=-1), *updates(A, ts=2), *updates(usage(1), ts=7)]
    them += updates(usage(1), ts=7, diff=-1)
    assert [(ts, [diff for _, diff in changes]) for ts, changes in by_time(them)] == [(2, [1]), (7, [-1, 1])]


def test_diffs_other_than_one_after_consolidation_are_corrupt():
    with pytest.raises(CorruptData):
        list(by_time([*updates(A, ts=1), *updates(A, ts=1)]))


def test_append_only_kinds_are_counted_and_not_kept():
    event = AuditLogKey(1, AuditEventType.CREATE, ObjectType.TABLE, None, 5, AuditNamedV1("u1", "t"))
    state = snapshot(*map(usage, range(50)), (AUDIT_LOG, event, Unit()))
    state.apply(CODEC, [*net((usage(1), -1)), *net(*((usage(n), 1) for n in range(50, 60)))])
    assert (state.count(STORAGE_USAGE), state.count(AUDIT_LOG)) == (59, 1)
    with pytest.raises(KeyError):
        state.objects(STORAGE_USAGE)


def test_memory_of_append_only_kinds_is_flat():
    state = Snapshot()
    for number in range(3 * LOG_CHANGES // 100):
        state.apply(CODEC, net(*((usage(number * 100 + n), 1) for n in range(100))))
    assert state.count(STORAGE_USAGE) == 3 * LOG_CHANGES
    assert sum(len(changes) for _, changes in state._log) <= LOG_CHANGES


def test_more_going_than_was_there_is_corrupt():
    with pytest.raises(CorruptData):
        Snapshot().apply(CODEC, net((usage(1), -1)))


def test_changes_are_remembered_until_there_are_too_many():
    state = Snapshot()
    state.apply(CODEC, net((A, 1)))
    assert [change.after for change in sure(state.since(0))] == [database("a")]
    assert state.since(1) == []
    for number in range(LOG_CHANGES // 100 + 1):
        state.apply(CODEC, net(*((usage(number * 100 + n), 1) for n in range(100))))
    assert state.since(0) is None
    assert state.since(state.version) == []


def test_oids_are_known_while_an_object_has_them():
    one, two = ((ITEM, ItemKey(user(n)), item(f"t{n}", oid=20_000)) for n in (1, 2))
    state = snapshot(one, two)
    state.apply(CODEC, net((one, -1)))
    assert state.oid_taken(20_000)
    state.apply(CODEC, net((two, -1)))
    assert not state.oid_taken(20_000)


def test_every_kind_begins_empty():
    assert [state.count(kind) for state in [Snapshot()] for kind in KINDS] == [0] * len(KINDS)
