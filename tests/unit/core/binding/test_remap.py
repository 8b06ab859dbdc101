"""Remap rows: what is accepted as a history of a source, and the exact form of a row in the shard."""

import numpy as np
import pyarrow as pa
import pytest

from persist.core.binding.reclock import Reclocker, reclock_frontier, source_upper_at_frontier
from persist.core.binding.remap import RemapTrace, RemapUpdate, changes
from persist.core.binding.remap_rows import REMAP_SCHEMA, decode_time, encode_time, from_table, to_table
from persist.core.frontier import CLOSED, MINIMUM, Antichain
from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import OFFSET_MAX, Lsn, Point, Range, SourceKind, SourceTime
from persist.core.time.errors import UpstreamReplaced
from persist.errors import CorruptData, InvalidArgument, InvalidBounds, NotReadable, NotYetAvailable, VersionMismatch

LSN, PARTITIONS, FILES = SourceKind.LSN, SourceKind.PARTITIONS, SourceKind.FILES


def at(position: int) -> SourceFrontier:
    return SourceFrontier.at(LSN, {0: position})


def tenfold(upper: int, since: int = 0) -> RemapTrace:
    """R(t) = 10 t."""
    rows = changes(None, at(0), 0)
    for ts in range(1, upper):
        rows += changes(at(10 * (ts - 1)), at(10 * ts), ts)
    return RemapTrace.of(LSN, rows, Antichain.of(since), Antichain.of(upper))


@pytest.mark.parametrize(
    "rows",
    [
        [RemapUpdate(Lsn(0), 1, 1)],
        [RemapUpdate(Lsn(5), 0, 1)],
        [RemapUpdate(Lsn(0), 0, 2)],
        [RemapUpdate(Lsn(0), 0, -1)],
        [RemapUpdate(Lsn(0), 0, 1), RemapUpdate(Lsn(5), 2, 1)],
        [RemapUpdate(Lsn(0), 0, 1), RemapUpdate(Lsn(4), 2, -1), RemapUpdate(Lsn(5), 2, 1)],
        [RemapUpdate(Lsn(0), 0, 1), *changes(at(0), at(5), 2), *changes(at(5), at(4), 3)],
        [],
    ],
    ids=["late", "not-the-minimum", "twice", "negative", "two-elements", "foreign-retraction", "regression", "empty"],
)
def test_rows_that_are_no_history_of_a_source_are_corrupt(rows):
    with pytest.raises(CorruptData):
        RemapTrace.of(LSN, rows, MINIMUM, Antichain.of(9))


def test_rows_that_leave_partitions_uncovered_are_corrupt():
    rows = [RemapUpdate(Range(), 0, 1), RemapUpdate(Range(), 1, -1), RemapUpdate(Point(3, 4), 1, 1)]
    with pytest.raises(CorruptData):
        RemapTrace.of(PARTITIONS, rows, MINIMUM, Antichain.of(2))


def test_rows_outside_of_their_batch_are_refused():
    trace = tenfold(4)
    for rows, upper in [(changes(at(30), at(40), 3), 6), (changes(at(30), at(40), 6), 6), ([], 3)]:
        with pytest.raises(InvalidBounds):
            trace.extended(rows, Antichain.of(upper))


def test_rows_that_cancel_bind_nothing():
    trace = tenfold(4)
    rows = [*changes(at(30), at(40), 5), *changes(at(40), at(30), 5)]
    assert trace.extended(rows, Antichain.of(9)).bindings == trace.bindings


def test_only_changed_elements_are_written():
    before = SourceFrontier.at(PARTITIONS, {0: 5, 1: 7})
    raised = SourceFrontier.at(PARTITIONS, {0: 5, 1: 8})
    assert changes(before, raised, 4) == [RemapUpdate(Point(1, 7), 4, -1), RemapUpdate(Point(1, 8), 4, 1)]
    wider = SourceFrontier.at(PARTITIONS, {0: 5, 1: 7, 4: 0})
    assert changes(before, wider, 4) == [
        RemapUpdate(Range(1, None), 4, -1),
        RemapUpdate(Range(1, 4), 4, 1),
        RemapUpdate(Point(4, 0), 4, 1),
        RemapUpdate(Range(4, None), 4, 1),
    ]
    assert [row.diff for row in changes(before, SourceFrontier.closed(PARTITIONS), 4)] == [-1, -1, -1]


@pytest.mark.parametrize("ts", range(1, 8))
def test_a_committed_upper_maps_to_what_was_bound_before_it(ts):
    assert source_upper_at_frontier(tenfold(7), Antichain.of(ts)) == at(10 * (ts - 1))


def test_inversion_at_the_borders():
    trace = tenfold(7, since=3)
    assert source_upper_at_frontier(trace, Antichain.of(3)) == at(0)
    assert source_upper_at_frontier(trace, Antichain.of(4)) == at(30)
    assert source_upper_at_frontier(trace, Antichain.of(7)) == trace.frontier == at(60)
    assert source_upper_at_frontier(trace, CLOSED).is_closed
    with pytest.raises(NotYetAvailable):
        source_upper_at_frontier(trace, Antichain.of(8))


