"""When a materialized view is computed, and up to which time each result holds. Pure.

Its refresh times are the multiples of a number of times, or every time at which an input changed. At them its rows are
those of the query; between two of them they are as of the earlier one. So its upper is its next refresh time, and one
at which no input changed since the one before needs no query.
Source: collections: queries (materialized view, plain).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

from persist.core.catalog.ddl.statements import Refresh
from persist.core.frontier import TIME_MAX


@dataclass(frozen=True, slots=True)
class Until:
    """``at``: compute the query there; None: nothing changed. Then everything before ``upper`` is known."""

    at: int | None
    upper: int | None


def next_refresh(refresh: Refresh, time: int) -> int:
    """The least refresh time at or beyond a time."""
    if refresh.every is None:
        return time
    return min(-(-time // refresh.every) * refresh.every, TIME_MAX)


def refreshed_at(refresh: Refresh, time: int) -> int:
    """The refresh time that shows at a time: the greatest that is not beyond it."""
    return time if refresh.every is None else time // refresh.every * refresh.every


def last_refresh(refresh: Refresh, upper: int) -> int:
    """The greatest time before ``upper`` since which changes may not have been looked at: exclusive."""
    return upper - (1 if refresh.every is None else refresh.every)


def plan(
    upper: int, horizon: int | None, refresh: Refresh, changes: Iterable[int], *, always: bool = False
) -> Iterator[Until]:
    """What to do for a view whose next refresh time is at or beyond ``upper``: step by step, as it is asked for.

    ``horizon``: what is complete in all inputs, None: the end. ``changes``: times of changes after the last refresh.
    ``always``: rows differ from time to time even if no input changes. Nothing when nothing can be said yet.
    """
    end = None if horizon is None else next_refresh(refresh, max(upper, horizon))
    if end == upper:
        return
    needed: Iterable[int] = sorted({next_refresh(refresh, max(upper, time)) for time in changes})
    if always and refresh.every is not None and horizon is not None:
        # Years of them may be missing.
        needed = range(next_refresh(refresh, upper), horizon, refresh.every)
    before = (time for time in needed if horizon is None or time < horizon)
    first: int | None = next(before, None)
    if first is None:
        yield Until(None, end)
        return
    for at, after in pairwise(chain((first,), before, (end,))):
        yield Until(at, after)
