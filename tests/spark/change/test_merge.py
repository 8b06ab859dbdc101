"""A merge comes to what a model says, with nulls and duplicates; a row that several rows would change is refused."""

import random
from typing import Any

import pytest
from pyspark.sql import functions as sf
from spark.change.conftest import Held
from spark.change.models import Row, changed, merged, rows_of

from persist import InvalidArgument
from pyspark_persist.change import merge as merges
from pyspark_persist.change import source as sources


def row(entropy: random.Random, keys: int) -> Row:
    key = None if entropy.random() < 0.1 else entropy.randrange(keys)
    name = None if entropy.random() < 0.2 else entropy.choice("abc")
    return key, name, None if entropy.random() < 0.2 else entropy.randrange(4)


@pytest.mark.parametrize("seed", range(3))
def test_merge_with_every_clause_comes_to_what_the_model_says(held: Held, seed: int) -> None:
    entropy = random.Random(seed)
    there = [row(entropy, 60) for _ in range(120)]
    given = list({each[0]: each for each in (row(entropy, 90) for _ in range(80))}.values())
    given += [(None, "a", 1), (None, "b", 2)]
    held.put(*there[:70], at=5)
    held.put(*there[70:], at=9)
    held.spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1" if seed else "10485760")
    merge = (
        held.table.merge(held.frame(*given), "target.id = s.id", sourceAlias="s")
        .whenMatchedDelete("s.name = 'a'")
        .whenMatchedUpdate("target.n < s.n", set={"n": "s.n", "name": "concat(target.name, s.name)"})
        .whenMatchedUpdateAll("s.name = 'c'")
        .whenNotMatchedInsert("s.n = 1", values={"id": "s.id", "name": "'one'"})
        .whenNotMatchedInsertAll("s.n > 1")
        .whenNotMatchedBySourceUpdate("target.n = 0", set={"name": sf.lit("zero")})
        .whenNotMatchedBySourceDelete("target.n = 3")
    )

    def matched(mine: Row, other: Row) -> Row | None:
        if other[1] == "a":
            return None
        if mine[2] is not None and other[2] is not None and mine[2] < other[2]:
            return mine[0], mine[1] + other[1] if mine[1] and other[1] else None, other[2]
        return other if other[1] == "c" else mine

    def not_matched(other: Row) -> Row | None:
        if other[2] == 1:
            return other[0], "one", None
        return other if other[2] is not None and other[2] > 1 else None

    def by_source(mine: Row) -> Row | None:
        return (mine[0], "zero", 0) if mine[2] == 0 else None if mine[2] == 3 else mine

    done = merge.execute()
    held.spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
    expected = merged(rows_of(there), given, matched=matched, not_matched=not_matched, by_source=by_source)
    assert held.rows() == expected
    assert held.rows(9) == rows_of(there)
    assert done.rows_read == len(rows_of(there))
    assert len(there) - done.rows_deleted + done.rows_inserted == expected.total()
    assert min(done.rows_deleted, done.rows_inserted, done.rows_updated) > 0


@pytest.mark.parametrize("on", ["ID", ["id", "name"], "target.id = source.id", None], ids=str)
def test_rows_match_by_columns_or_by_a_condition(held: Held, on: Any) -> None:
    on = sf.col("target.id") == sf.col("source.id") if on is None else on
    held.put((1, "a", 1), (2, "b", 2), (2, "b", 2), (None, "n", 0), at=3)
    source = held.frame((2, "b", 9), (None, "n", 9), (3, "c", 9))
    held.table.merge(source, on).whenMatchedUpdate(set={"n": "source.n"}).whenNotMatchedInsertAll().execute()
    assert held.rows() == rows_of([(1, "a", 1), (2, "b", 9), (2, "b", 9), (None, "n", 0), (None, "n", 9), (3, "c", 9)])


def test_null_matches_null_where_the_condition_says_so(held: Held) -> None:
    held.put((1, "a", 1), (None, "n", 0), at=3)
    merge = held.table.merge(held.frame((None, "x", 9)), "target.id <=> source.id")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    assert held.rows() == rows_of([(1, "a", 1), (None, "x", 9)])


