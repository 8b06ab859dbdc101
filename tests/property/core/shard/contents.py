"""Parts with rows behind them, and merges of these: what a compactor does with files, done with lists."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from property.core.shard.histories import SHARD, append, first_state, sixteen

from persist.core.data.stats import BOUND_BYTES, truncate_down, truncate_up
from persist.core.frontier import Antichain, Description
from persist.core.ids import ReaderId, Token, WriterId, part_key
from persist.core.shard import commands as c
from persist.core.shard.batch import Block, HollowBatch, Part, Run
from persist.core.shard.diff import apply_diff, diff
from persist.core.shard.invariants import check_cheap, check_state
from persist.core.shard.ranges import RangeStep
from persist.core.shard.state import State
from persist.core.shard.transitions.apply import apply, finish
from persist.core.shard.transitions.dispatch import Context
from persist.wire.shard.state import decode_diff, encode_diff

Row = tuple[bytes, str, int, int]
"""Key, val, ts and diff."""

READER = ReaderId.of(sixteen(99))
OWNERS = [WriterId.of(sixteen(number)) for number in (1, 2)]
KEYS = [b"%c" % letter for letter in b"abcdefgh"] + [b"m" * 66 + b"%c" % letter for letter in b"xyz"]
"""The last ones are alike in all bytes that bounds keep."""


def consolidated(rows: Iterable[Row], since: int) -> list[Row]:
    sums: Counter[tuple[bytes, str, int]] = Counter()
    for key, val, ts, change in rows:
        sums[key, val, max(ts, since)] += change
    return sorted((*row, change) for row, change in sums.items() if change)


class Shard:
    """A state, what its parts hold, and all that was ever appended."""

    def __init__(self, **limits: Any) -> None:
        self.state = first_state().evolved(format=3)
        self.rows: dict[str, list[Row]] = {}
        self.appended: list[Row] = []
        self.limits = limits
        self.per_part = 2
        self._numbers = itertools.count(1)
        self.commit(c.RegisterLeasedReader(reader_id=READER, lease_ms=86_400_000))

    def context(self) -> Context:
        return Context(now_ms=5_000 + self.state.seqno, format=3, owner="me", hostname="here", **self.limits)

    def commit(self, *commands: c.Command) -> list[object]:
        """Apply all as one commit, which is checked, encoded, and applied to the state before it."""
        state, outcomes = self.state, []
        for command in commands:
            state, outcome = apply(state, command, self.context())
            outcomes.append(outcome)
        if state is not self.state:
            after = finish(self.state, state, self.context())
            check_cheap(self.state, after)
            check_state(after)
            change = decode_diff(encode_diff(diff(self.state, after), SHARD), SHARD, after.seqno)
            assert apply_diff(self.state, change) == after
            self.state = after
        return outcomes

    # ---- parts -------------------------------------------------------------------------------------------------------

    def parts(self, rows: Sequence[Row], owner: WriterId, since: int = 0) -> tuple[Part, ...]:
        """Sorted rows, advanced to ``since``, as parts of some rows each."""
        return tuple(
            self._part(list(rows[at : at + self.per_part]), owner, since) for at in range(0, len(rows), self.per_part)
        )

    def _part(self, rows: list[Row], owner: WriterId, since: int) -> Part:
        number = next(self._numbers)
        key = part_key(SHARD, owner, 1, sixteen(number))
        self.rows[key] = rows
        first, last, times = rows[0][0], rows[-1][0], [row[2] for row in rows]
        return Part(
            key=key,
            inline=None,
            encoded_bytes=100,
            decoded_bytes=200,
            rows=len(rows),
            checksum=number,
            key_lower=truncate_down(first, BOUND_BYTES),
            key_upper=truncate_up(last, BOUND_BYTES),
            min_ts=min(times),
            max_ts=max(times),
            diffs_sum=sum(row[3] for row in rows),
            schema_id=0,
            consolidated_since=since,
            blocks=(Block(first_key=first[:24], rows=len(rows), row_groups=1, offset=0, length=90, checksum=1),),
        )

    def of(self, parts: Iterable[Part]) -> list[Row]:
        """The rows of some parts."""
        return [row for part in parts for row in self.rows[part.key or ""]]

    # ---- what is done ------------------------------------------------------------------------------------------------

    def append(self, rows: Iterable[Row], width: int, *, runs: int = 1) -> c.CompareAndAppend:
        """An append of rows whose times are counted from the upper."""
        lower = self.state.upper.elements[0]
        moved = [(key, val, lower + min(ts, width - 1), change) for key, val, ts, change in rows]
        number, writer = next(self._numbers), WriterId.of(sixteen(7))
        made = [self.parts(consolidated(moved[at::runs], 0), writer) for at in range(runs)]
        batch = HollowBatch(
            desc=Description(lower=Antichain.of(lower), upper=Antichain.of(lower + width)),
            runs=tuple(Run(parts=parts) for parts in made if parts),
        )
        self.appended += moved
        bare = append(self.state, rows=0, width=width, writer=7, number=number)
        return dataclasses.replace(bare, batch=batch, call=None, token=Token.of(sixteen(number)))

    def downgrade(self, back: int) -> c.DowngradeSince:
        """Readers need nothing before ``back`` times from the upper."""
        since = Antichain.of(max(0, self.state.upper.elements[0] - 1 - back))
        return c.DowngradeSince(reader_id=READER, since=since)

    def merged(self, claimed: c.CompactionClaimed, owner: WriterId, *, loses: str = "") -> c.ApplyMerge:
        """What becomes of a claim. ``loses``: what a compactor with a bug leaves out."""
        since, desc = claimed.since, claimed.batches[0].desc
        desc = Description(lower=desc.lower, upper=claimed.batches[-1].desc.upper, since=since)
        named: dict[str, object] = {"owner": owner, "incarnation": claimed.incarnation}
        if claimed.step is None:
            parts = self._merged([part for batch in claimed.batches for part in batch.parts], owner, since)
            output = HollowBatch(desc=desc, runs=(Run(parts=parts),) if parts else ())
            inputs = tuple(batch.fingerprint for batch in claimed.batches)
            return c.ApplyMerge(inputs=inputs, output=output, **named)  # type: ignore[arg-type]  # by name
        step, [view] = claimed.step, claimed.batches
        runs = self._stepped(view, step, owner, since, loses)
        output = HollowBatch(desc=desc, runs=tuple(Run(parts=parts) for parts in runs))
        return c.ApplyMerge(inputs=(), output=output, step=step, **named)  # type: ignore[arg-type]  # by name

    def _merged(self, parts: Iterable[Part], owner: WriterId, since: Antichain) -> tuple[Part, ...]:
        at = since.time or 0
        return self.parts(consolidated(self.of(parts), at), owner, at)

    def _stepped(
        self, view: HollowBatch, step: RangeStep, owner: WriterId, since: Antichain, loses: str
    ) -> list[tuple[Part, ...]]:
        at, below = since.time or 0, step.below
        before = [row for row in self.of(view.parts) if below is None or row[0] < below]
        merged = self.parts(consolidated(before, at), owner, at)
        shown = iter(view.runs)
        rests = []
        for piece in step.pieces:
            cut = list(filter(step.cuts, next(shown).parts)) if piece.count else []
            left = [row for row in self.of(cut) if below is not None and row[0] >= below]
            rests.append(self.parts(consolidated(left, at), owner, at) if loses != "rest" else ())
        return [(*merged, *rests[0]), *rests[1:]]

    # ---- what must be so ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every readable time reads as it was appended, every time that is not advanced is true, runs are sorted."""
        since, upper = self.state.since.elements[0], self.state.upper.elements[0]
        held = [row for batch in self.state.trace.batches for row in self.of(batch.parts)]
        for as_of in range(since, upper):
            wanted = consolidated((row for row in self.appended if row[2] <= as_of), as_of)
            assert consolidated((row for row in held if row[2] <= as_of), as_of) == wanted, as_of
        for batch in self.state.trace.batches:
            begin, end = batch.desc.lower.elements[0], batch.desc.upper.elements[0]
            # A listen is given what lies beyond a batch's since.
            begin = max(begin, batch.desc.since.elements[0] + 1)
            true = consolidated((row for row in self.appended if begin <= row[2] < end), 0)
            assert consolidated((row for row in self.of(batch.parts) if begin <= row[2] < end), 0) == true
            for run in batch.runs:
                keys = [row[0] for row in self.of(run.parts)]
                assert keys == sorted(keys)

    def compacted(self, owner: WriterId = OWNERS[0], *, whole: bool = True) -> int:
        """Compact until nothing is left to do; how many claims that took. Ends, or fails."""
        for count in range(1_000):
            [outcome] = self.commit(c.ClaimCompaction(owner=owner, takeover_ms=1_000, whole=whole, steps=True))
            if not isinstance(outcome, c.CompactionClaimed):
                return count
            before = self.state
            [applied] = self.commit(self.merged(outcome, owner))
            assert isinstance(applied, c.MergeApplied)
            assert self.state is not before
        raise AssertionError("it never ends")


def runs_of(state: State) -> int:
    """Runs that a reader merges."""
    return sum(len(batch.runs) for batch in state.trace.batches)
