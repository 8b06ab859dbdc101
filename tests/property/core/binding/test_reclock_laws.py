"""Reclocking: one time for each message, for ever, for every caller and in every way; and back."""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property.core.binding.sources import KEYS, KINDS, LAW, SMALL, frontiers, logs, messages, since_in, ts_by_definition
from sure import sure

from persist.core.binding.binding_log import BindingLog
from persist.core.binding.reclock import Reclocker, reclock_frontier, source_upper_at_frontier
from persist.core.binding.remap import RemapTrace
from persist.core.binding.remap_rows import decode_time, encode_time, from_table, to_table
from persist.core.frontier import CLOSED, Antichain
from persist.core.source.source_frontier import place
from persist.core.source.source_time import SourceKind
from persist.errors import NotReadable, NotYetAvailable

LOGS = KINDS.flatmap(logs)


def asked(log: BindingLog, time) -> int | str:
    try:
        return log.lookup(time).ts
    except NotReadable:
        return "forgotten"
    except NotYetAvailable:
        return "unbound"


@LAW
@given(LOGS)
def test_each_message_gets_exactly_one_time_and_it_is_the_first(log):
    for time in messages(log.trace.kind):
        expected = ts_by_definition(log.trace, time)
        assert asked(log, time) == ("unbound" if expected is None else expected)


@LAW
@given(LOGS)
def test_bindings_are_monotone_in_both_coordinates(log):
    bindings = log.trace.bindings
    for before, after in itertools.pairwise(bindings):
        assert before.ts < after.ts
        assert before.frontier.less_equal(after.frontier)
        assert before.frontier != after.frontier


@LAW
@given(LOGS, st.data())
def test_what_was_answered_never_changes_while_the_log_grows(log, data):
    answers = {time: asked(log, time) for time in messages(log.trace.kind)}
    plan = log.ensure(data.draw(frontiers(log.trace.kind)), data.draw(st.integers(0, 200)))
    grown = log.appended(plan) if hasattr(plan, "updates") else log
    for time, answer in answers.items():
        assert asked(grown, time) == answer or answer == "unbound"


@LAW
@given(LOGS, st.data())
def test_compaction_commutes_with_reclocking(log, data):
    since = data.draw(since_in(log.trace))
    compacted = BindingLog(trace=log.trace.compacted(since), incarnation="one")
    for time in messages(log.trace.kind):
        before, after = asked(log, time), asked(compacted, time)
        if after == "forgotten":
            assert before != "unbound"
            assert before <= since.time
        else:
            assert after == before
    for later in range(since.time, since.time + 30):
        if not log.trace.upper.less_equal_time(later):
            assert compacted.trace.at(later) == log.trace.at(later)


@LAW
@given(LOGS, st.data())
def test_compacting_rows_first_or_reading_first_is_the_same(log, data):
    trace = log.trace
    since = data.draw(since_in(trace))
    read = RemapTrace.of(trace.kind, trace.updates(), since, trace.upper)
    assert read == trace.compacted(since)
    assert RemapTrace.of(trace.kind, read.updates(), since, trace.upper) == read


@LAW
@given(LOGS)
def test_rows_sum_to_each_element_once_at_every_ts(log):
    rows = list(log.trace.updates())
    for binding in log.trace.bindings:
        sums: dict[Any, Any] = {}
        for row in rows:
            if row.ts <= binding.ts:
                sums[row.time] = sums.get(row.time, 0) + row.diff
        assert {time: diff for time, diff in sums.items() if diff} == dict.fromkeys(binding.frontier.elements, 1)


@LAW
@given(LOGS, st.data())
def test_inverting_a_time_gives_exactly_the_messages_before_it(log, data):
    trace = log.trace.compacted(data.draw(since_in(log.trace)))
    last = trace.bindings[-1].ts + 2 if trace.upper.time is None else trace.upper.time
    ts = data.draw(st.integers(0, last))
    source = source_upper_at_frontier(trace, Antichain.of(ts))
    if ts <= trace.since.time:
        assert not any(source.beyond(time) for time in messages(trace.kind))
        return
    for time in messages(trace.kind):
        at = ts_by_definition(trace, time)
        assert source.beyond(time) == (at is not None and at < ts)
    assert Antichain.of(ts).less_equal(reclock_frontier(trace, source))


