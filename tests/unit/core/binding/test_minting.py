"""Minting by the table of failures: what is refused, what is inherited, what happens at the borders."""

import pytest
from sure import as_a, sure

from persist.core.binding.binding_log import Append, BindingLog, Covered, MintRules
from persist.core.binding.probe import Probe, check_available
from persist.core.binding.remap import RemapTrace, RemapUpdate
from persist.core.binding.resumption import ExportUpper, offset_resumption, offsets_of, remap_since, resumption
from persist.core.frontier import CLOSED, TIME_MAX, Antichain
from persist.core.source.source_frontier import SourceFrontier, place
from persist.core.source.source_time import Lsn, Point, Range, SourceKind
from persist.core.time.errors import ClockAhead, JumpTooLarge, UpstreamLost, UpstreamRegressed, UpstreamReplaced
from persist.errors import CorruptData, InvalidArgument, InvalidBounds, NotReadable, NotYetAvailable

KIND = SourceKind.PARTITIONS


def at(**bounds: int) -> SourceFrontier:
    return SourceFrontier.at(KIND, {int(name[1:]): bound for name, bound in bounds.items()})


def fresh(**rules: int) -> BindingLog:
    return BindingLog(trace=RemapTrace(kind=KIND), incarnation="one", rules=MintRules(**rules))


def bound(*steps: tuple[SourceFrontier, int], **rules: int) -> BindingLog:
    log = fresh(**rules)
    for frontier, now in steps:
        plan = log.ensure(frontier, now)
        assert isinstance(plan, Append)
        log = log.appended(plan)
    return log


def test_the_first_batch_holds_the_minimum_and_what_is_wanted():
    plan = fresh().ensure(at(p0=5), 12_345)
    assert plan == Append(
        expected_upper=Antichain.of(0),
        new_upper=Antichain.of(12_001),
        updates=(
            RemapUpdate(Range(), 0, 1),
            RemapUpdate(Range(), 12_000, -1),
            RemapUpdate(Point(0, 5), 12_000, 1),
            RemapUpdate(Range(0, None), 12_000, 1),
        ),
    )


def test_the_first_binding_of_a_clock_at_zero_does_not_meet_the_minimum():
    log = bound((at(p0=5), 0))
    assert [binding.ts for binding in log.trace.bindings] == [0, 1]


def test_what_is_bound_is_covered_and_more_is_bound_later():
    log = bound((at(p0=5), 2_000))
    assert log.ensure(at(p0=5), 9_000) == Covered()
    assert log.ensure(at(), 9_000) == Covered()
    assert log.lookup(Point(0, 4)).ts == 2_000
    log = log.appended(as_a(Append, log.ensure(at(p0=6), 2_000)))
    assert log.lookup(Point(0, 4)).ts == 2_000
    assert log.lookup(Point(0, 5)).ts == 2_001


def test_an_answer_tells_the_last_offset_it_covers():
    log = bound((at(p0=5), 2_000), (at(p0=9, p1=1), 4_000))
    binding = log.lookup(Point(0, 6))
    assert (binding.frontier.last(0), binding.ts) == (8, 4_000)
    assert log.ensure(SourceFrontier.through(KIND, [Point(0, 8)]), 9_000) == Covered()
    assert isinstance(log.ensure(SourceFrontier.through(KIND, [Point(0, 9)]), 9_000), Append)


def test_two_wishes_that_cross_are_both_kept():
    log = bound((at(p0=5, p1=1), 2_000), (at(p0=2, p1=7), 3_000))
    assert log.trace.frontier == at(p0=5, p1=7)


def test_unbound_and_forgotten_are_told_apart():
    log = bound((at(p0=5), 2_000), (at(p0=9), 4_000))
    with pytest.raises(NotYetAvailable) as caught:
        log.lookup(Point(0, 9))
    assert caught.value.details["upper"] == "[4001]"
    compacted = BindingLog(trace=log.trace.compacted(Antichain.of(2_000)), incarnation="one")
    with pytest.raises(NotReadable) as forgotten:
        compacted.lookup(Point(0, 4))
    assert forgotten.value.details["since"] == "[2000]"
    assert compacted.lookup(Point(0, 5)) == log.lookup(Point(0, 5))


def test_an_idle_source_ticks_without_rows():
    log = bound((at(p0=5), 2_000))
    assert log.advance(2_999) == Covered()
    assert log.advance(1_000) == Covered()
    assert log.advance(3_500) == Append(expected_upper=Antichain.of(2_001), new_upper=Antichain.of(3_001))
    first = fresh().advance(3_500)
    assert first == Append(
        expected_upper=Antichain.of(0), new_upper=Antichain.of(3_001), updates=(RemapUpdate(Range(), 0, 1),)
    )


