"""Unsafe store settings: refused at start, or accepted by name and then reported again and again.

Source: reliability.md section 4, refusing unsafe configurations.
"""

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.open import safe
from persist.storage.ports import Finding
from persist_host.telemetry import Telemetry

REPEAT_SECONDS: Final = 60.0

_log = logging.getLogger("persist.host")


class DurableStore(Protocol):
    """A Blob or a Consensus, as far as its safety goes."""

    async def findings(self) -> Sequence[Finding]:
        """What is unsafe, by live checks."""
        ...


def kind_of(store: DurableStore) -> str:
    """``consensus`` or ``blob``."""
    return "consensus" if hasattr(store, "compare_and_set") else "blob"


class Durability:
    """What is known about the safety of a process's stores. ``durable``: nothing unsafe was accepted."""

    def __init__(
        self, stores: Sequence[DurableStore], *, settings: Settings, runtime: Runtime, telemetry: Telemetry
    ) -> None:
        self._stores = stores
        self._settings = settings
        self._runtime = runtime
        self._telemetry = telemetry
        self.accepted: tuple[Finding, ...] = ()

    @property
    def durable(self) -> bool:
        """No unsafe setting was found, or none that had to be accepted."""
        return not self.accepted

    async def check(self) -> None:
        """Look at every store. Raises UnsafeConfiguration unless each finding is accepted by name."""
        self.accepted = await safe(self._stores, settings=self._settings, runtime=self._runtime)
        for finding in self.accepted:
            self._telemetry.gauge("persist_consensus_unsafe", (("finding", finding.name),), 1)

    async def remind(self) -> None:
        """Log every accepted finding now and each minute. Ends at once when there is none."""
        while self.accepted:
            for finding in self.accepted:
                _log.error(
                    "unsafe setting accepted: %s",
                    finding.consequence,
                    extra={
                        "finding": finding.name,
                        "setting": finding.setting,
                        "found": finding.found,
                        "required": finding.required,
                    },
                )
            await self._runtime.sleep(REPEAT_SECONDS)
