"""How long this process stood still lately, frozen or busy: what it reads next may have waited as long in a socket.

A call says how long it may take, not when it was sent. A server that stood still would count that time from when it
wakes, and carry out what its caller has long given up. What is true in the end does not depend on this: it keeps rare
what callers must otherwise find out about.
Source: reliability.md section 5.
"""

from typing import Final

from persist.runtime import Runtime

BEAT_SECONDS: Final = 0.5
STILL_SECONDS: Final = 0.5
"""A beat that comes so much too late says that the process stood still."""
FRESH_SECONDS: Final = 1.0
"""After so long whatever waited has been read."""


class Stillness:
    """Beats on the event loop, and notices when it could not. For one loop; ``beat`` runs until it is cancelled."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._beaten: float | None = None
        self._stood = 0.0
        self._until = 0.0

    async def beat(self) -> None:
        """Beat."""
        while True:
            self._note()
            await self._runtime.sleep(BEAT_SECONDS)

    def lately(self) -> float:
        """For how many seconds, at most, a call that is read now may have waited."""
        if self._beaten is not None:
            self._note()
        return self._stood if self._runtime.monotonic() < self._until else 0.0

    def _note(self) -> None:
        now = self._runtime.monotonic()
        if self._beaten is not None and now - self._beaten > BEAT_SECONDS + STILL_SECONDS:
            self._stood, self._until = now - self._beaten, now + FRESH_SECONDS
        self._beaten = now