def test_a_finished_source_closes_its_shard_for_good():
    log = bound((at(p0=5), 2_000))
    closed = log.appended(as_a(Append, log.ensure(SourceFrontier.closed(KIND), 5_000)))
    assert closed.trace.upper == CLOSED
    assert closed.lookup(Point(8, 0)).ts == 5_000
    assert closed.advance(9_000) == Covered()
    assert closed.ensure(at(p0=99), 9_000) == Covered()


def test_a_jump_is_measured_against_the_watermark_or_the_rule():
    log = bound((at(p0=5), 2_000), max_jump=100)
    assert isinstance(log.ensure(at(p0=105), 3_000), Append)
    for wanted in (at(p0=106), at(p1=101), SourceFrontier.closed(KIND)):
        with pytest.raises(JumpTooLarge):
            log.ensure(wanted, 3_000)
    assert isinstance(log.ensure(at(p0=500), 3_000, high=at(p0=500)), Append)
    for wanted in (at(p0=501), at(p0=6, p1=1), SourceFrontier.closed(KIND)):
        with pytest.raises(JumpTooLarge):
            log.ensure(wanted, 3_000, high=at(p0=500))
    # A partial or older watermark says nothing against what is bound.
    assert isinstance(log.ensure(at(p0=5, p1=3), 3_000, high=at(p1=3)), Append)


def test_a_time_ahead_of_the_reference_is_refused_but_inherited_progress_is_not():
    log = bound((at(p0=5), 2_000))
    assert isinstance(log.ensure(at(p0=6), 20_000, reference_ms=10_000), Append)
    for plan in (
        lambda: log.ensure(at(p0=6), 21_000, reference_ms=10_000),
        lambda: log.advance(21_000, reference_ms=1),
    ):
        with pytest.raises(ClockAhead):
            plan()
    ahead = bound((at(p0=5), 3_600_000))
    made = as_a(Append, ahead.ensure(at(p0=6), 1_000, reference_ms=1_000))
    assert made.new_upper == Antichain.of(3_600_002)
    assert ahead.advance(1_000, reference_ms=1_000) == Covered()


def test_the_end_of_time_is_refused():
    log = bound((at(p0=5), TIME_MAX - 1), interval_ms=1)
    assert log.trace.upper == Antichain.of(TIME_MAX)
    with pytest.raises(InvalidBounds):
        log.ensure(at(p0=6), 0)


def test_a_batch_of_another_upper_is_not_taken_for_ours():
    log = fresh()
    plan = as_a(Append, log.ensure(at(p0=5), 2_000))
    with pytest.raises(InvalidBounds):
        log.appended(plan).appended(plan)


def test_a_shard_that_moved_without_a_binding_is_corrupt():
    with pytest.raises(CorruptData):
        RemapTrace.of(KIND, [], Antichain.of(0), Antichain.of(5))


@pytest.mark.parametrize("rules", [{"interval_ms": 0}, {"max_jump": 0}, {"ahead_ms_max": -1}])
def test_rules_that_make_no_sense_are_refused(rules):
    with pytest.raises(InvalidArgument):
        MintRules(**rules)


def probe(high: dict[int, int], low: dict[int, int] | None = None, incarnation: str = "one") -> Probe:
    points = [tuple(Point(key, offset) for key, offset in each.items()) for each in (high, low or {})]
    return Probe(kind=KIND, incarnation=incarnation, high=points[0], low=points[1])


def test_a_partial_probe_carries_the_last_value():
    log = bound((at(p0=5, p1=7), 2_000))
    assert probe({1: 9, 2: 0}).wanted(log) == at(p0=5, p1=9, p2=0)
    assert probe({}).wanted(log) == at(p0=5, p1=7)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (probe({0: 9}, incarnation="two"), UpstreamReplaced),
        (probe({0: 4}), UpstreamRegressed),
        (probe({0: 9}, {0: 6}), UpstreamLost),
        (probe({1: 9}, {1: 1}), UpstreamLost),
    ],
    ids=["recreated", "regressed", "data-lost", "lost-from-a-partition-seen-empty"],
)
def test_an_upstream_that_cannot_be_believed_is_refused(given, error):
    log = bound((at(p0=5, p1=0), 2_000))
    with pytest.raises(error) as caught:
        given.wanted(log)
    assert caught.value.hint
    assert log.trace.frontier == at(p0=5, p1=0)


def test_a_partition_begins_wherever_the_upstream_lets_it():
    assert probe({0: 9, 4: 90}, {0: 5, 4: 80}).wanted(bound((at(p0=5), 2_000))) == at(p0=9, p4=90)
    check_available(KIND, [Point(0, 50)], SourceFrontier.minimum(KIND))
    with pytest.raises(UpstreamLost):
        check_available(KIND, [Point(0, 50)], at(p0=49))


