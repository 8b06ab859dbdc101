"""What changes say they did is one thing for all of them: rows of the table, as often as they are there."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from spark.change.conftest import Held
from spark.change.models import Row, Rows, changed, merged, rows_of

from pyspark_persist import ChangeResult

Counts = tuple[int, int, int]
"""Rows deleted, updated and inserted."""


def row(entropy: random.Random) -> Row:
    """One of few, so that there are duplicates; with nulls everywhere."""
    key = None if entropy.random() < 0.15 else entropy.randrange(8)
    return key, entropy.choice(["a", "b", None]), entropy.choice([0, 1, None])


@dataclass
class Asked:
    """A change, what the table must hold after it, and what it must say."""

    run: Callable[[], ChangeResult]
    after: Rows
    counts: Counts


def is_small(each: Row) -> bool:
    return each[0] is not None and each[0] < 3


def deletion(held: Held, there: Rows, _: random.Random) -> Asked:
    gone = Rows({each: count for each, count in there.items() if is_small(each)})
    return Asked(lambda: held.table.delete("id < 3"), there - gone, (gone.total(), 0, 0))


def update(held: Held, there: Rows, entropy: random.Random) -> Asked:
    """Of rows of which some have the value already."""
    name = entropy.choice(["a", "b"])
    touched = sum(count for each, count in there.items() if is_small(each))
    after = changed(there, lambda each: (each[0], name, each[2]) if is_small(each) else each)
    return Asked(lambda: held.table.update({"name": f"'{name}'"}, "id < 3"), after, (0, touched, 0))


def idle_update(held: Held, there: Rows, _: random.Random) -> Asked:
    return Asked(lambda: held.table.update({"name": "name"}), there, (0, there.total(), 0))


def merge(held: Held, there: Rows, entropy: random.Random) -> Asked:
    given = list({each[0]: each for each in (row(entropy) for _ in range(8))}.values())
    said = {"deleted": 0, "updated": 0, "inserted": 0}

    def matched(mine: Row, theirs: Row) -> Row | None:
        said["deleted" if theirs[1] is None else "updated"] += there[mine]
        return None if theirs[1] is None else theirs

    def not_matched(theirs: Row) -> Row:
        said["inserted"] += 1
        return theirs

    def by_source(mine: Row) -> Row | None:
        said["deleted"] += there[mine] if mine[1] == "a" else 0
        return None if mine[1] == "a" else mine

    plain = bool(entropy.randrange(2))
    after = merged(
        there, given, matched=matched, not_matched=not_matched, by_source=(lambda mine: mine) if plain else by_source
    )
    frame = held.frame(*given)
    asked = held.table.merge(frame, "id").whenMatchedDelete("source.name is null").whenMatchedUpdateAll()
    asked = asked.whenNotMatchedInsertAll()
    asked = asked if plain else asked.whenNotMatchedBySourceDelete("target.name = 'a'")
    return Asked(asked.execute, after, (said["deleted"], said["updated"], said["inserted"]))


def straight_merge(held: Held, there: Rows, entropy: random.Random) -> Asked:
    """One that no expression decides, of rows of which some are there already."""
    given = list({each[0]: each for each in [row(entropy) for _ in range(6)]}.values())
    keys = {each[0] for each in there if each[0] is not None}
    updated = sum(there[mine] for mine in there for each in given if each[0] is not None and mine[0] == each[0])
    after = merged(
        there,
        given,
        matched=lambda _, theirs: theirs,
        not_matched=lambda theirs: theirs,
        by_source=lambda mine: mine,
    )
    asked = held.table.merge(held.frame(*given), "id").whenMatchedUpdateAll().whenNotMatchedInsertAll()
    return Asked(asked.execute, after, (0, updated, sum(each[0] not in keys for each in given)))


def overwrite(held: Held, there: Rows, entropy: random.Random) -> Asked:
    given = [each for each in (row(entropy) for _ in range(9)) if is_small(each)]
    gone = Rows({each: count for each, count in there.items() if is_small(each)})
    frame = held.frame(*given)
    return Asked(
        lambda: held.table.overwrite(frame, "id < 3"), there - gone + rows_of(given), (gone.total(), 0, len(given))
    )


def restore(held: Held, there: Rows, entropy: random.Random) -> Asked:
    """To a time since which rows have come, gone, and come and gone."""
    time = entropy.randrange(1, held.upper)
    then = held.rows(time)
    return Asked(lambda: held.table.restore(time), then, ((there - then).total(), 0, (then - there).total()))


CHANGES: dict[str, Callable[[Held, Rows, random.Random], Asked]] = {
    each.__name__: each for each in (deletion, update, idle_update, merge, straight_merge, overwrite, restore)
}


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_the_models_of_each_change(held: Held, seed: int) -> None:
    entropy = random.Random(seed)
    held.put(*(row(entropy) for _ in range(40)), at=1)
    held.put(*(row(entropy) for _ in range(40)), at=2)
    names = list(CHANGES) + entropy.choices(list(CHANGES), k=5)
    entropy.shuffle(names)
    for name in names:
        there = held.rows()
        asked = CHANGES[name](held, there, entropy)
        done = asked.run()
        assert held.rows() == asked.after, name
        assert (done.rows_deleted, done.rows_updated, done.rows_inserted) == asked.counts, name
        assert held.table.count() - there.total() == done.rows_inserted - done.rows_deleted, name


def test_restore_counts_rows_and_not_the_updates_that_led_to_them(held: Held) -> None:
    held.put(*((key, "a", 0) for key in range(10)), at=1)
    for n in range(1, 6):
        assert held.table.update({"n": f"{n}"}, "id < 4").rows_updated == 4
    held.table.delete("id = 9")
    held.put((20, "new", 1), (20, "new", 1), at=held.upper)
    done = held.table.restore(1)
    assert held.rows() == held.rows(1)
    # Four rows were others in the meantime, one was gone, and two had come.
    assert (done.rows_deleted, done.rows_updated, done.rows_inserted) == (6, 0, 5)
    assert done.rows == 10  # updates: what is there twice is taken back by one
    again = held.table.restore(1)
    assert (again.rows, again.rows_read, again.rows_deleted, again.rows_inserted) == (0, 0, 0, 0)


def test_row_that_is_there_less_often_than_never_is_put_back(held: Held) -> None:
    held.put((1, "a", 0), at=1)
    held.put((2, "b", 0), at=1 + 1, diff=-1)
    done = held.table.delete()
    assert (done.rows_deleted, done.rows_inserted, held.rows()) == (1, 1, rows_of([]))


def test_audit_counts_what_the_change_says(held: Held) -> None:
    held.put(*((key, "a", 0) for key in range(5)), at=1)
    held.table.startAudit()
    held.table.update({"n": "n + 1"}, "id < 2")
    held.table.update({"n": "n + 1"}, "id < 2")
    said = held.table.restore(1)
    told: Any = held.table.audit().select("operation", "rows_deleted", "rows_updated", "rows_inserted").first()
    assert tuple(told) == ("restore", said.rows_deleted, 0, said.rows_inserted) == ("restore", 2, 0, 2)
