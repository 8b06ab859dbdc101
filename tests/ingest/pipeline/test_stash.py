"""What is said of times comes together to the same rows, in whatever order and however often it is said."""

import itertools
import random

import pytest

from persist_ingest.pipeline.stash import Stash
from persist_ingest.sources.port import SourceFailure, Stated, StatedProgress


def stated(time: int, name: str, diff: int = 1) -> Stated:
    return Stated(time, name, (({"name": name}, diff),))


def test_any_order_and_any_repetition_come_to_the_same() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        updates = [stated(rng.randrange(20), f"row{number}", rng.choice((-1, 1))) for number in range(30)]
        edges = sorted({0, 20, *rng.sample(range(1, 20), 4)})
        counts = {time: sum(each.time == time for each in updates) for time in range(20)}
        told = [
            StatedProgress(low, high, {time: count for time, count in counts.items() if low <= time < high and count})
            for low, high in itertools.pairwise(edges)
        ]
        events: list[Stated | StatedProgress] = [*updates, *told]
        events += rng.choices(events, k=20)
        rng.shuffle(events)
        stash, rows = Stash(0), []
        for event in events:
            stash.put(event)
            upper = stash.complete()
            assert upper is not None
            if rng.random() < 0.5:
                rows += list(stash.rows(upper))
                stash.taken(upper)
            if rng.random() < 0.05:
                # Another life begins with what is durable, and gets everything again.
                stash = Stash(stash.upper)
                for again in events:
                    stash.put(again)
        upper = stash.complete()
        rows += list(stash.rows(upper))
        assert upper == 20, f"seed {seed}"
        expected = sorted((each.rows[0][0]["name"], each.time, each.rows[0][1]) for each in updates)
        assert sorted((row["name"], time, diff) for row, time, diff in rows) == expected, f"seed {seed}"


def test_progress_waits_for_the_first_time_that_lacks_something() -> None:
    stash = Stash(0)
    stash.put(StatedProgress(0, 10, {3: 1, 5: 2}))
    assert stash.complete() == 3
    stash.put(stated(3, "a"))
    stash.put(stated(5, "b"))
    assert stash.complete() == 5
    assert list(stash.rows(5)) == [({"name": "a"}, 3, 1)]
    stash.put(stated(5, "c"))
    assert stash.complete() == 10


def test_progress_beyond_a_gap_waits() -> None:
    stash = Stash(0)
    stash.put(StatedProgress(5, 10, {}))
    assert stash.complete() == 0
    stash.put(StatedProgress(0, 5, {}))
    assert stash.complete() == 10


def test_an_end_closes() -> None:
    stash = Stash(7)
    stash.put(StatedProgress(0, None, {9: 1}))
    assert stash.complete() == 9
    stash.put(stated(9, "a"))
    assert stash.complete() is None
    assert list(stash.rows(None)) == [({"name": "a"}, 9, 1)]


@pytest.mark.parametrize("also", [stated(3, "b"), stated(4, "b")])
def test_more_than_was_announced_is_refused(also: Stated) -> None:
    stash = Stash(0)
    stash.put(stated(3, "a"))
    stash.put(also)
    stash.put(StatedProgress(0, 5, {3: 1}))
    with pytest.raises(SourceFailure, match="more updates"):
        stash.complete()


def test_the_same_update_with_another_diff_is_refused() -> None:
    stash = Stash(0)
    stash.put(stated(3, "a"))
    with pytest.raises(SourceFailure, match="twice"):
        stash.put(stated(3, "a", 2))


LAST = 30


def naively(upper: int, updates: list[Stated], told: list[StatedProgress]) -> int | None:
    """How far statements carry, each looked at again and again."""
    came = {time: sum(each.time == time for each in updates) for time in range(LAST)}

    def carried(each: StatedProgress, since: int) -> int | None:
        for time in range(since, LAST if each.upper is None else each.upper):
            if came.get(time, 0) > each.counts.get(time, 0):
                raise SourceFailure("more", hint="")
            if came.get(time, 0) < each.counts.get(time, 0):
                return time
        return None if each.upper is None else max(since, each.upper)

    while True:
        found = [carried(each, upper) for each in told if each.lower <= upper]
        if None in found:
            return None
        if (further := max([upper, *(at for at in found if at is not None)])) == upper:
            return upper
        upper = further


@pytest.mark.parametrize("ends", [False, True])
def test_statements_that_overlap_and_contradict_carry_as_far_as_one_by_one(*, ends: bool) -> None:
    failed = ended = 0
    for seed in range(2_000):
        rng = random.Random(seed)
        updates = [stated(rng.randrange(20), f"row{number}") for number in range(rng.randrange(12))]
        came = {time: sum(each.time == time for each in updates) for time in range(LAST)}
        told, stash = list[StatedProgress](), Stash(0)
        for _ in range(rng.randrange(1, 7)):
            low = rng.randrange(20)
            high = None if ends and rng.random() < 0.3 else low + rng.randrange(1, 9)
            counts = {time: came[time] for time in range(low, LAST if high is None else high) if came[time]}
            if rng.random() < 0.4:
                counts[rng.randrange(low, LAST if high is None else high)] = rng.randrange(3)
            told.append(StatedProgress(low, high, {time: count for time, count in counts.items() if count}))
        events: list[Stated | StatedProgress] = [*updates, *told]
        for event in rng.sample(events, k=len(events)):
            stash.put(event)
        try:
            expected = naively(0, updates, told)
        except SourceFailure:
            failed += 1
            with pytest.raises(SourceFailure):
                stash.complete()
            continue
        assert stash.complete() == expected, f"seed {seed}"
        ended += expected is None
    assert failed
    assert bool(ended) == ends


def test_a_day_of_statements_that_wait_is_looked_through_once() -> None:
    """With a look at all of them for each it would take weeks."""
    stash, count = Stash(0), 86_400
    for time in range(count):
        stash.put(stated(time, "row"))
        stash.put(StatedProgress(time, time + 1, {time: 1}))
    assert stash.complete() == count
    assert sum(1 for _ in stash.rows(count)) == count
    stash.taken(count)
    assert stash.count == 0
