"""Many writers on few keys: every seqno is won once, in every store. Source: reliability.md I1, I2, B19."""

import pytest
from conformance.broken import ChecksThenSets, ReadsFromAReplica, RepeatsTheCommand, SlotIsFree
from conformance.handles import consensuses, shard
from conformance.workload import contend
from simulation.budget import FULL

from persist.storage.consensus.memory import MemoryConsensus, MemoryLog
from persist.testing.history import violations

ATTEMPTS = 20_000 if FULL else 5_000
SPARE = 200
"""A store that is very busy may refuse a few outright: those did not happen and are not counted."""


@pytest.mark.timeout_s(300)
async def test_contended_cas_wins_every_seqno_once(consensus_uri: str) -> None:
    keys = [shard() for _ in range(4)]
    async with consensuses(consensus_uri, 2) as handles:
        history = await contend(handles, keys, attempts=ATTEMPTS + SPARE)
    attempts = [operation for operation in history.operations if operation.kind == "cas"]
    assert len(attempts) >= ATTEMPTS
    assert all(operation.returned is not None for operation in attempts)
    assert violations(history.operations) == []
    # Void unless writers really met: some won, many lost.
    won = sum(operation.ok for operation in attempts)
    assert won > ATTEMPTS * 0.05
    assert consensus_uri.startswith("mem:") or won < ATTEMPTS * 0.95


@pytest.mark.parametrize("broken", [ChecksThenSets, SlotIsFree, RepeatsTheCommand, ReadsFromAReplica])
async def test_checker_catches_a_broken_store(broken: type[MemoryConsensus]) -> None:
    log = MemoryLog()
    keys = [shard() for _ in range(4)]
    history = await contend([broken("broken", log), broken("broken", log)], keys, attempts=3000)
    assert violations(history.operations) != []
