"""How holds stand: which ones fell too far behind and what becomes of them, and what is reported to their owners.

Source: design 000 (MAX LAG, Monitoring); catalog-semantics.md sections 0.1, 0.5 and 3.2.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from persist.core.catalog.values import Id
from persist.core.frontier import CLOSED, Antichain
from persist.core.time.hold import NamedHold, lag_text
from persist.core.time.holds import Holds


class HoldState(StrEnum):
    """How a hold stands. ``LOST``: what it keeps is gone all the same, which should never be."""

    OK = "ok"
    LAGGING = "lagging"
    AUTO_ADVANCED = "auto-advanced"
    OVERDUE = "overdue"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldStanding:
    """How a hold stands, and why. ``inactive_since_ms``: it keeps nothing since then (wall clock)."""

    state: HoldState
    reason: str = ""
    lag: int | None = None
    inactive_since_ms: int | None = None


def measured(uppers: Mapping[Id, Antichain], quarantined: Collection[Id]) -> dict[str, Antichain]:
    """The uppers that lags are measured from. One whose times are not believed makes nothing lag."""
    return {str(id): CLOSED if id in quarantined else upper for id, upper in uppers.items()}


def overdue(holds: Holds, uppers: Mapping[str, Antichain], now_ms: int) -> dict[str, NamedHold]:
    """The holds that change, by name, because they fell too far behind. Those of unknown uppers are left for later."""
    known = {name: hold for name, hold in holds.by_name.items() if all(id in uppers for id in hold.objects)}
    after = Holds(objects=holds.objects, implied=holds.implied, by_name=known, rules=holds.rules).lagged(
        uppers, now_ms=now_ms
    )
    return {name: hold for name, hold in after.by_name.items() if hold != known[name]}


def standing_of(
    hold: NamedHold,
    uppers: Mapping[str, Antichain],
    given: Mapping[str, Antichain],
    now_ms: int,
    *,
    called: Callable[[str], str] = str,
) -> HoldStanding:
    """How a hold stands, wherever that is shown. Times that were given up since its owner last moved it come before a
    lag, as those do not come back. It lags in the second half of its MAX LAG: its owner should advance it, or find out
    why not.

    ``given``: what was given up of each object, as far as it is known. ``called``: what an object is called.
    """
    most = lag_text(hold.timeline, hold.max_lag)
    if not hold.is_active:
        reason = f"it fell behind by more than its MAX LAG of {most} and ended: it keeps nothing"
        return HoldStanding(state=HoldState.OVERDUE, reason=reason, inactive_since_ms=hold.overdue_since_ms)
    lost = [id for id in hold.objects if id in given and not given[id].less_equal_time(hold.at)]
    if lost:
        reason = f"{', '.join(map(called, lost))} is no longer readable at its time"
        return HoldStanding(state=HoldState.LOST, reason=reason)
    lag = _lag(hold, uppers, now_ms)
    if was_moved(hold.last_auto_advance_ms, hold.last_ack_ms):
        times = "once" if hold.auto_advanced_count == 1 else f"{hold.auto_advanced_count} times"
        reason = f"it fell behind by more than its MAX LAG of {most}, and was moved by itself {times}"
        return HoldStanding(state=HoldState.AUTO_ADVANCED, reason=reason, lag=lag)
    if lag is not None and 2 * lag > hold.max_lag:
        of = next(id for id in hold.objects if uppers[id].time == hold.at + lag)
        reason = f"it is behind {called(of)} by {lag_text(hold.timeline, lag)} of the {most} that it may be"
        return HoldStanding(state=HoldState.LAGGING, reason=reason, lag=lag)
    return HoldStanding(state=HoldState.OK, lag=lag)


def was_moved(last_auto_advance_ms: int | None, last_ack_ms: int) -> bool:
    """Whether a hold gave times up by itself since its owner moved it."""
    return last_auto_advance_ms is not None and last_auto_advance_ms >= last_ack_ms


def _lag(hold: NamedHold, uppers: Mapping[str, Antichain], now_ms: int) -> int | None:
    if any(id not in uppers for id in hold.objects):
        return None
    upper = hold.write_frontier(uppers, now_ms).time
    return None if upper is None else max(0, upper - hold.at)
