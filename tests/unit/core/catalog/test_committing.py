"""Commits and conflicts: who has to run again, and who may just go on. Catalog-semantics.md sections 1.2.7, 1.2.8."""

import pytest
from unit.core.catalog.samples import commit, database, snapshot, user

from persist.core.catalog.conflicts import Disjoint, ProgressOnly
from persist.core.catalog.errors import DuplicateKey, NotWritable, OutOfSync, UniquenessViolation
from persist.core.catalog.kinds import DATABASE, ID_ALLOCATOR, SETTING, STORAGE_USAGE
from persist.core.catalog.leadership.commit_rules import (
    advanced_upper,
    audit_events,
    commit_ts,
    committed_at,
    split_usage,
)
from persist.core.catalog.objects import (
    AuditLogKey,
    DatabaseKey,
    IdAllocatorKey,
    Setting,
    SettingKey,
    StorageUsageKey,
)
from persist.core.catalog.open_rules import Mode
from persist.core.catalog.snapshot import LOG_CHANGES, Snapshot
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import AuditEventType, AuditNamedV1, ObjectType, Unit
from persist.core.ids import Token
from persist.errors import InvalidArgument
from persist.wire.catalog.rows import CODEC

ONE, TWO, THREE = (DatabaseKey(user(n)) for n in (1, 2, 3))
MINE = Token.of(bytes(16))


@pytest.fixture
def state() -> Snapshot:
    return snapshot((DATABASE, ONE, database("a")), (DATABASE, TWO, database("b")))


def begun(state: Snapshot, *steps) -> CatalogTransaction:
    tx = CatalogTransaction(state)
    for step in steps:
        step(tx)
    return tx


def insert(key, name):
    return lambda tx: tx.insert(DATABASE, key, database(name))


def put(key, name):
    return lambda tx: tx.set(DATABASE, key, None if name is None else database(name))


def read(key):
    return lambda tx: tx.get(DATABASE, key)


def scan(tx):
    return tx.objects(DATABASE)


def find(name):
    return lambda tx: tx.find(DATABASE, (name,))


def allocate(tx):
    return tx.allocate("user")


def refused(step):
    def attempt(tx):
        with pytest.raises((DuplicateKey, UniquenessViolation)):
            step(tx)

    return attempt


def set_setting(tx):
    tx.set(SETTING, SettingKey("s"), Setting("1"))


def delete_none(tx):
    assert tx.delete(DATABASE, lambda *_: False) == []


def update_none(tx):
    assert tx.update(DATABASE, lambda *_: None) == 0


def append_usage(tx):
    tx.insert(STORAGE_USAGE, StorageUsageKey(1, None, 2, 3), Unit())


CONFLICTS = {
    "same key written": ([put(ONE, "x")], put(ONE, "y")),
    "key read, then changed": ([read(ONE), set_setting], put(ONE, "y")),
    "absent key read, then inserted": ([read(THREE), set_setting], insert(THREE, "c")),
    "kind scanned, then inserted": ([scan, set_setting], insert(THREE, "c")),
    "kind scanned, then deleted": ([scan, set_setting], put(TWO, None)),
    "kind gone through to delete, then inserted": ([delete_none, set_setting], insert(THREE, "c")),
    "kind gone through to update, then inserted": ([update_none, set_setting], insert(THREE, "c")),
    "same name claimed": ([insert(THREE, "c")], put(TWO, "c")),
    "free name looked up, then taken": ([find("c"), set_setting], put(TWO, "c")),
    "taken name looked up, then freed": ([find("b"), set_setting], put(TWO, "z")),
    "refused by a name that was freed": ([refused(insert(THREE, "b")), set_setting], put(TWO, "z")),
    "refused by a key that was dropped": ([refused(insert(TWO, "q")), set_setting], put(TWO, None)),
    "same allocator": ([allocate], allocate),
    "same row appended": ([append_usage], append_usage),
}


@pytest.mark.parametrize(("mine", "theirs"), CONFLICTS.values(), ids=CONFLICTS)
def test_overlapping_commit_is_out_of_sync(state, mine, theirs):
    tx = begun(state, *mine)
    commit(begun(state, theirs), state)
    for operation in (tx.batch, tx.refresh, lambda: tx.get(SETTING, SettingKey("s"))):
        with pytest.raises(OutOfSync) as told:
            operation()
        assert told.value.details["keys"]


DISJOINT = {
    "another key of the kind": ([put(ONE, "x")], put(TWO, "y")),
    "another name": ([insert(THREE, "c")], put(TWO, "d")),
    "another kind while one is scanned": ([scan], set_setting),
    "another key read": ([read(ONE)], put(TWO, "y")),
    "an allocator nothing else uses": ([put(ONE, "x")], allocate),
    "an append": ([scan, put(ONE, "x")], append_usage),
}


@pytest.mark.parametrize(("mine", "theirs"), DISJOINT.values(), ids=DISJOINT)
def test_disjoint_commit_is_taken_over_and_the_transaction_goes_on(state, mine, theirs):
    tx = begun(state, *mine)
    commit(begun(state, theirs), state)
    assert tx.refresh() == Disjoint(1)
    commit(tx, state, 2)


