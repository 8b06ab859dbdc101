"""How the bindings of a source go on with another life of its upstream, which has its history up to somewhere.

In one append, at the upper, the row of the earlier incarnation goes and the same row of the later one comes. So what
was bound is known at that moment, and a minter that still works for the earlier life, as it does not know better, loses
that race or finds rows that are not its own: nothing of a history that was left is bound from then on.
Source: catalog-semantics.md section 4.2; reliability.md I18; docs/adr/0030-failover-by-succession.md.
"""

from typing import Final

import pyarrow as pa

from persist.core.binding.lives import precedes
from persist.core.binding.remap import RemapUpdate
from persist.core.binding.remap_rows import REMAP_SCHEMA, decode_time, to_table
from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import SourceKind
from persist.core.time.errors import UpstreamReplaced
from persist.errors import check
from persist.typed import AnyValue

_COLUMNS: Final = tuple(REMAP_SCHEMA.key.names)


def succession(
    kind: SourceKind, before: str, after: str, found: pa.Table, ts: int, most: SourceFrontier
) -> pa.Table | None:
    """What to append at ``ts``, the upper, so that bindings of ``before`` go on as ``after``; None: they do already.

    ``found``: the rows of the remap shard just before ``ts``, with their ``diff``. ``most``: how far the later life has
    the history of the earlier one. Raises UpstreamReplaced: more was bound, or they went on with yet another life.
    """
    there = _there(found)
    incarnations = {str(row[1]) for row in there}
    if incarnations == {after}:
        return None
    if incarnations != {before}:
        raise UpstreamReplaced(
            "these bindings went on with another life of the upstream",
            hint="read that one: the source's status says which",
            incarnation=", ".join(sorted(incarnations)),
            expected=before,
        )
    check(precedes(before, after), "a life of an upstream goes on as one that follows it", before=before, after=after)
    times = [decode_time(kind, before, row) for row in there]
    bound = SourceFrontier.of(kind, times)
    if not bound.less_equal(most):
        raise UpstreamReplaced(
            "more was bound than the upstream has of that history: what lies between is of one that is lost",
            hint="make a new source",
            bound=bound,
            has=most,
        )
    gone = to_table(kind, before, [RemapUpdate(time, ts, -1) for time in times])
    return pa.concat_tables([gone, to_table(kind, after, [RemapUpdate(time, ts, 1) for time in times])])


def incarnation_of(found: pa.Table) -> str:
    """
    The incarnation that bindings are of at a time.

    ``found``: the rows of the remap shard then, with ``diff``.

    Raises: nothing of its own (a source that was begun has bindings, and all of one incarnation).
    """
    incarnations = {str(row[1]) for row in _there(found)}
    check(len(incarnations) == 1, "bindings are of one incarnation at a time", found=sorted(incarnations))
    return incarnations.pop()


def _there(found: pa.Table) -> list[tuple[AnyValue, ...]]:
    """The rows that are there."""
    counts: dict[tuple[AnyValue, ...], int] = {}
    for *row, diff in zip(*(found.column(name).to_pylist() for name in (*_COLUMNS, "diff")), strict=True):
        counts[tuple(row)] = counts.get(tuple(row), 0) + diff
    there = [row for row, count in counts.items() if count]
    check(bool(there), "a source that was begun has bindings", rows=found.num_rows)
    return there
