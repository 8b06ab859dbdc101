"""Whether a shard takes rows: asked before an upload that it would refuse, and never in the place of its own answer.

A server refuses rows while compaction is too far behind. It says so of a shard that is opened and of an append that it
refused; from then on a handle asks again before it encodes and uploads anything.
Source: reliability.md section 5, backpressure.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from persist.client.shard.location import Location
from persist.client.shard.write.batch import Bounds
from persist.core.ids import ShardId
from persist.core.shard.transitions.append import TOO_MANY, overloaded
from persist.errors import LocationError

Waiting = Callable[[], Awaitable[None]]
"""Returns once there is room, as far as the server says."""


class Room:
    """What the server of one handle's shard last said."""

    def __init__(self, location: Location, shard: ShardId, setting: str) -> None:
        """``setting``: by which the shard refused rows when it was opened, or empty."""
        self._location = location
        self._shard = shard
        self._setting = setting

    def refused(self, error: LocationError) -> None:
        """Take notice of how an append ended."""
        setting = error.details.get("setting", "")
        self._setting = setting if setting in TOO_MANY else self._setting

    def taken(self) -> None:
        """Rows were taken."""
        self._setting = ""

    def waiting(self, bounds: Bounds | None, timeout: float | None) -> Waiting:
        """What an append waits for before it uploads. ``bounds``: where it begins; None: wherever the shard ends.

        One RPC a second where the last answer was a refusal, none otherwise. Raises Overloaded after ``timeout``, and
        LocationError: nothing was sent.
        """
        return partial(self._wait, bounds, timeout)

    async def _wait(self, bounds: Bounds | None, timeout: float | None) -> None:
        if self._setting:
            deadline = self._location.attempts.deadline(timeout)
            await self._location.attempts.read(deadline, lambda seconds: self._ask(bounds, seconds))

    async def _ask(self, bounds: Bounds | None, seconds: float) -> None:
        info = await self._location.shards.open(self._shard, create=False, timeout=seconds)
        self._setting = info.behind
        # SUBTLE: of an append that is too late the shard says where it ends, or that its bounds are written, however
        # full it is; and of one that is closed that it is.
        is_late = info.upper.is_empty or (bounds is not None and bounds[0] != info.upper)
        if self._setting in TOO_MANY and not is_late:
            raise overloaded(self._setting)
