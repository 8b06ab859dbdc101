"""What keeps a planned read readable: leased readers and pinned parts, in the driver's helper processes.

Nothing tells a data source when a DataFrame or a job dies, and Spark ends an idle helper process without notice. So a
hold is a lease that outlives this process by itself (option ``holdTtlSeconds``). While the process lives the client
renews it, and what was planned stays pinned for that time, or for an hour when that is longer: tasks may take many
leases. One reader serves all plans of a shard until half its time is over, so however many DataFrames there are, a
shard's state holds three of our readers at most. Source: spark.md section 0 fact 7, section 2.3.
"""

import os
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from persist import LeaseExpired
from persist.runtime import system
from pyspark_persist.location import Target

KEPT_SECONDS_MIN: Final = 3600.0
"""A living process keeps what it planned for so long at least, however short its leases are."""


class Hold:
    """A reader, when it was opened, and the pins of what was planned with it."""

    def __init__(self, reader: Any, *, opened: float) -> None:
        self.reader = reader
        self.opened = opened
        self._pins: deque[tuple[float, object]] = deque()

    def keep(self, splits: Iterable[Any], *, ttl_seconds: int) -> None:
        """Keep the parts of these splits from being deleted until the plan's time is over."""
        at = system().monotonic()
        while self._pins and self._pins[0][0] < at - _kept(ttl_seconds):
            self._pins.popleft()
        self._pins.extend((at, pin) for pin in {id(split.pin): split.pin for split in splits}.values())


_HOLDS: Final[dict[tuple[object, ...], list[Hold]]] = {}
_LOCK: Final = threading.Lock()


def hold_of(target: Target, *, ttl_seconds: int) -> Hold:
    """A hold on the shard with at least half its time as a holder of plans before it, renewed just now.

    Raises ShardNotFound, LocationError.
    """
    key = (target.location, target.shard, ttl_seconds, os.getpid())
    with _LOCK:
        at = system().monotonic()
        # SUBTLE: dropping a reader expires it, so one that is no longer handed out stays until its last plan is over.
        holds = [hold for hold in _HOLDS.get(key, []) if at - hold.opened < 2 * _kept(ttl_seconds)]
        if not holds or at - holds[-1].opened >= _kept(ttl_seconds) / 2 or not is_alive(holds[-1].reader, target):
            holds.append(Hold(open_reader(target, ttl_seconds=ttl_seconds), opened=at))
        _HOLDS[key] = holds
        return holds[-1]


def _kept(ttl_seconds: int) -> float:
    return max(float(ttl_seconds), KEPT_SECONDS_MIN)


def open_reader(target: Target, *, ttl_seconds: int) -> Any:
    """A fresh leased reader of an existing shard."""
    return target.client().open_reader(target.shard_id, lease=ttl_seconds, purpose="spark", timeout=target.timeout)


def since_of_others(reader: Any, target: Target) -> int | None:
    """The smallest time any other reader of the shard holds, leased or critical; None when nobody holds one."""
    state = target.client().inspect(target.shard_id, timeout=target.timeout)
    held = {**state["leased_readers"], **state["critical_readers"]}
    held.pop(str(reader.reader_id), None)
    return min((int(holder["since"][0]) for holder in held.values() if holder["since"]), default=None)


def is_alive(reader: Any, target: Target) -> bool:
    """Renew the reader's lease; False when it is gone."""
    try:
        reader.downgrade_since(reader.since, timeout=target.timeout)
    except LeaseExpired:
        return False
    return True
