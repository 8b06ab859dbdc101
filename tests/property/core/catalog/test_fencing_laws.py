"""Processes that open one catalog and write to it in any order: who was fenced writes nothing. Invariant I16."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.budget import examples
from sure import sure

from persist.core.catalog.errors import Fenced, FencedByGeneration
from persist.core.catalog.kinds import FENCE_TOKEN, SETTING
from persist.core.catalog.leadership.fencing import KEY, FenceClaim, open_step
from persist.core.catalog.leadership.follow import follow
from persist.core.catalog.objects import FenceToken, Setting, SettingKey
from persist.core.catalog.rows import RowUpdate
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.transaction import CatalogTransaction
from persist.wire.catalog.rows import CODEC


@dataclass
class Shard:
    """Updates and an upper; appends compare the upper."""

    updates: list[RowUpdate] = field(default_factory=list)
    upper: int = 0

    def compare_and_append(self, expected: int, rows) -> bool:
        if expected != self.upper:
            return False
        self.updates += [RowUpdate(row, self.upper, diff) for row, diff in rows]
        self.upper += 1
        return True


class Process:
    """Opens, then writes; every call is one read of the shard or one append."""

    def __init__(self, shard: Shard, generation: int) -> None:
        self.shard = shard
        self.claim = FenceClaim(generation)
        self.state = Snapshot()
        self.upper = 0
        self.fenced: Fenced | None = None

    def sync(self) -> None:
        if self.fenced:
            return
        news = [update for update in self.shard.updates if update.ts >= self.upper]
        self.fenced = follow(self.state, CODEC, self.claim, news).fenced
        self.upper = self.shard.upper

    def act(self) -> FenceToken | None:
        """One append, on what was read last; the token it was made with, if it was taken."""
        if self.fenced:
            return None
        if self.claim.token is None:
            seen = self.state.get(FENCE_TOKEN, KEY)
            try:
                step = open_step(seen, sure(self.claim.generation))
            except FencedByGeneration as refusal:
                self.fenced = refusal
                return None
            if not self.shard.compare_and_append(self.upper, step.rows(CODEC)):
                return None
            self.claim = FenceClaim(self.claim.generation, step.token)
            return step.token
        tx = CatalogTransaction(self.state)
        tx.set(SETTING, SettingKey("leader"), Setting(f"{self.claim.token} {self.shard.upper}"))
        return (
            self.claim.token if self.shard.compare_and_append(self.upper, tx.batch().rows(CODEC, self.upper)) else None
        )


@settings(deadline=None, max_examples=examples(300))
@given(
    st.lists(st.integers(1, 3), min_size=2, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=40),
)
def test_tokens_rise_with_every_open_and_no_write_of_a_fenced_leader_lands(generations, schedule):
    shard = Shard()
    processes = [Process(shard, generation) for generation in generations]
    landed: list[FenceToken] = []
    opened: list[FenceToken] = []
    for number, sync in schedule:
        process = processes[number % len(processes)]
        if sync:
            process.sync()
            continue
        before = process.claim.token
        token = process.act()
        if token is not None:
            landed.append(token)
            opened += [] if before else [token]
    assert landed == sorted(landed), "what landed was by the highest token so far"
    epochs = [token.epoch for token in opened]
    assert epochs == sorted(set(epochs))
    highest = max(opened, default=None)
    for process in processes:
        process.sync()
        if process.claim.token is not None:
            assert (process.fenced is None) == (process.claim.token == highest), "all but the last leader are fenced"
    whole = Snapshot.of(CODEC, shard.updates)
    assert whole.get(FENCE_TOKEN, KEY) == highest
    assert whole.count(FENCE_TOKEN) == (0 if highest is None else 1)


@settings(deadline=None, max_examples=examples(100))
@given(st.integers(1, 30))
def test_open_is_not_starved_by_a_leader_that_never_rests(writes):
    shard = Shard()
    leader, newcomer = Process(shard, 1), Process(shard, 1)
    leader.act()
    for _ in range(writes):
        newcomer.sync()
        leader.sync()
        assert leader.act() is not None
        assert newcomer.act() is None
        assert newcomer.fenced is None, "losing a race is no failure"
    newcomer.sync()
    assert newcomer.act() is not None
    leader.sync()
    assert leader.fenced is not None