@pytest.mark.parametrize("threshold", ["-1", "100m"])
def test_row_that_several_rows_of_a_large_source_would_change_is_refused(held: Held, threshold: str) -> None:
    size = 40_000
    held.put(*[(key, "t", 0) for key in range(size)], at=3)
    before = held.kept()
    unique = held.spark.range(size).selectExpr("id", "'s' as name", "id as n")
    doubled = unique.union(held.frame((size // 2, "again", 1)))
    held.spark.conf.set("spark.sql.autoBroadcastJoinThreshold", threshold)
    held.spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        for source in (doubled, sf.broadcast(doubled)):
            for merge in (
                held.table.merge(source, "id").whenMatchedUpdateAll(),
                held.table.merge(source, "id").whenMatchedDelete().whenNotMatchedInsertAll(),
            ):
                with pytest.raises(InvalidArgument, match="several rows of the source"):
                    merge.execute()
        assert held.kept() == before
        done = held.table.merge(doubled, "id").whenMatchedUpdateAll("source.name = 's'").execute()
    finally:
        held.spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
        held.spark.conf.set("spark.sql.shuffle.partitions", "1")
    assert (done.rows_updated, done.rows_read) == (size, size)
    assert held.rows() == rows_of((key, "s", key) for key in range(size))


def test_duplicates_of_the_source_that_match_nothing_are_all_added(held: Held) -> None:
    held.put((1, "a", 1), at=3)
    source = held.frame((1, "x", 0), (1, "y", 0), (2, "z", 0), (2, "z", 0))
    held.table.merge(source, "id").whenNotMatchedInsertAll().execute()
    assert held.rows() == rows_of([(1, "a", 1), (2, "z", 0), (2, "z", 0)])


def test_merge_of_nothing_and_into_nothing(held: Held) -> None:
    none, some = held.frame(columns="id long, name string, n long"), held.frame((1, "a", 1), (1, "a", 1))
    every = held.table.merge(none, "id").whenMatchedUpdateAll().whenNotMatchedInsertAll().whenNotMatchedBySourceDelete()
    assert every.execute().rows == 0
    assert held.upper == 0
    assert held.table.merge(some, "id").whenMatchedDelete().whenNotMatchedInsertAll().execute().rows_inserted == 2
    assert held.rows() == rows_of([(1, "a", 1)] * 2)
    assert every.execute().rows_deleted == 2
    assert held.rows() == rows_of([])


@pytest.mark.parametrize("small", [True, False])
def test_table_that_is_joined_is_never_sent_whole_to_every_process(
    held: Held, monkeypatch: pytest.MonkeyPatch, plans: list[str], small: bool
) -> None:
    """Spark knows nothing of its size: it broadcast five million rows, and ended for want of memory."""
    monkeypatch.setattr(merges, "TABLE_BYTES", 0)
    monkeypatch.setattr(sources, "SMALL_BYTES", 1 << 63 if small else 0)
    held.put((1, "a", 1), (2, "b", 2), (3, "b", 3), at=3)
    merge = held.table.merge(held.frame((7, "b", 9), (8, "x", 9)), "name").whenMatchedUpdate(set={"n": "source.n"})
    merge.execute()
    merge.whenNotMatchedInsertAll().execute()
    merge.whenNotMatchedBySourceDelete().execute()
    merge.whenNotMatchedInsertAll().whenNotMatchedBySourceDelete().execute()
    assert held.rows() == rows_of([(2, "b", 9), (3, "b", 9), (8, "x", 9)])
    joins = [line for plan in plans for line in plan.splitlines() if "Join" in line]
    # A small one is looked for by the tasks themselves, where no other row of the table is changed.
    assert len(joins) == (2 if small else 4)
    assert not [line for line in joins if "BuildLeft" in line]
    assert sum("BroadcastHashJoin" in line for line in joins) == (1 if small else 0)


def test_change_feed_of_another_table_is_a_source(held: Held) -> None:
    held.put((1, "a", 1), (2, "b", 2), (3, "c", 3), at=3)
    held.put((2, "b", 2), at=5, diff=-1)
    held.put((3, "c", 3), at=6, diff=-1)
    held.put((3, "d", 4), at=7)
    feed = held.table.changes(5).where("_change_type != 'delete' or id = 2")
    held.put((2, "b", 2), (3, "c", 3), at=8)
    merge = held.table.merge(feed, "id").whenMatchedDelete("source._change_type = 'delete'")
    merge.whenMatchedUpdate(
        "source._commit_version = 7 and target.n = 3", set={"n": "-source._commit_version"}
    ).execute()
    assert held.rows() == rows_of([(1, "a", 1), (3, "d", 4), (3, "c", -7)])


def test_builder_can_be_continued_twice(held: Held) -> None:
    held.put((1, "a", 1), (2, "b", 2), at=3)
    matching = held.table.merge(held.frame((1, "x", 9), (5, "y", 9)), "id")
    inserting = matching.whenNotMatchedInsertAll()
    matching.whenMatchedDelete().execute()
    assert held.rows() == rows_of([(2, "b", 2)])
    inserting.execute()
    assert held.rows() == rows_of([(2, "b", 2), (1, "x", 9), (5, "y", 9)])
    assert changed(held.rows(), lambda each: each) == held.rows()


@pytest.mark.parametrize("sides", [("x", "x"), ("x", "X"), ("source", "source")])
def test_sides_of_one_alias_are_refused(held: Held, sides: tuple[str, str]) -> None:
    """``x.id = x.id`` holds for every row, and was taken for the table's equal to the source's."""
    held.put((1, "a", 1), (2, "b", 2), at=3)
    before = held.kept()
    target, source = sides
    with pytest.raises(InvalidArgument, match="one alias"):
        held.table.merge(held.frame((1, "x", 9)), "x.id = x.id", targetAlias=target, sourceAlias=source)
    assert held.kept() == before