def test_reclocking_a_frontier_at_the_borders():
    trace = tenfold(7, since=3)
    assert reclock_frontier(trace, at(30)) == Antichain.of(4)
    assert reclock_frontier(trace, at(39)) == Antichain.of(4)
    assert reclock_frontier(trace, at(40)) == Antichain.of(5)
    assert reclock_frontier(trace, at(60)) == reclock_frontier(trace, SourceFrontier.closed(LSN)) == Antichain.of(7)
    with pytest.raises(NotReadable) as caught:
        reclock_frontier(trace, at(29))
    assert caught.value.details["since"] == "[3]"
    with pytest.raises(NotYetAvailable):
        reclock_frontier(RemapTrace(kind=LSN), at(0))


def test_a_partition_known_to_be_empty_holds_no_frontier_back():
    empty = SourceFrontier.at(PARTITIONS, {3: 0})
    rows = [*changes(None, SourceFrontier.minimum(PARTITIONS), 0)]
    rows += changes(SourceFrontier.minimum(PARTITIONS), empty, 2)
    rows += changes(empty, SourceFrontier.at(PARTITIONS, {3: 1}), 4)
    trace = RemapTrace.of(PARTITIONS, rows, MINIMUM, Antichain.of(6))
    assert reclock_frontier(trace, SourceFrontier.minimum(PARTITIONS)) == Antichain.of(4)
    assert reclock_frontier(trace, SourceFrontier.at(PARTITIONS, {3: 1})) == Antichain.of(6)


def test_a_time_outside_since_and_upper_is_refused():
    trace = tenfold(7, since=3)
    with pytest.raises(NotReadable):
        trace.at(2)
    with pytest.raises(InvalidBounds):
        trace.at(7)


def test_compaction_keeps_a_readable_time():
    trace = tenfold(7)
    for since in (Antichain.of(7), CLOSED):
        with pytest.raises(InvalidBounds):
            trace.compacted(since)
    last = trace.compacted(Antichain.of(6))
    assert len(last.bindings) == 1
    assert last.compacted(Antichain.of(2)) == last
    assert source_upper_at_frontier(last, Antichain.of(7)) == at(60)


def test_a_finished_source_can_be_compacted_and_read_again():
    rows = changes(at(30), SourceFrontier.closed(LSN), 9)
    trace = tenfold(4).extended(rows, CLOSED)
    compacted = trace.compacted(Antichain.of(20))
    assert list(compacted.updates()) == []
    assert RemapTrace.of(LSN, [], Antichain.of(20), CLOSED) == compacted
    assert compacted.frontier.is_closed


def test_ten_thousand_bindings_stay_bounded_when_compacted():
    trace = RemapTrace(kind=LSN).extended(changes(None, at(0), 0), Antichain.of(1))
    for ts in range(1, 10_001):
        trace = trace.extended(changes(at(ts - 1), at(ts), ts), Antichain.of(ts + 1)).compacted(Antichain.of(ts - 1))
        assert len(trace.bindings) <= 2
    assert source_upper_at_frontier(trace, Antichain.of(10_000)) == at(9_999)


def test_columns_of_offsets_are_checked():
    log, files = Reclocker.of(tenfold(7)), Reclocker.of(RemapTrace(kind=FILES))
    for offsets in (np.array([-1]), np.array([1.0]), np.array([[1]])):
        with pytest.raises(InvalidArgument):
            log.reclock(offsets)
    one = np.array([1])
    with pytest.raises(InvalidArgument):
        log.reclock(one, one, ["a"])
    for codes in (None, np.array([0, 0]), np.array([0.0]), np.array([1]), np.array([-1])):
        with pytest.raises(InvalidArgument):
            files.reclock(one, codes, ["a"])
    with pytest.raises(InvalidArgument):
        log.reclock_arrow(pa.array([1, None]))
    assert log.reclock(np.array([], np.int64)).tolist() == []


def test_large_offsets_are_not_rounded():
    # As floats the two would be the same.
    trace = RemapTrace(kind=LSN).extended(changes(None, at(0), 0), Antichain.of(1))
    trace = trace.extended(changes(at(0), at(2**63 + 1), 1), Antichain.of(2))
    reclocker = Reclocker.of(trace)
    assert reclocker.reclock(np.array([2**63], np.uint64)).tolist() == [1]
    with pytest.raises(NotYetAvailable) as caught:
        reclocker.reclock(np.array([5, 2**63 + 1], np.uint64))
    assert caught.value.details["offset"] == str(2**63 + 1)


