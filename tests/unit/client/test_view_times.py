"""When a materialized view is computed: at its refresh times its rows are those of the query, between as before."""

import random
from itertools import islice

from persist.client.collections.views.times import Until, last_refresh, next_refresh, plan, refreshed_at
from persist.core.catalog.values import Refresh

EACH_COMMIT = Refresh(None)


def steps(upper: int, horizon: int | None, refresh: Refresh, changes: list[int]) -> list[Until]:
    return list(plan(upper, horizon, refresh, changes))


def test_each_refresh_time_is_decided_once() -> None:
    for seed in range(500):
        rng = random.Random(seed)
        refresh = Refresh(rng.choice((None, 1, 3, 10)))
        changes = sorted(rng.sample(range(1, 60), rng.randrange(8)))
        upper, computed, horizon = 1, 0, 1
        results = {0: 0}  # from which time on, which result holds

        def holds(time: int, results: dict[int, int] = results) -> int:
            return results[max(each for each in results if each <= time)]

        upper = next_refresh(refresh, 1)
        while horizon < 60:
            horizon = min(60, horizon + rng.randrange(1, 20))
            seen = [time for time in changes if last_refresh(refresh, upper) < time < horizon]
            for step in plan(upper, horizon, refresh, seen):
                assert step.upper is not None
                assert step.upper > upper
                if step.at is not None:
                    assert upper <= step.at < min(step.upper, horizon), "computed from what is complete"
                    results[step.at] = step.at
                    computed += 1
                upper = step.upper
            assert upper >= horizon
            assert next_refresh(refresh, horizon) == upper
        assert computed <= len(changes), f"seed {seed}: nothing is computed without a change"
        for time in range(60):
            last = time if refresh.every is None else time // refresh.every * refresh.every
            newest = max((each for each in changes if each <= last), default=0)
            assert newest <= holds(time) <= last or holds(time) == 0 == newest, f"seed {seed} at {time}"


def test_the_end() -> None:
    assert steps(5, None, EACH_COMMIT, [7]) == [Until(7, None)]
    assert steps(10, None, Refresh(10), []) == [Until(None, None)]
    assert steps(10, None, Refresh(10), [12]) == [Until(20, None)]


def test_nothing_can_be_said_before_inputs_are_complete() -> None:
    assert steps(10, 10, Refresh(10), [5]) == []
    assert steps(10, 11, Refresh(10), [5]) == [Until(10, 20)]
    assert steps(10, 45, Refresh(10), [5, 22, 41]) == [Until(10, 30), Until(30, 50)]
    assert steps(7, 7, EACH_COMMIT, []) == []


def test_refresh_times_are_made_one_by_one_however_many_there_are() -> None:
    years = 10 * 365 * 24 * 3_600_000
    found = plan(1_000, years, Refresh(1_000), [], always=True)
    assert list(islice(found, 3)) == [Until(at, at + 1_000) for at in (1_000, 2_000, 3_000)]
    assert list(plan(20, 41, Refresh(10), [], always=True)) == [Until(20, 30), Until(30, 40), Until(40, 50)]
    assert list(plan(20, None, Refresh(10), [25], always=True)) == [Until(30, None)]


def test_which_refresh_time_shows() -> None:
    assert [refreshed_at(Refresh(10), time) for time in (9, 10, 19, 20)] == [0, 10, 10, 20]
    assert refreshed_at(EACH_COMMIT, 19) == 19
