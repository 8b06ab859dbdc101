"""The oracle over any history of requests, lost windows, restarts and clock steps."""

from hypothesis import given
from hypothesis import strategies as st
from property.time.sources import LAW

from persist.core.time.oracle import Issued, Oracle, OracleRow, Reserve, open_oracle

ACTIONS = st.tuples(
    st.sampled_from(["issue", "issue", "apply old", "apply new", "read", "restart", "crash while reserving"]),
    st.integers(0, 1_000),
    st.integers(1, 20),
)


class Timeline:
    """One stored row and its present owner."""

    def __init__(self, window: int, has_clock: bool) -> None:
        self.window, self.has_clock = window, has_clock
        self.row: OracleRow | None = None
        self.oracle: Oracle
        self.open(0)

    def open(self, now: int) -> None:
        self.row, self.oracle = open_oracle(self.row, window=self.window, now=now, has_clock=self.has_clock)

    def reserve(self, answer: Reserve) -> None:
        assert answer.row.reserved > self.row.reserved
        self.row = answer.row
        self.oracle = self.oracle.reserved(answer.row)

    def issue(self, now: int, count: int) -> Issued:
        answer = self.oracle.issue(now, count)
        if isinstance(answer, Reserve):
            self.reserve(answer)
            answer = self.oracle.issue(now, count)
        assert not isinstance(answer, Reserve), "a window holds what it was reserved for"
        self.oracle, issued = answer
        return issued

    def apply(self, ts: int) -> None:
        answer = self.oracle.apply(ts)
        if isinstance(answer, Reserve):
            self.reserve(answer)
            answer = self.oracle.apply(ts)
        assert isinstance(answer, Oracle)
        self.oracle = answer


@LAW
@given(st.booleans(), st.integers(1, 50), st.lists(ACTIONS, max_size=60))
def test_times_only_rise_and_reads_lie_between_applied_and_later_writes(has_clock, window, actions):
    timeline = Timeline(window, has_clock)
    given_out, applied, last_read = 0, 0, 0
    for what, now, count in actions:
        if what == "issue":
            issued = timeline.issue(now, count)
            assert issued.first > max(given_out, applied, last_read)
            assert issued.first >= now or not has_clock
            given_out = issued.first + count - 1
            assert issued.advance_to == given_out + 1
        elif what.startswith("apply"):
            ts = given_out if what == "apply old" else given_out + now
            timeline.apply(ts)
            applied = max(applied, ts)
        elif what == "restart":
            timeline.open(now)
        elif what == "crash while reserving":
            answer = timeline.oracle.issue(now, 1_000)
            if isinstance(answer, Reserve):
                timeline.row = answer.row
            timeline.open(now)
        read = timeline.oracle.read_ts
        assert read >= max(applied, last_read)
        assert read <= timeline.oracle.peek_write_ts() < timeline.row.reserved
        last_read = read


@LAW
@given(st.integers(0, 10**6), st.integers(1, 1_000), st.integers(0, 10**6), st.integers(0, 10**6))
def test_restart_goes_on_at_the_reserved_end_or_now(reserved, window, now, later):
    _, oracle = open_oracle(OracleRow(3, reserved + 1), window=window, now=now)
    answer = oracle.issue(now)
    if isinstance(answer, Reserve):
        answer = oracle.reserved(answer.row).issue(now)
    assert answer[1] == Issued(max(reserved + 1, now))
