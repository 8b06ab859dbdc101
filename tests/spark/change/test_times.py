"""Counts, views and tags of a table at its times."""

from typing import Any

import pyarrow as pa
import pytest
from spark.change.conftest import Held
from spark.change.models import rows_of

import persist
from persist import InvalidArgument, InvalidBounds, InvalidId, NotReadable, ShardNotFound
from pyspark_persist import PersistTable
from pyspark_persist.counting import proven


def test_count_is_that_of_the_rows_at_every_time(held: Held) -> None:
    assert held.table.count() == 0
    held.put((1, "a", 1), (1, "a", 1), (2, "b", 2), at=4)
    held.put((1, "a", 1), at=6, diff=-1)
    names = [*held.writer.schema.key.names, *held.writer.schema.val.names]
    updates = [(dict(zip(names[:1], (key,), strict=True)), {"name": "x", "n": 0}) for key in range(5)]
    held.writer.append([(row, 8 + place, 1) for place, row in enumerate(updates)], new_upper=20)
    target = held.table._target()
    for time, expected in ((3, 0), (4, 3), (5, 3), (6, 2), (7, 2), (8, 3), (10, 5), (19, 7)):
        assert held.table.count(asOf=time) == expected == held.rows(time).total()
        assert proven(target, time) in (None, expected)
    assert proven(target, 19) == 7
    assert proven(target, 10) is None
    assert held.table.count() == 7
    with pytest.raises(InvalidBounds):
        held.table.count(asOf=20)


def test_count_of_an_append_retried_under_tighter_bounds_counts_what_readers_see(held: Held) -> None:
    row = ({"id": 1}, {"name": "a", "n": 1})
    rival = held.client.open_writer(held.shard)
    rival.append([(row, time, 1) for time in range(4)], new_upper=4)
    held.writer.append([(row, time, 1) for time in range(8)], new_upper=8)
    assert held.rows().total() == 8
    for time in range(8):
        assert held.table.count(asOf=time) == time + 1


def test_view_shows_the_time_it_was_made_at(held: Held) -> None:
    held.put((1, "a", 1), at=4)
    held.put((2, "b", 2), at=6)
    held.table.createView("changing", asOf=4)
    assert [tuple(row) for row in held.spark.sql("select * from changing").collect()] == [(1, "a", 1)]
    held.table.createView("changing")
    assert held.spark.sql("select sum(n) as n from changing").collect()[0].n == 3


def test_tag_keeps_a_time_readable_until_it_is_untagged(held: Held) -> None:
    held.put((1, "a", 1), at=4)
    held.put((1, "a", 1), at=6, diff=-1)
    held.put((2, "b", 2), at=8)
    assert held.table.tag("first", asOf=4) == 4
    assert held.table.tag("first", asOf=4) == held.table.tag("first") == 4
    assert held.table.tag("newest") == 8
    assert held.table.tags() == {"first": 4, "newest": 8}
    with pytest.raises(InvalidArgument, match="another time's"):
        held.table.tag("first", asOf=6)
    with held.client.open_reader(held.shard) as reader:
        reader.downgrade_since(8)
    assert held.table.restore(held.table.tags()["first"]).rows == 2
    assert held.rows() == rows_of([(1, "a", 1)])
    with held.client.open_reader(held.shard) as reader:
        reader.downgrade_since(held.upper - 1)
    assert held.table.count(asOf=4) == 1
    assert held.table.untag("first")
    assert not held.table.untag("first")
    assert held.table.tags() == {"newest": 8}
    with held.client.open_reader(held.shard) as reader:
        reader.downgrade_since(held.upper - 1)
    with pytest.raises(NotReadable):
        held.table.count(asOf=4)


def test_tag_that_is_refused_holds_nothing(held: Held, spark: Any, location: str) -> None:
    held.put((1, "a", 1), at=4)
    with held.client.open_reader(held.shard) as reader:
        reader.downgrade_since(3)
    before = held.client.inspect(held.shard)["critical_readers"]
    for error, name, time in ((InvalidBounds, "x", 5), (NotReadable, "x", 1), (InvalidId, "a name", 4)):
        with pytest.raises(error):
            held.table.tag(name, asOf=time)
    with pytest.raises(InvalidArgument):
        held.table.tag("x", asOf=-1)
    assert held.client.inspect(held.shard)["critical_readers"] == before
    with pytest.raises(ShardNotFound):
        PersistTable.forName(spark, "nope", location=location).tags()


def test_sweep_deletes_what_was_never_committed_and_nothing_else(held: Held, spark: Any, location: str) -> None:
    held.put(*[(key, "t", key) for key in range(2_000)], at=4)
    other = held.client.open_writer(persist.ShardId.new(), schema=held.writer.schema)
    spec = held.client.batch_spec(held.shard, held.writer.schema, writer_id=other.writer_id)
    builder = spec.open()
    builder.add(pa.table({"id": range(2_000), "name": ["lost"] * 2_000, "n": range(2_000)}))
    assert builder.finish().rows == 2_000
    assert (held.table.sweep().leaked, held.table.sweep().unlinked) == (0, 1)
    assert (held.table.sweep(safeAgeHours=0).leaked, held.table.sweep(safeAgeHours=0).deleted) == (1, False)
    done = held.table.sweep(dryRun=False, safeAgeHours=0)
    assert (done.leaked, done.deleted) == (1, True)
    assert held.table.sweep(safeAgeHours=0).leaked == 0
    assert held.rows().total() == 2_000
    with pytest.raises(ShardNotFound):
        PersistTable.forName(spark, "nope", location=location).sweep()
