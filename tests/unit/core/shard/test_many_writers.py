"""Many writers, sessions, applications: none is refused for their number, and a commit costs the same beside them."""

import dataclasses
import tracemalloc

import pytest
from property.core.shard.histories import append, first_state, sixteen

from persist.core.ids import SessionId, WriterId
from persist.core.shard import commands as c
from persist.core.shard.diff import apply_diff, diff
from persist.core.shard.state import CallSession, State, TransactionRecord, Writer
from persist.core.shard.table import Table
from persist.core.shard.transitions.apply import apply, finish
from persist.core.shard.transitions.dispatch import Context

NOW = Context(now_ms=5_000, rollup_every=1 << 30)
MANY = 9_000


def crowded(count: int) -> State:
    """A state that knows so many writers, sessions and applications, all of them alive."""
    state = first_state()
    ids = [sixteen((1 << 64) + number) for number in range(count)]
    return state.evolved(
        writers=Table({WriterId.of(each): Writer(heartbeat_ms=0, lease_ms=3_600_000) for each in ids}),
        sessions=Table(
            {SessionId.of(each): CallSession(first=0, seqno=0, heartbeat_ms=0, lease_ms=3_600_000) for each in ids}
        ),
        transactions=Table(
            {f"app-{number}": TransactionRecord(version=1, upper=state.upper, seqno=0) for number in range(count)}
        ),
    )


def from_a_new_writer(state: State, number: int) -> c.CompareAndAppend:
    which = c.Call(session=SessionId.of(sixteen(number)), number=0, first=0, known_seqno=state.seqno)
    command = append(state, rows=1, width=5, number=number, writer=number)
    application = c.Transaction(app_id=f"new-{number}", version=1, new_since=state.transactions_forgotten)
    return dataclasses.replace(command, call=which, token=None, transaction=application)


def committed(state: State, number: int) -> State:
    moved, outcome = apply(state, from_a_new_writer(state, number), NOW)
    assert isinstance(outcome, c.Appended)
    new = finish(state, moved, NOW)
    assert apply_diff(state, diff(state, new)).writers == new.writers
    return new


def bytes_to_commit(state: State) -> int:
    """The least of several times: other threads of the process are counted, too."""
    committed(state, 1)
    found = []
    for number in range(2, 7):
        tracemalloc.start()
        try:
            committed(state, number)
            found.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(found)


def test_an_append_of_a_new_writer_copies_no_more_beside_many_than_beside_few():
    assert bytes_to_commit(crowded(MANY)) < 1.5 * bytes_to_commit(crowded(10))


@pytest.mark.parametrize(("count", "commits"), [(10, 128), (MANY, 1024)])
def test_a_large_table_is_looked_through_the_more_rarely(count: int, commits: int):
    state = crowded(count)
    silent = WriterId.of(sixteen(1 << 60))
    state = state.evolved(writers=state.writers.with_entry(silent, Writer(heartbeat_ms=0, lease_ms=1)))
    while silent in state.writers:
        moved, _ = apply(state, append(state, rows=0, width=1, number=0, writer=0), NOW)
        state = finish(state, moved, NOW)
    assert state.seqno == commits


def test_more_writers_and_applications_than_there_are_places_for_are_all_taken():
    state = crowded(9_950)
    for number in range(100):
        state = committed(state, number)
    assert len(state.writers) <= NOW.writers_max
    assert len(state.transactions) <= NOW.transactions_max
    assert WriterId.of(sixteen(99)) in state.writers
