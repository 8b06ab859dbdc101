"""Random histories against a model of a few dictionaries: what is in the shard, who holds it, what was promised."""

from hypothesis import given, settings
from property.core.shard.histories import SHARD, STEPS, command, first_state
from property.core.shard.test_laws import context
from simulation.budget import examples

from persist.core.frontier import MINIMUM, Antichain
from persist.core.shard import commands as c
from persist.core.shard.diff import diff
from persist.core.shard.transitions.apply import apply, finish
from persist.errors import LeaseExpired, UsageError
from persist.wire.shard.state import decode_diff, encode_diff


class Model:
    """The shard as its users see it."""

    def __init__(self) -> None:
        self.upper: Antichain = MINIMUM
        self.since: Antichain = MINIMUM
        self.intervals: dict[Antichain, tuple[Antichain, int]] = {}
        self.promised: dict[tuple[str, object], c.Appended] = {}
        self.granted: dict[str, Antichain] = {}

    def told(self, made: c.Command[object], outcome: object) -> None:
        """Check one outcome against everything returned before, and remember it."""
        match outcome:
            case c.Appended() if isinstance(made, c.CompareAndAppend):
                self._appended(made, outcome)
            case c.UpperMismatch():
                assert outcome.upper == self.upper
                assert isinstance(made, c.CompareAndAppend)
                assert made.batch.desc.lower != self.upper
                assert not made.rebase
            case c.ReaderRegistered() if isinstance(made, c.RegisterLeasedReader):
                assert self.since.less_equal(outcome.since)
                self.granted[made.reader_id] = outcome.since
            case c.Finalized() if isinstance(made, c.Finalize) and made.force:
                self.upper = Antichain()
            case c.SinceDowngraded() if isinstance(made, c.DowngradeSince):
                assert self.granted[made.reader_id].less_equal(outcome.since)
                self.granted[made.reader_id] = outcome.since

    def _appended(self, made: c.CompareAndAppend, outcome: c.Appended) -> None:
        name = (made.call.session, made.call.number) if made.call else ("", made.token)
        if outcome.already_committed:
            known = self.promised.get(name)
            if known is not None and made.transaction is None:
                assert (outcome.upper, outcome.seqno) == (known.upper, known.seqno)
            return
        desc, lower = made.batch.desc, self.upper
        if made.rebase:
            assert outcome.upper == desc.upper.join(Antichain.of((lower.time or 0) + 1))
        else:
            assert desc.lower == lower
            assert outcome.upper == desc.upper
        self.promised[name] = outcome
        self.upper = outcome.upper
        if lower != outcome.upper:
            self.intervals[lower] = (outcome.upper, made.batch.rows)


@settings(max_examples=examples(150), deadline=None)
@given(STEPS)
def test_shard_does_what_a_simple_model_does(steps):
    model, state = Model(), first_state()
    for number, (kind, holder, amount) in enumerate(steps, start=1):
        made = command(state, kind, holder, amount, number)
        try:
            moved, outcome = apply(state, made, context(number))
        except (UsageError, LeaseExpired):
            continue
        model.told(made, outcome)
        after = state if moved is state else finish(state, moved, context(number))
        assert after.upper == model.upper
        assert state.since.less_equal(after.since)
        assert state.seqno_since <= after.seqno_since
        model.since = after.since
        assert all(after.since.less_equal(model.granted[name]) for name in after.leased_readers)
        state = after
    if state.since.is_empty:
        return
    # Compaction joins intervals: each batch holds exactly the rows of those it covers.
    for batch in state.trace.batches:
        covered = [
            (upper, rows)
            for lower, (upper, rows) in model.intervals.items()
            if batch.desc.lower.less_equal(lower) and lower.less_than(batch.desc.upper)
        ]
        assert batch.rows == sum(rows for _, rows in covered)
        assert all(upper.less_equal(batch.desc.upper) for upper, _ in covered)


@settings(max_examples=examples(100), deadline=None)
@given(STEPS)
def test_parts_and_rollups_of_a_state_can_be_told_from_its_diffs_alone(steps):
    state = first_state()
    parts: set[str | None] = set()
    rollups = set(state.rollups)
    for number, (kind, holder, amount) in enumerate(steps, start=1):
        try:
            moved, _ = apply(state, command(state, kind, holder, amount, number), context(number))
        except (UsageError, LeaseExpired):
            continue
        if moved is state:
            continue
        after = finish(state, moved, context(number))
        change = decode_diff(encode_diff(diff(state, after), SHARD), SHARD, after.seqno)
        for splice in change.spine.splices if change.spine else ():
            parts -= {key for batch in splice.gone for key in batch.keys}
            parts |= {part.key for batch in splice.come for part in batch.parts if part.key}
        for seqno, changed in change.maps.get("rollups", {}).items():
            (rollups.discard if changed.new is None else rollups.add)(seqno)
        state = after
        assert parts == {part.key for batch in state.trace.batches for part in batch.parts if part.key}
        assert rollups == set(state.rollups)
