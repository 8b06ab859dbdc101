"""The oracle: windows, owners, clocks, and the end of time."""

import pytest

from persist.core.frontier import CLOSED, TIME_MAX, Antichain
from persist.core.time.oracle import Issued, Oracle, OracleRow, Reserve, observed, open_oracle
from persist.core.time.refusals import ClockAhead
from persist.errors import InvalidArgument, InvalidBounds


def opened(now: int = 1_000, window: int = 100, **more: object) -> Oracle:
    return open_oracle(None, now=now, window=window, **more)[1]


def test_times_come_from_the_clock_and_then_from_counting():
    oracle, issued = opened().issue(1_000)
    assert issued == Issued(1_000)
    assert issued.advance_to == 1_001
    oracle, issued = oracle.issue(1_000)
    assert issued == Issued(1_001)
    oracle, issued = oracle.issue(1_050, 10)
    assert issued == Issued(1_050, 10)
    assert oracle.peek_write_ts() == 1_059
    assert oracle.read_ts == 0


def test_a_clock_that_steps_back_is_ignored():
    oracle, _ = opened().issue(1_050)
    assert oracle.issue(0)[1] == Issued(1_051)


def test_nothing_is_given_out_beyond_the_window():
    oracle = opened(now=1_000, window=100)
    assert oracle.row == OracleRow(1, 1_101)
    assert oracle.issue(1_100)[1] == Issued(1_100)
    assert oracle.issue(1_101) == Reserve(OracleRow(1, 1_202))
    assert oracle.issue(1_000, 500) == Reserve(OracleRow(1, 1_600))
    assert oracle.apply(1_101) == Reserve(OracleRow(1, 1_202))
    assert oracle.reserved(OracleRow(1, 1_202)).issue(1_101)[1] == Issued(1_101)


@pytest.mark.parametrize("row", [OracleRow(2, 9_999), OracleRow(1, 1_100)], ids=["other-owner", "back"])
def test_a_window_of_somebody_else_is_refused(row):
    with pytest.raises(InvalidArgument):
        opened().reserved(row)


def test_the_next_owner_begins_behind_the_window_though_its_clock_is_late():
    row, oracle = open_oracle(OracleRow(4, 1_101), now=5, window=100)
    assert row == OracleRow(5, 1_201)
    assert (oracle.write_ts, oracle.read_ts) == (1_100, 1_100)
    assert oracle.issue(5)[1] == Issued(1_101)


def test_an_oracle_opens_at_what_it_is_told():
    oracle = opened(initially=7_000)
    assert (oracle.write_ts, oracle.read_ts) == (7_000, 7_000)


def test_applying_moves_reads_and_writes_forward_only():
    oracle = opened().apply(50)
    assert (oracle.read_ts, oracle.write_ts) == (50, 50)
    assert oracle.apply(20) == oracle
    oracle, _ = oracle.issue(1_000)
    assert oracle.apply(60).write_ts == 1_000


def test_a_clock_far_ahead_of_the_reference_is_refused():
    oracle = opened()
    for ask in (lambda: oracle.issue(12_001, reference=2_000), lambda: oracle.apply(12_001, reference=2_000)):
        with pytest.raises(ClockAhead):
            ask()
    assert isinstance(oracle.issue(12_000, reference=2_000), Reserve)
    inherited = opened(initially=3_600_000)
    assert inherited.issue(1_000, reference=1_000)[1] == Issued(3_600_001)
    assert inherited.apply(3_600_000, reference=1_000) == inherited


def test_a_timeline_without_a_clock_only_counts():
    oracle = opened(now=10**12, has_clock=False)
    assert oracle.row == OracleRow(1, 101)
    assert oracle.issue(10**12, reference=0)[1] == Issued(1)
    assert oracle.apply(90, reference=0).issue(0)[1] == Issued(91)


def test_the_end_of_time_is_refused():
    with pytest.raises(InvalidBounds):
        opened(has_clock=False).apply(TIME_MAX)
    with pytest.raises(InvalidBounds):
        opened(initially=TIME_MAX)
    oracle, last = opened(initially=TIME_MAX - 2).issue(0)
    assert last.advance_to == TIME_MAX
    with pytest.raises(InvalidBounds):
        oracle.issue(0)


@pytest.mark.parametrize(("count", "window"), [(0, 1), (-1, 1), (1, 0)])
def test_empty_batches_and_windows_are_refused(count, window):
    with pytest.raises(InvalidArgument):
        opened(window=window).issue(0, count)


def test_an_oracle_that_lost_its_order_is_refused():
    with pytest.raises(InvalidArgument):
        Oracle(row=OracleRow(1, 5), write_ts=5, read_ts=0, window=1)


@pytest.mark.parametrize(
    ("uppers", "ts"),
    [([], None), ([5, 9], 4), ([5, None], 4), ([None], None), ([0, 9], None), ([1], 0)],
    ids=["no-object", "least", "closed-does-not-count", "all-closed", "nothing-complete", "zero"],
)
def test_a_timeline_without_a_clock_follows_its_objects(uppers, ts):
    assert observed(CLOSED if upper is None else Antichain.of(upper) for upper in uppers) == ts
