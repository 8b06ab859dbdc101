"""Source frontiers: the documented examples, and every way of not tiling the space of partitions."""

import pickle

import pytest

from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import OFFSET_MAX, PARTITION_MAX, Lsn, Point, Range, SourceKind
from persist.errors import InvalidArgument

LSN, PARTITIONS, FILES = SourceKind.LSN, SourceKind.PARTITIONS, SourceKind.FILES


@pytest.mark.parametrize(
    ("kind", "bounds", "text"),
    [
        (PARTITIONS, {3: 7, 1: 5}, "{(-inf,1)@0, 1@5, (1,3)@0, 3@7, (3,+inf)@0}"),
        (PARTITIONS, {0: 5, 1: 0}, "{0@5, 1@0, (1,+inf)@0}"),
        (PARTITIONS, {}, "{(-inf,+inf)@0}"),
        (FILES, {"b": 2, "a": 1}, "{(-inf,a)@0, a@1, (a,b)@0, b@2, (b,+inf)@0}"),
        (FILES, {"": 1, "\0": 2}, "{@1, \0@2, (\0,+inf)@0}"),
        (LSN, {0: 0x1_0000_00AB}, "{1/AB}"),
    ],
    ids=["document", "no-key-between", "nothing-known", "paths", "adjacent-paths", "lsn"],
)
def test_elements_are_the_known_partitions_and_the_ranges_between(kind, bounds, text):
    assert str(SourceFrontier.at(kind, bounds)) == text


@pytest.mark.parametrize("kind", SourceKind)
def test_closed_has_no_elements_and_lies_beyond_everything(kind):
    closed = SourceFrontier.closed(kind)
    assert closed.elements == ()
    assert SourceFrontier.of(kind, []) == closed
    assert closed.beyond(Lsn(OFFSET_MAX) if kind is LSN else Point(kind.least, OFFSET_MAX))
    assert not closed.less_equal(SourceFrontier.minimum(kind))
    assert not closed.releases_within(SourceFrontier.minimum(kind))
    assert closed.bound(kind.least) == OFFSET_MAX


@pytest.mark.parametrize(
    ("kind", "elements"),
    [
        (PARTITIONS, [Point(1, 5)]),
        (PARTITIONS, [Range(None, 1), Point(1, 5)]),
        (PARTITIONS, [Range(None, 1), Point(1, 5), Range(2, None)]),
        (PARTITIONS, [Range(None, 2), Point(1, 5), Range(1, None)]),
        (PARTITIONS, [Range(None, 1), Point(1, 5), Point(1, 6), Range(1, None)]),
        (PARTITIONS, [Range(None, 1), Point(1, 5), Point(1, 5), Range(1, None)]),
        (PARTITIONS, [Range(None, 1), Point(1, 5), Range(1, None, 3)]),
        (PARTITIONS, [Range(None, 0), Point(0, 5), Range(0, None)]),
        (PARTITIONS, [Range(None, 4), Range(3, None)]),
        (PARTITIONS, [Range("a", "b")]),
        (PARTITIONS, [Lsn(4)]),
        (FILES, [Range(None, 1), Point(1, 5), Range(1, None)]),
        (LSN, [Lsn(4), Lsn(4)]),
        (LSN, [Range(None, None)]),
        (LSN, [Point(0, 4)]),
    ],
    ids=[
        "no-range",
        "no-end",
        "gap",
        "overlap",
        "two-offsets",
        "twice",
        "range-not-at-0",
        "empty-range",
        "no-point-between",
        "keys-of-another-kind",
        "lsn-among-partitions",
        "numbers-among-paths",
        "two-positions",
        "range-in-a-log",
        "point-in-a-log",
    ],
)
def test_elements_that_do_not_tile_are_refused(kind, elements):
    with pytest.raises(InvalidArgument):
        SourceFrontier.of(kind, elements)


def test_what_is_missing_is_named():
    with pytest.raises(InvalidArgument) as caught:
        SourceFrontier.of(PARTITIONS, [Range(None, 1), Point(1, 5)])
    assert caught.value.details["missing"] == "['(1,+inf)@0']"
    assert caught.value.details["unexpected"] == "[]"


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (PARTITIONS, -1),
        (PARTITIONS, True),
        (PARTITIONS, "1"),
        (PARTITIONS, PARTITION_MAX + 1),
        (FILES, 1),
        (FILES, "\ud800"),
        (LSN, 1),
    ],
    ids=ascii,
)
def test_a_key_of_another_kind_is_refused(kind, key):
    with pytest.raises(InvalidArgument):
        SourceFrontier.at(kind, {key: 1})


@pytest.mark.parametrize("offset", [-1, OFFSET_MAX + 1, 1.0, True, None])
def test_an_offset_is_a_u64(offset):
    for make in (Lsn, lambda it: Point(0, it), lambda it: Range(None, None, it)):
        with pytest.raises(InvalidArgument):
            make(offset)


@pytest.mark.parametrize("offset", [OFFSET_MAX - 1, OFFSET_MAX])
def test_going_through_the_last_offset_never_finishes_a_partition_by_accident(offset):
    with pytest.raises(InvalidArgument):
        SourceFrontier.through(PARTITIONS, [Point(0, offset)])


def test_a_range_has_no_message():
    frontier = SourceFrontier.minimum(PARTITIONS)
    with pytest.raises(InvalidArgument):
        SourceFrontier.through(PARTITIONS, [Range()])
    assert frontier.less_equal_time(Range(4, 9))
    assert frontier.join(SourceFrontier.at(PARTITIONS, {5: 0})).beyond(Range(4, 9))
    assert frontier.join(SourceFrontier.at(PARTITIONS, {4: 0})).less_equal_time(Range(4, 9))


def test_a_partition_known_to_be_empty_lies_beyond_an_unknown_one():
    unknown, empty = SourceFrontier.minimum(PARTITIONS), SourceFrontier.at(PARTITIONS, {3: 0})
    assert unknown.less_equal(empty)
    assert not empty.less_equal(unknown)
    assert empty.releases_within(unknown)


def test_frontiers_of_two_kinds_are_not_compared():
    mine, other = SourceFrontier.minimum(PARTITIONS), SourceFrontier.minimum(FILES)
    for compare in (mine.join, mine.meet, mine.less_equal, mine.releases_within):
        with pytest.raises(InvalidArgument):
            compare(other)
    with pytest.raises(InvalidArgument):
        mine.less_equal_time(Lsn(1))


def test_ranges_lie_before_what_they_hold_and_points_before_no_range():
    assert Range(1, 9).less_equal(Range(1, 4))
    assert Range(1, 9).less_equal(Point(4, 0))
    assert not Range(1, 9).less_equal(Point(9, 5))
    assert not Range(1, 9, 3).less_equal(Point(4, 2))
    assert not Range(1, 4).less_equal(Range(None, 4))
    assert not Range(1, 4).less_equal(Range(1, None))
    assert not Point(4, 0).less_equal(Range(1, 9))
    assert not Point(4, 0).less_equal(Point(5, 1))
    assert not Lsn(1).less_equal(Point(0, 1))


def test_frontiers_travel_to_executors():
    frontier = SourceFrontier.at(FILES, {"a": 1})
    assert pickle.loads(pickle.dumps(frontier)) == frontier
