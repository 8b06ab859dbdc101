"""The first state of a new history: what a restored backup, or a rebuild from rollups, begins with.

The rows, frontiers, schemas, critical holds (at since) and transactions go on. Leases, writes under a token and work
that was claimed belong to the history that ended. Source: docs/runbook.md, backups; reliability.md I9, I11.
"""

from collections.abc import Callable
from dataclasses import replace

from persist.core.shard.batch import HollowBatch, Part, Run
from persist.core.shard.retention import shrunk
from persist.core.shard.state import FIRST_FORMAT, STATE_FORMAT, State
from persist.core.shard.table import Table
from persist.core.shard.trace import Trace, settled


def reborn(
    state: State, *, incarnation: int, now_ms: int, hostname: str, key_of: Callable[[str], str] | None = None
) -> State:
    """The state at seqno 0, named by no rollup yet, without readers under lease, writers, sessions and claims.

    ``incarnation``: a random one. What was said to another one counts no more: calls that carry it are refused. Writers
    born before ``now_ms`` are refused: their parts may not have come along. A tombstone is nothing but one.
    ``key_of``: where the copy of a part lies, by the key of that part; unless given, parts stay where they are.
    """
    if is_dead(state):
        state = _emptied(state)
    return state.evolved(
        seqno=0,
        # One of a format that is only read goes on in the first that is written.
        format=max(state.format, FIRST_FORMAT),
        known_format=STATE_FORMAT,
        hostname=hostname,
        trace=_unclaimed(state.trace if key_of is None else _moved(state.trace, key_of)),
        rollups={},
        last_gc_req=0,
        writers_since_ms=max(state.writers_since_ms, now_ms),
        active_rollup=None,
        active_gc=None,
        leased_readers={},
        # SUBTLE: not beyond since: what they were moved past may lie in another shard, in a state after its backup.
        critical_readers={
            name: replace(each, since=state.since, registered=0) for name, each in state.critical_readers.items()
        },
        incarnation=incarnation,
        writers=Table(),
        sessions=Table(),
        sessions_forgotten=0,
        # Seqnos of the old history mean nothing in this one.
        tokens=Table((name, replace(outcome, seqno=0)) for name, outcome in state.tokens.items()),
        tokens_forgotten=0,
        # What was forgotten in the old history is unknown in this one, too: transactions_forgotten stays.
        transactions=Table((name, replace(record, seqno=0)) for name, record in state.transactions.items()),
    )


def is_dead(state: State) -> bool:
    """Closed for reading and writing: what it still names has no readers, and may be being deleted."""
    return state.upper.is_empty and state.since.is_empty


def _emptied(state: State) -> State:
    state = state.evolved(leased_readers={}, critical_readers={}, writers=Table())
    while (smaller := shrunk(state)) is not state:
        state = smaller
    return state


def _moved(trace: Trace, key_of: Callable[[str], str]) -> Trace:
    def part(each: Part) -> Part:
        return each if each.key is None else replace(each, key=key_of(each.key))

    def batch(each: HollowBatch) -> HollowBatch:
        return replace(each, runs=tuple(Run(parts=tuple(map(part, run.parts))) for run in each.runs))

    spine = tuple(replace(each, batches=tuple(map(batch, each.batches))) for each in trace.spine)
    return replace(trace, spine=spine)


def _unclaimed(trace: Trace) -> Trace:
    spine = tuple(each if each.claim is None else replace(each, claim=None) for each in trace.spine)
    return replace(trace, spine=settled(spine))