def test_a_reclocker_of_some_partitions_refuses_others():
    trace = RemapTrace(kind=PARTITIONS).extended(
        [
            *changes(None, SourceFrontier.minimum(PARTITIONS), 0),
            *changes(SourceFrontier.minimum(PARTITIONS), SourceFrontier.at(PARTITIONS, {0: 5, 1: 5}), 4),
        ],
        Antichain.of(5),
    )
    some = Reclocker.of(trace, [1])
    assert some.reclock(np.array([4]), np.array([1])).tolist() == [4]
    with pytest.raises(InvalidArgument):
        some.reclock(np.array([4]), np.array([0]))
    with pytest.raises(NotYetAvailable):
        Reclocker.of(trace).reclock(np.array([0]), np.array([7]))


def test_a_reclocker_between_two_frontiers_knows_what_moved_and_nothing_else():
    """A step of a source of 50,000 files that has one new one names, and sends to its tasks, that one."""
    many = SourceFrontier.at(FILES, {f"{each:05}": OFFSET_MAX for each in range(1_000)})
    more = many.join(SourceFrontier.at(FILES, {"new": 7, "00500": OFFSET_MAX}))
    minimum = SourceFrontier.minimum(FILES)
    trace = RemapTrace(kind=FILES).extended(
        [*changes(None, minimum, 0), *changes(minimum, many, 4), *changes(many, more, 6)], Antichain.of(7)
    )
    assert list(Reclocker.between(trace, many, more).bounds) == ["new"]
    assert Reclocker.between(trace, many, more).reclock(np.array([6]), np.array([0]), ["new"]).tolist() == [6]
    assert len(Reclocker.between(trace, minimum, more).bounds) == 1_001
    assert not Reclocker.between(trace, more, more).bounds
    closed = trace.extended(changes(more, SourceFrontier.closed(FILES), 7), Antichain.of(8))
    after = Reclocker.between(closed, more, SourceFrontier.closed(FILES))
    assert after.reclock(np.array([7, 0]), np.array([0, 1]), ["new", "unknown"]).tolist() == [7, 7]


GOLDEN = [
    (LSN, Lsn(0x1_0000_00AB), (1, "i", "lsn", None, None, None, 0x1_0000_00AB)),
    (PARTITIONS, Point(17, 5), (1, "i", "partitions", "17", None, None, 5)),
    (PARTITIONS, Range(None, 17), (1, "i", "partitions", None, None, "17", 0)),
    (PARTITIONS, Range(17, None), (1, "i", "partitions", None, "17", None, 0)),
    (PARTITIONS, Range(), (1, "i", "partitions", None, None, None, 0)),
    (FILES, Point("", OFFSET_MAX), (1, "i", "files", "", None, None, OFFSET_MAX)),
    (FILES, Range("", "b/ü"), (1, "i", "files", None, "", "b/ü", 0)),
]


@pytest.mark.parametrize(("kind", "time", "row"), GOLDEN, ids=[f"{kind.value}-{time}" for kind, time, _ in GOLDEN])
def test_rows_have_their_documented_form(kind, time, row):
    assert encode_time(kind, "i", time) == row
    assert decode_time(kind, "i", row) == time
    updates = [RemapUpdate(time, 8, -1)]
    table = to_table(kind, "i", updates)
    assert table.schema == REMAP_SCHEMA.updates
    assert table.to_pylist() == [dict(zip(REMAP_SCHEMA.updates.names, (*row, 8, -1), strict=True))]
    assert from_table(kind, "i", table) == updates


def test_columns_are_those_of_version_1():
    fields = [f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in REMAP_SCHEMA.updates]
    assert fields == [
        "version int32 not null",
        "incarnation string not null",
        "kind string not null",
        "partition string",
        "after string",
        "before string",
        "offset uint64 not null",
        "ts uint64 not null",
        "diff int64 not null",
    ]


def test_no_rows_are_a_table_too():
    assert from_table(LSN, "i", to_table(LSN, "i", [])) == []


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ((2, "i", "partitions", "17", None, None, 5), VersionMismatch),
        ((1, "j", "partitions", "17", None, None, 5), UpstreamReplaced),
        ((1, "i", "files", "17", None, None, 5), CorruptData),
        ((1, "i", "partitions", "017", None, None, 5), CorruptData),
        ((1, "i", "partitions", "-1", None, None, 5), CorruptData),
        ((1, "i", "partitions", "x", None, None, 5), CorruptData),
        ((1, "i", "partitions", "17", "1", None, 5), CorruptData),
        ((1, "i", "partitions", "17", None, None, None), CorruptData),
        ((1, "i", "partitions", "17", None, None, -5), CorruptData),
    ],
    ids=["version", "incarnation", "kind", "zeros", "negative", "word", "point-and-range", "null", "sign"],
)
def test_a_row_of_another_form_is_not_decoded(row, error):
    with pytest.raises(error):
        decode_time(PARTITIONS, "i", row)


def test_a_time_of_another_kind_has_no_row():
    others: list[tuple[SourceKind, SourceTime]] = [
        (LSN, Point(0, 1)),
        (PARTITIONS, Lsn(1)),
        (FILES, Point(1, 1)),
        (FILES, Range(1, None)),
    ]
    for kind, time in others:
        with pytest.raises(InvalidArgument):
            encode_time(kind, "i", time)
