"""Which deliveries are in a webhook's table already, so that what a sender repeats is appended once.

The table is the authority: this is what its columns ``delivery``, ``fingerprint`` and ``received`` say up to one time,
folded. An append is made at exactly that time, so what
another server appended first is known before it succeeds.
About 40 bytes for each delivery of the last hours. Source: IETF draft "The Idempotency-Key HTTP Header Field".
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persist_ingest.sources.webhook.definition import DELIVERY, FINGERPRINT, RECEIVED

FRESH_MAX: Final = 65_536
"""Deliveries that are looked up one by one; then they are sorted in among the others."""
COLUMNS: Final = (DELIVERY.name, FINGERPRINT.name, RECEIVED.name)


@dataclass(frozen=True, slots=True)
class Known:
    """A delivery that is in the table. ``time``: at which it is; 0 where that is not known any more."""

    fingerprint: int
    received_ms: int
    time: int = 0


class Memory:
    """The deliveries of one table. One thread."""

    def __init__(self, hours: int) -> None:
        self._window_ms = hours * 3_600_000
        self._fresh: dict[tuple[int, int], Known] = {}
        # Sorted by the first column, which is half of a hash of the key; the second is the other half.
        self._old: NDArray[np.uint64] = np.empty((0, 2), np.uint64)
        self._told: NDArray[np.int64] = np.empty((0, 3), np.int64)

    def __len__(self) -> int:
        return len(self._fresh) + len(self._old)

    def of(self, key: str, now_ms: int) -> Known | None:
        """What is known of a delivery; None: it did not come within the hours that are remembered."""
        halves = _halves(key)
        found = self._fresh.get(halves) or self._sought(halves)
        return found if found is not None and found.received_ms >= now_ms - self._window_ms else None

    def add(self, key: str, known: Known) -> None:
        """It is in the table."""
        self._fresh[_halves(key)] = known
        if len(self._fresh) >= FRESH_MAX:
            self._sort_in(known.received_ms)

    def read(self, batches: Iterable[pa.RecordBatch], *, timed: bool) -> None:
        """Rows of the table, or updates of it (``timed``), with ``COLUMNS``."""
        for batch in batches:
            columns: list[list[Any]] = [batch.column(name).to_pylist() for name in (DELIVERY.name, FINGERPRINT.name)]
            columns.append(batch.column(RECEIVED.name).cast(pa.int64()).to_pylist())
            columns.append(batch.column("ts").to_pylist() if timed else [0] * batch.num_rows)
            rows = zip(*columns, strict=True)
            for key, fingerprint, received_ms, time in dict.fromkeys(rows):
                self.add(key, Known(fingerprint, received_ms, time))

    def clear(self) -> None:
        """Know nothing."""
        self._fresh.clear()
        self._old, self._told = np.empty((0, 2), np.uint64), np.empty((0, 3), np.int64)

    def earliest(self, now_ms: int) -> int:
        """What was received before needs not be read."""
        return max(0, now_ms - self._window_ms)

    def _sought(self, halves: tuple[int, int]) -> Known | None:
        first = np.uint64(halves[0])
        at = int(np.searchsorted(self._old[:, 0], first))
        while at < len(self._old) and self._old[at, 0] == first:
            if int(self._old[at, 1]) == halves[1]:
                return Known(*map(int, self._told[at]))
            at += 1
        return None

    def _sort_in(self, now_ms: int) -> None:
        """SUBTLE: the clock of another server may be behind; so what is forgotten is forgotten an hour late."""
        fresh = np.asarray(list(self._fresh), np.uint64)
        told = np.asarray([(each.fingerprint, each.received_ms, each.time) for each in self._fresh.values()], np.int64)
        kept = self._told[:, 1] >= self.earliest(now_ms) - 3_600_000
        old, old_told = np.concatenate([fresh, self._old[kept]]), np.concatenate([told, self._told[kept]])
        order = np.argsort(old[:, 0], kind="stable")
        self._old, self._told = old[order], old_told[order]
        self._fresh.clear()


def _halves(key: str) -> tuple[int, int]:
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")
