"""Whether the stores of a process answer: asked now and then, reported by metrics and ``/readyz``.

A server whose store is away stays ready: all replicas share the store, and a load balancer that took all of them out
would turn clear errors into none. Source: docs/runbook.md, when it hurts.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from persist.core.ids import ShardId, rollup_key
from persist.runtime import Runtime
from persist.settings import Settings
from persist_host.durability import DurableStore, kind_of
from persist_host.telemetry import Telemetry

TIMEOUT_SECONDS: Final = 3.0
_NO_SHARD: Final = ShardId.of(bytes(16))
"""A shard that does not exist. Asking for it reaches the store, and takes next to nothing."""
_NOTHING: Final = rollup_key(_NO_SHARD, 0, bytes(16))

_log = logging.getLogger("persist.host")


class StorePulse:
    """Asks every store once in ``settings.store_pulse_ms``."""

    def __init__(
        self, stores: Sequence[DurableStore], *, settings: Settings, runtime: Runtime, telemetry: Telemetry
    ) -> None:
        self._stores = stores
        self._pause = settings.store_pulse_ms / 1000
        self._runtime = runtime
        self._telemetry = telemetry
        self._answered_at: dict[str, float] = {}
        self._away: set[str] = set()

    async def beat(self) -> None:
        """Ask for ever."""
        while True:
            await asyncio.gather(*(self._ask(store) for store in self._stores))
            await self._runtime.sleep(self._pause)

    def remarks(self) -> Sequence[str]:
        """A line for each store that does not answer."""
        return [f"{kind}: no answer for {self._silent(kind):.0f} s" for kind in sorted(self._away)]

    async def _ask(self, store: Any) -> None:
        kind = kind_of(store)
        self._answered_at.setdefault(kind, self._runtime.monotonic())
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await _reach(store, kind)
        except Exception as error:  # whatever it is, the store did not do what it must
            if kind not in self._away:
                _log.error("a store does not answer", extra={"store": kind, "uri": store.uri, "error": str(error)})
            self._away.add(kind)
        else:
            if kind in self._away:
                silent = round(self._silent(kind), 1)
                _log.warning("a store answers again", extra={"store": kind, "silent_seconds": silent})
            self._away.discard(kind)
            self._answered_at[kind] = self._runtime.monotonic()
        labels = (("store", kind),)
        self._telemetry.gauge("persist_store_up", labels, kind not in self._away)
        self._telemetry.gauge("persist_store_silent_seconds", labels, self._silent(kind))

    def _silent(self, kind: str) -> float:
        return self._runtime.monotonic() - self._answered_at[kind] if kind in self._away else 0.0


async def _reach(store: Any, kind: str) -> None:
    """Raises unless the store answers."""
    if kind == "consensus":
        await store.head(_NO_SHARD, timeout=TIMEOUT_SECONDS)
    else:
        await store.get(_NOTHING, byte_range=(0, 1), timeout=TIMEOUT_SECONDS)
