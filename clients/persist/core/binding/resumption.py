"""Where a source goes on after a restart, what may be forgotten upstream, and what of its bindings.

Nothing is reread that is durable, and nothing is forgotten that is not: everything here follows from the uppers of the
data shards and of the remap shard alone.
Source: design 003; catalog-semantics.md section 4.2, resumption frontier; reliability.md I20.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from persist.core.binding.reclock import source_upper_at_frontier
from persist.core.binding.remap import RemapTrace
from persist.core.frontier import Antichain
from persist.core.source.source_frontier import SourceFrontier


@dataclass(frozen=True, slots=True)
class ExportUpper:
    """One data shard of a source, and how far it is durable."""

    name: str
    upper: Antichain


def resumption_of(trace: RemapTrace, export: ExportUpper) -> Antichain:
    """From this time on the export has to be written: what is before it is durable in both shards."""
    return export.upper.meet(trace.upper)


def offsets_of(trace: RemapTrace, export: ExportUpper) -> SourceFrontier:
    """From here on the export has to read the upstream. The minimum for a new one, or one that since has passed.

    Raises nothing: it is never asked beyond the upper.
    """
    return source_upper_at_frontier(trace, resumption_of(trace, export))


def resumption(trace: RemapTrace, exports: Iterable[ExportUpper]) -> Antichain:
    """From this time on the source has to be run: the least over its exports. Closed ones do not constrain it."""
    # The closed upper is the latest of all.
    return reduce(Antichain.meet, (export.upper for export in exports), trace.upper)


def offset_resumption(trace: RemapTrace, exports: Iterable[ExportUpper]) -> SourceFrontier | None:
    """What may be committed upstream: everything before it is durable in every export, with its binding.

    None: unknown, as an export is not yet beyond since, so nothing may be committed. Closed exports do not constrain.
    Raises nothing: it is never asked beyond the upper.
    """
    frontier = resumption(trace, exports)
    if not trace.is_initialized or frontier.less_equal(trace.since):
        return None
    return source_upper_at_frontier(trace, frontier)


def remap_since(trace: RemapTrace, exports: Iterable[ExportUpper], holds: Iterable[Antichain] = ()) -> Antichain:
    """How far the remap collection may be compacted: to one before the resumption frontier, and to no hold's beyond.

    One before, because inverting a time takes the binding before it. Never before the since it has. A source that is
    finished keeps its last binding.
    """
    frontier = resumption(trace, exports)
    finished = trace.bindings[-1].ts if trace.bindings else 0
    last = Antichain.of(finished if frontier.time is None else max(frontier.time - 1, 0))
    return trace.since.join(reduce(Antichain.meet, holds, last))