def test_progress_without_updates_is_rebased_silently(state):
    tx = begun(state, scan, put(ONE, "x"))
    state.apply(CODEC, [])
    assert tx.refresh() == ProgressOnly()
    assert commit_ts(Mode.WRITABLE, tx.batch(), state, 5, 900) == 900


def test_out_of_sync_names_the_keys_and_counts_updates_of_all_kinds(state):
    tx = begun(state, scan)
    commit(begun(state, put(ONE, "x"), put(TWO, "y"), allocate, set_setting), state)
    with pytest.raises(OutOfSync) as told:
        tx.refresh()
    assert told.value.details["updates"] == "4"
    assert str(ONE) in told.value.details["keys"]
    assert str(TWO) in told.value.details["keys"]
    assert "setting" not in told.value.details["keys"]


def test_allocator_alone_invalidates_a_plan(state):
    tx = begun(state, allocate)
    commit(begun(state, allocate), state)
    with pytest.raises(OutOfSync, match=str(IdAllocatorKey("user")).replace("(", r"\(").replace(")", r"\)")):
        tx.refresh()
    assert state.count(ID_ALLOCATOR) == 1


def measured(first: int, count: int):
    def step(tx: CatalogTransaction) -> None:
        for number in range(first, first + count):
            tx.insert(STORAGE_USAGE, StorageUsageKey(number, None, 2, 3), Unit())

    return step


def test_large_transactions_that_begin_together_do_not_refuse_each_other(state):
    large = [begun(state, measured(number * LOG_CHANGES, LOG_CHANGES)) for number in range(4)]
    for tx in large:
        commit(tx, state)
    assert state.count(STORAGE_USAGE) == 4 * LOG_CHANGES
    commit(begun(state, put(ONE, "x")), state)
    large.clear()
    del tx
    commit(begun(state, put(ONE, "y")), state)
    assert sum(len(changes) for _, changes in state._log) <= LOG_CHANGES


def test_out_of_sync_when_too_much_was_committed_to_tell(state, monkeypatch):
    monkeypatch.setattr("persist.core.catalog.snapshot.LOG_CHANGES_HELD", LOG_CHANGES)
    tx = begun(state, put(ONE, "x"))
    for number in range(LOG_CHANGES // 1000 + 1):
        other = CatalogTransaction(state)
        for n in range(1000):
            other.insert(STORAGE_USAGE, StorageUsageKey(number * 1000 + n, None, 2, 3), Unit())
        commit(other, state)
    with pytest.raises(OutOfSync):
        tx.batch()


def test_same_token_committed_meanwhile_is_out_of_sync_and_found(state):
    first, second = (CatalogTransaction(state, token=MINE) for _ in range(2))
    for tx, key in ((first, ONE), (second, TWO)):
        tx.set(DATABASE, key, None)
    assert committed_at(state, first, CODEC) is None
    commit(first, state, 7)
    with pytest.raises(OutOfSync):
        second.batch()
    assert committed_at(state, first, CODEC) == 7
    assert committed_at(state, CatalogTransaction(state), CODEC) is None


# ---- when and whether ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("requested", "upper", "ts"), [(5, 9, 9), (9, 5, 9), (0, 0, 0)])
def test_commit_ts_is_the_later_of_requested_and_upper(state, requested, upper, ts):
    assert commit_ts(Mode.WRITABLE, begun(state, put(ONE, "x")).batch(), state, requested, upper) == ts


def test_read_only_takes_an_empty_batch_and_refuses_any_other(state):
    assert commit_ts(Mode.READ_ONLY, CatalogTransaction(state).batch(), state, 1, 2) == 2
    with pytest.raises(NotWritable):
        commit_ts(Mode.READ_ONLY, begun(state, put(ONE, "x")).batch(), state, 1, 2)


def test_savepoint_takes_batches(state):
    assert commit_ts(Mode.SAVEPOINT, begun(state, put(ONE, "x")).batch(), state, 1, 2) == 2


def test_batch_of_another_version_is_a_mistake_of_the_program(state):
    batch = begun(state, put(ONE, "x")).batch()
    commit(begun(state, set_setting), state)
    with pytest.raises(InvalidArgument):
        commit_ts(Mode.WRITABLE, batch, state, 1, 2)


def test_advance_upper_is_to_at_least():
    assert [advanced_upper(5, to) for to in (4, 5, 6)] == [None, None, 6]


# ---- append-only kinds -----------------------------------------------------------------------------------------------


def test_audit_events_come_sorted_by_id():
    events = [
        AuditLogKey(n, AuditEventType.DROP, ObjectType.ROLE, "me", 100 - n, AuditNamedV1(f"u{n}", "r"))
        for n in (10, 9, 11)
    ]
    assert [event.id for event in audit_events(events)] == [9, 10, 11]


def test_storage_usage_older_than_retention_goes_and_none_keeps_all():
    usage = [StorageUsageKey(n, None, 1, at) for n, at in ((1, 69), (2, 70), (3, 100))]
    keep, gone = split_usage(reversed(usage), 100, 30)
    assert (keep, gone) == (usage[1:], usage[:1])
    assert split_usage(usage, 100, None) == (usage, [])