@LAW
@given(LOGS, st.data())
def test_reclocking_a_frontier_is_the_least_time_beyond_it(log, data):
    trace, frontier = log.trace, data.draw(frontiers(log.trace.kind))
    times = [ts_by_definition(trace, time) for time in messages(trace.kind) if frontier.less_equal_time(time)]
    bound = [Antichain.of(ts) for ts in times if ts is not None]
    result = reclock_frontier(trace, frontier)
    assert all(result.less_equal(ts) for ts in bound)
    # Beyond the generated messages lie those of finished partitions: there the result may be lower.
    if not any(each.frontier.is_closed or max(each.frontier.bounds, default=0) > SMALL for each in trace.bindings):
        assert result == min(bound, key=lambda ts: sure(ts.time), default=trace.upper)
    back = source_upper_at_frontier(trace, result)
    assert back.releases_within(frontier) or result == CLOSED


@LAW
@given(LOGS, st.data())
def test_whole_columns_get_the_times_that_single_messages_get(log, data):
    kind = log.trace.kind
    log = BindingLog(trace=log.trace.compacted(data.draw(since_in(log.trace))), incarnation="one")
    answered = [time for time in messages(kind) if isinstance(asked(log, time), int)]
    chosen = data.draw(st.lists(st.sampled_from(answered), max_size=30)) if answered else []
    places = [place(kind, time) for time in chosen]
    offsets = np.array([offset for _, offset in places], np.int64)
    expected = [asked(log, time) for time in chosen]
    reclocker = Reclocker.of(log.trace)
    if kind is SourceKind.LSN:
        assert reclocker.reclock(offsets).tolist() == expected
        return
    codes = np.array([KEYS[kind].index(key) for key, _ in places], np.int32)
    assert reclocker.reclock(offsets, codes, KEYS[kind]).tolist() == expected
    keys = pa.array([key for key, _ in places], pa.string() if kind is SourceKind.FILES else pa.int64())
    assert reclocker.reclock_arrow(pa.array(offsets), keys).to_pylist() == expected
    assert reclocker.reclock_arrow(pa.chunked_array([offsets]), keys.dictionary_encode()).to_pylist() == expected


@LAW
@given(LOGS)
def test_what_lies_between_two_frontiers_gets_the_same_times_from_its_own_bindings(log):
    trace = log.trace
    if not trace.is_initialized:
        return
    begin, end = trace.bindings[0].frontier, trace.frontier
    own, whole = Reclocker.between(trace, begin, end), Reclocker.of(trace)
    for time in messages(trace.kind):
        if begin.less_equal_time(time) and end.beyond(time):
            key, offset = place(trace.kind, time)
            codes = None if trace.kind is SourceKind.LSN else np.array([KEYS[trace.kind].index(key)])
            given = np.array([offset], np.uint64), codes, KEYS[trace.kind]
            assert own.reclock(*given).tolist() == whole.reclock(*given).tolist()


@LAW
@given(LOGS, st.data())
def test_whole_columns_refuse_what_single_messages_are_refused(log, data):
    kind = log.trace.kind
    log = BindingLog(trace=log.trace.compacted(data.draw(since_in(log.trace))), incarnation="one")
    reclocker = Reclocker.of(log.trace)
    for time in messages(kind):
        refusals: dict[Any, type[Exception]] = {"forgotten": NotReadable, "unbound": NotYetAvailable}
        error = refusals.get(asked(log, time))
        if error is not None:
            key, offset = place(kind, time)
            codes = None if kind is SourceKind.LSN else np.array([KEYS[kind].index(key)])
            with pytest.raises(error):
                reclocker.reclock(np.array([offset], np.uint64), codes, KEYS[kind])


@LAW
@given(LOGS)
def test_rows_of_the_shard_come_back(log):
    trace = log.trace
    rows = list(trace.updates())
    table = to_table(trace.kind, "one", rows)
    assert from_table(trace.kind, "one", table) == rows
    assert RemapTrace.of(trace.kind, from_table(trace.kind, "one", table), trace.since, trace.upper) == trace
    for row in rows:
        assert decode_time(trace.kind, "one", encode_time(trace.kind, "one", row.time)) == row.time