def test_a_probe_below_its_own_low_watermark_is_refused():
    with pytest.raises(InvalidArgument):
        probe({0: 4}, {0: 5})


def exports(**uppers: int | None) -> list[ExportUpper]:
    return [ExportUpper(name, Antichain() if upper is None else Antichain.of(upper)) for name, upper in uppers.items()]


LOG = bound((at(p0=5), 2_000), (at(p0=9), 4_000))


@pytest.mark.parametrize(
    ("given", "times", "offsets"),
    [
        (exports(a=4_001, b=2_001), 2_001, at(p0=5)),
        (exports(a=4_001, b=9_000), 4_001, at(p0=9)),
        (exports(a=4_000, b=None), 4_000, at(p0=5)),
        (exports(a=2_000), 2_000, at()),
        (exports(a=None), 4_001, at(p0=9)),
        (exports(a=4_001, b=0), 0, None),
        ([], 4_001, at(p0=9)),
    ],
    ids=["least", "remap-is-behind", "closed-does-not-count", "before-all", "all-closed", "new-export", "none"],
)
def test_only_what_is_durable_everywhere_is_committed_upstream(given, times, offsets):
    assert resumption(LOG.trace, given) == Antichain.of(times)
    assert offset_resumption(LOG.trace, given) == offsets


def test_a_restart_at_the_compaction_boundary_finds_its_offsets():
    given = exports(a=2_001, b=4_001)
    since = remap_since(LOG.trace, given)
    assert since == Antichain.of(2_000)
    compacted = LOG.trace.compacted(since)
    assert offset_resumption(compacted, given) == offset_resumption(LOG.trace, given) == at(p0=5)
    assert [offsets_of(compacted, each) for each in given] == [at(p0=5), at(p0=9)]
    # Committed bindings reach the data shards late: nothing that may still be written is forgotten.
    assert BindingLog(trace=compacted, incarnation="one").lookup(Point(0, 5)).ts == 4_000


def test_an_export_that_since_has_passed_reads_everything_and_stops_commits():
    compacted = LOG.trace.compacted(Antichain.of(2_000))
    late = exports(a=2_000, b=4_001)
    assert offset_resumption(compacted, late) is None
    assert offsets_of(compacted, late[0]) == at()


def test_compaction_stops_at_holds_and_never_goes_back():
    given = exports(a=4_001)
    assert remap_since(LOG.trace, given) == Antichain.of(4_000)
    assert remap_since(LOG.trace, given, [Antichain.of(3_000), Antichain.of(3_500)]) == Antichain.of(3_000)
    compacted = LOG.trace.compacted(Antichain.of(2_000))
    assert remap_since(compacted, given, [Antichain.of(5)]) == Antichain.of(2_000)
    assert remap_since(LOG.trace, exports(a=0)) == Antichain.of(0)


def test_a_finished_source_commits_everything_and_can_be_compacted():
    closed = LOG.appended(as_a(Append, LOG.ensure(SourceFrontier.closed(KIND), 9_000))).trace
    assert sure(offset_resumption(closed, exports(a=None))).is_closed
    assert offset_resumption(closed, exports(a=9_000)) == at(p0=9)
    since = remap_since(closed, exports(a=None))
    assert closed.compacted(since).frontier.is_closed


def test_nothing_is_committed_before_anything_is_bound():
    assert offset_resumption(RemapTrace(kind=KIND), []) is None


@pytest.mark.parametrize(
    ("kind", "less", "more"),
    [(SourceKind.LSN, Lsn(0x1879EB8), Lsn(0x100001880)), (SourceKind.FILES, Point("a.csv", 4), Point("a.csv", 9))],
)
def test_positions_of_one_error_are_written_in_one_form(kind, less, more):
    frontiers = [SourceFrontier.at(kind, dict([place(kind, each)])) for each in (less, more)]
    with pytest.raises(UpstreamLost) as lost:
        check_available(kind, [more], frontiers[0])
    assert (lost.value.details["low"], lost.value.details["resume"]) == (str(more), str(less))
    log = BindingLog(trace=RemapTrace(kind=kind), incarnation="one")
    plan = log.ensure(frontiers[1], 9_000)
    assert isinstance(plan, Append)
    with pytest.raises(UpstreamRegressed) as regressed:
        Probe(kind=kind, incarnation="one", high=(less,)).wanted(log.appended(plan))
    assert (regressed.value.details["high"], regressed.value.details["bound"]) == (str(less), str(more))
    with pytest.raises(InvalidArgument) as above:
        Probe(kind=kind, incarnation="one", high=(less,), low=(more,))
    assert (above.value.details["low"], above.value.details["high"]) == (str(more), str(less))
