"""Taking unreadable parts out of a shard: the one command that loses rows, on a person's word.

A batch is named by its fingerprint and its parts by their places in it, so exactly what was looked at goes, or nothing.
What is left covers the same times. Source: docs/runbook.md, repair; reliability.md I9 and I24.
"""

from dataclasses import replace

from persist.core.shard import compaction as k
from persist.core.shard.batch import HollowBatch, Run
from persist.core.shard.commands import NotTakenOut, PartsTakenOut, TakeOutParts
from persist.core.shard.state import State
from persist.core.shard.transitions.dispatch import Context, transition
from persist.errors import InvalidArgument


@transition.register
def take_out_parts(command: TakeOutParts, state: State, context: Context) -> tuple[State, PartsTakenOut | NotTakenOut]:
    """Take damaged parts out of the trace, so that what is left can be read."""
    trace, parts = state.trace, 0
    for each in command.lost:
        found = k.named(trace, each.batch)
        if found is None:
            return state, NotTakenOut()
        spine_batch, at = found
        left = without(spine_batch.batches[at], each.places)
        trace = k.merged(trace, spine_batch, at, 1, left)
        parts += len(set(each.places))
    if trace is state.trace:
        return state, PartsTakenOut(parts=0)
    return state.evolved(trace=trace), PartsTakenOut(parts=parts)


def without(batch: HollowBatch, places: tuple[tuple[int, int], ...]) -> HollowBatch:
    """The batch without the parts at these places: it covers the same times. Raises InvalidArgument."""
    there = {(run, part) for run, each in enumerate(batch.runs) for part in range(len(each.parts))}
    if not places or not there.issuperset(places):
        raise InvalidArgument("a batch has no part at this place", hint="name (run, part) of parts that are there")
    gone = set(places)
    kept = (
        Run(parts=tuple(part for at, part in enumerate(run.parts) if (number, at) not in gone))
        for number, run in enumerate(batch.runs)
    )
    runs = tuple(run for run in kept if run.parts)
    return replace(batch, runs=runs, truncated=batch.truncated and bool(runs))
