"""How many reads are asked of two servers."""

import pytest

from persist.retry.twice import HEDGES_MAX, HEDGES_SHARE, HedgeBudget


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
