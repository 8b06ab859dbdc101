"""Which methods only read or may be asked of two servers, and how many are."""

import pytest

from persist.retry.twice import HEDGES_MAX, HEDGES_SHARE, RULES, HedgeBudget, only_reads
from persist.v1 import catalog_pb2, compaction_pb2, minter_pb2, oracle_pb2, shard_pb2
from persist.wire.rpc import METHODS

FILES = (catalog_pb2, compaction_pb2, minter_pb2, oracle_pb2, shard_pb2)
WRITES = {
    *("OpenSession", "CloseSession", "Commit", "AllocateIds", "ConfirmLeadership", "AdvanceUpper"),
    *("PruneStorageUsage", "EditRow", "GetBinding", "Mint", "CompactBindings", "WriteTs", "ApplyWrite"),
    *("Compact", "CancelCompaction", "Session"),
}
"""Methods that are no commands of a shard and may change something."""


def test_every_method_of_every_service_is_known_to_read_or_to_write():
    services = [each for file in FILES for each in file.DESCRIPTOR.services_by_name.values()]
    methods = [method.name for service in services for method in service.methods]
    assert len(methods) == len(set(methods)), "the table goes by the name of the method"
    reads = set(filter(only_reads, RULES))
    writes = WRITES | {method.rpc for method in METHODS}
    assert set(methods) == reads | writes
    assert not reads & writes


@pytest.mark.parametrize("reads", [1, 10, 1_000])
def test_reads_that_are_all_slow_are_asked_twice_no_more_often_than_the_budget_allows(reads: int):
    budget, twice = HedgeBudget(), 0
    for _ in range(reads):
        budget.earn()
        twice += budget.spend()
    assert 1 <= twice <= 1 + HEDGES_SHARE * reads


def test_quiet_times_save_up_a_few():
    budget = HedgeBudget()
    for _ in range(10_000):
        budget.earn()
    assert sum(budget.spend() for _ in range(100)) == HEDGES_MAX
