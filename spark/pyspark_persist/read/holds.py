"""Keeping a planned read readable: leased readers and their pins.

A data source is not notified when a DataFrame or a job dies, and Spark ends a helper process that planned nothing for a
minute. So the driver's own process keeps what is planned, where it can (``keeper.py``). Where it cannot, a hold is a
lease that outlives the helper process by itself (option ``holdTtlSeconds``). While that process lives the client renews
it, and what was planned stays pinned for that time, or for an hour when that is longer: tasks may take many leases.
One reader serves all plans of a shard until half its time is over, so however many DataFrames there are, a shard's
state holds three of our readers at most. Source: spark.md section 0 fact 7, section 2.3.
"""

import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import persist
from persist import CorruptData, LeaseExpired, PersistError
from persist.runtime import system
from persist_ingest.location import Target

KEPT_SECONDS_MIN: Final = 3600.0
"""A living process keeps what it planned for so long at least, however short its leases are."""

EXPIRED_HINT: Final = (
    "load the DataFrame again; for longer jobs raise holdTtlSeconds (and holdMaxSeconds), or call "
    "pyspark_persist.register(spark) in the driver"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The hold on the parts of a plan: this reader, for as long as it holds no seqno beyond this one."""

    reader_id: str
    seqno: int


class ReaderHold:
    """A reader, when it was opened, and the pins of what was planned with it."""

    def __init__(self, reader: "persist.ReadHandle", *, opened: float) -> None:
        self.reader = reader
        self.opened = opened
        self._pins: deque[tuple[float, Any]] = deque()

    def keep(self, pin: Any, *, ttl_seconds: int) -> Held:
        """Keep what is planned from now on from being deleted until the plan's time is over."""
        at = system().monotonic()
        while self._pins and self._pins[0][0] < at - kept_seconds(ttl_seconds):
            self._pins.popleft()
        self._pins.append((at, pin))
        return held_by(self.reader, pin)


_HOLDS: Final[dict[tuple[object, ...], list[ReaderHold]]] = {}
_LOCK: Final = threading.Lock()


def hold_of(target: Target, *, ttl_seconds: int) -> "tuple[persist.ReadHandle, Held]":
    """A reader with at least half its time as a holder of plans before it, and what keeps a plan made from now on.

    Raises ShardNotFound, LocationError.
    """
    key = (target.location, target.shard, ttl_seconds, os.getpid())
    with _LOCK:
        at = system().monotonic()
        # SUBTLE: dropping a reader expires it, so one that is no longer handed out stays until its last plan is over.
        holds = [hold for hold in _HOLDS.get(key, []) if at - hold.opened < 2 * kept_seconds(ttl_seconds)]
        pin = None
        if holds and at - holds[-1].opened < kept_seconds(ttl_seconds) / 2:
            pin = pinned(holds[-1].reader, target)
        if pin is None:
            holds.append(ReaderHold(open_reader(target, ttl_seconds=ttl_seconds), opened=at))
            pin = holds[-1].reader.pin(timeout=target.timeout)
        _HOLDS[key] = holds
        return holds[-1].reader, holds[-1].keep(pin, ttl_seconds=ttl_seconds)


def kept_seconds(ttl_seconds: int) -> float:
    """For how long a process keeps what it planned, and hands out one reader twice as often."""
    return max(float(ttl_seconds), KEPT_SECONDS_MIN)


def open_reader(target: Target, *, ttl_seconds: int) -> "persist.ReadHandle":
    """A fresh leased reader of an existing shard."""
    return target.client().open_reader(target.shard_id, lease=ttl_seconds, purpose="spark", timeout=target.timeout)


def held_by(reader: "persist.ReadHandle", pin: Any) -> Held:
    """The hold of a pin, as values that travel with a plan."""
    return Held(reader_id=str(reader.reader_id), seqno=pin.seqno)


def since_of_others(reader: "persist.ReadHandle", target: Target) -> int | None:
    """The smallest time any other reader of the shard holds, leased or critical; None when none is held."""
    state = target.client().inspect(target.shard_id, timeout=target.timeout)
    held = {**state["leased_readers"], **state["critical_readers"]}
    held.pop(str(reader.reader_id), None)
    return min((int(holder["since"][0]) for holder in held.values() if holder["since"]), default=None)


def pinned(reader: "persist.ReadHandle", target: Target) -> Any:
    """A pin of what is planned from now on, and a renewed lease; None when the lease is gone."""
    try:
        return reader.pin(timeout=target.timeout)
    except LeaseExpired:
        return None


def is_alive(reader: "persist.ReadHandle", target: Target) -> bool:
    """Renew the reader's lease; False when it is gone."""
    return pinned(reader, target) is not None


def explained(error: CorruptData, target: Target, held: Held | None) -> PersistError:
    """Why a task could not read a part: LeaseExpired when nothing holds the plan any more, else the error itself."""
    if held is None or "missing" not in error.message:
        return error
    try:
        state = target.client().inspect(target.shard_id, timeout=target.timeout)
    except PersistError:
        return error
    reader = state["leased_readers"].get(held.reader_id)
    if reader is not None and int(reader["seqno"]) <= held.seqno:
        return error
    return LeaseExpired(
        "what was planned is no longer held, and parts of it have been deleted",
        hint=EXPIRED_HINT,
        reader=held.reader_id,
        **error.details,
    )
