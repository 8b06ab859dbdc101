"""Large batches over random histories: every step keeps every readable time, whatever comes late, twice or together."""

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from property.core.shard.contents import KEYS, OWNERS, Shard, runs_of
from simulation.budget import examples

from persist.core.frontier import Antichain
from persist.core.shard import commands as c

ROWS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from("uv"), st.integers(0, 2), st.sampled_from([1, 1, -1, 2])),
    min_size=3,
    max_size=14,
)
BATCHES = st.lists(ROWS, min_size=3, max_size=7)
"""What there is at first: mostly too much for one claim."""
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ROWS, st.integers(1, 3)),
        st.tuples(st.just("claim"), st.integers(0, 1), st.just(True)),
        st.tuples(st.just("claim"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("work"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("other"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("older"), st.integers(0, 12), st.booleans()),
        st.tuples(st.just("work"), st.integers(0, 1), st.just(True)),
        st.tuples(st.just("offer"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("offer"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("release"), st.integers(0, 1), st.none()),
        st.tuples(st.just("downgrade"), st.integers(0, 4), st.none()),
    ),
    min_size=6,
    max_size=40,
)
SMALL = st.fixed_dictionaries(
    {"compaction_parts_max": st.integers(2, 6), "compaction_step_parts_max": st.integers(1, 4)}
)


class History:
    """What the steps of a history mean for a shard. Merges are made when they are claimed, and offered at any time."""

    def __init__(self, limits: dict[str, int]) -> None:
        self.shard = Shard(**limits)
        self.offers: list[c.ApplyMerge] = []
        self.claims: list[bytes] = []
        self.steps = 0

    def run(self, kind: str, first: Any, second: Any) -> None:
        meant: dict[str, Callable[[], object]] = {
            "append": lambda: self.shard.commit(self.shard.append(first, second, runs=1 + len(first) % 3)),
            "claim": lambda: self.claim(first, whole=second),
            "work": lambda: self.work(first, whole=second),
            "other": lambda: self.claim(first, whole=second, aside=tuple(self.claims[-4:])),
            "older": lambda: self.claim(0, whole=second, before=Antichain.of(first)),
            "offer": lambda: self.offer(first, together=second),
            "release": lambda: self.shard.commit(c.ReleaseCompaction(owner=OWNERS[first])),
            "downgrade": lambda: self.shard.commit(self.shard.downgrade(first)),
        }
        meant[kind]()
        self.shard.check()

    def claim(self, owner: int, **asked: Any) -> None:
        # A takeover at once: claims are raced.
        command = c.ClaimCompaction(owner=OWNERS[owner], takeover_ms=0, steps=True, **asked)
        [outcome] = self.shard.commit(command)
        if isinstance(outcome, c.CompactionClaimed):
            assert command.before is None or outcome.batches[-1].desc.lower.less_than(command.before)
            self.claims += [batch.fingerprint for batch in outcome.batches]
            self.steps += outcome.step is not None
            self.offers.append(self.shard.merged(outcome, OWNERS[owner]))

    def work(self, owner: int, *, whole: bool) -> None:
        self.claim(owner, whole=whole)
        self.offer(0, together=False)

    def offer(self, back: int, *, together: bool) -> None:
        """An offer of a newer one, twice; or several together with an append and a claim, as one commit."""
        if not self.offers:
            return
        chosen = self.offers[-1 - back :][:1] or self.offers[-1:]
        if not together:
            for each in (*chosen, *chosen):
                before = self.shard.state
                [outcome] = self.shard.commit(each)
                assert isinstance(outcome, c.MergeApplied | c.MergeRefused)
                again = self.shard.commit(each)[0]
                assert not isinstance(outcome, c.MergeRefused) or self.shard.state is before
                assert isinstance(again, c.MergeRefused) or again == c.MergeApplied(already=True)
            return
        claim = c.ClaimCompaction(owner=OWNERS[1], takeover_ms=0, whole=True, steps=True)
        append = self.shard.append([(KEYS[0], "u", 0, 1)], 1)
        self.shard.commit(append, *chosen, claim, *self.offers[-1:])


@settings(max_examples=examples(120), deadline=None)
@given(SMALL, BATCHES, STEPS)
def test_every_readable_time_stays_as_it_was_appended(
    limits: dict[str, int], batches: list[Any], steps: list[Any]
) -> None:
    history = History(limits)
    for rows in batches:
        history.run("append", rows, 2)
    for step in steps:
        history.run(*step)


@settings(max_examples=examples(60), deadline=None)
@given(SMALL, st.lists(ROWS, min_size=2, max_size=8), st.integers(0, 3))
def test_what_is_compacted_whole_becomes_one_run_unless_one_key_fills_too_many_parts(
    limits: dict[str, int], batches: list[Any], back: int
) -> None:
    shard = Shard(**limits)
    for rows in batches:
        shard.commit(shard.append([row for row in rows if len(row[0]) == 1], 2))
    shard.commit(shard.downgrade(back))
    shard.compacted()
    shard.check()
    # Of each short key there are up to eight rows, in up to five parts of a run.
    assert runs_of(shard.state) <= 1 or limits["compaction_parts_max"] < 6


def test_the_strategies_reach_steps() -> None:
    """Otherwise they prove nothing."""
    history = History({"compaction_parts_max": 3, "compaction_step_parts_max": 2})
    for number in range(4):
        rows = [(key, "u" if number % 2 else "v", 0, 1) for key in KEYS[:8]]
        history.run("append", rows, 1)
    history.run("downgrade", 0, None)
    for _ in range(40):
        history.run("claim", 0, True)
        history.run("offer", 0, False)
    assert history.steps > 3
    assert runs_of(history.shard.state) == 1
