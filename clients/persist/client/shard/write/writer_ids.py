"""The writer id of a handle: one that is old enough to be fenced off is replaced by a new one.

A shard refuses writers that it does not know and that are older than its fence, so that what they left in Blob can be
swept. An idle writer would meet that; a new id costs nothing. Source: reliability.md I12.
"""

from persist.core.ids import WriterId
from persist.runtime import Runtime
from persist.settings import Settings


class WriterIds:
    """The writer id of one handle."""

    def __init__(self, first: WriterId, *, owned: bool, fence_ms: int, settings: Settings, runtime: Runtime) -> None:
        """``owned``: no other handle writes under ``first``, so it may be given up. ``fence_ms``: no id is older."""
        self._fence_ms = fence_ms
        self._current = first
        self._fixed = not owned
        self._lease_seconds = settings.writer_lease_ms / 1000
        self._runtime = runtime
        self._known_at = runtime.monotonic()

    def fixed(self) -> WriterId:
        """The id, which never changes again: others may write under it from now on."""
        self._fixed = True
        return self._current

    @property
    def current(self) -> WriterId:
        """The id as it is now."""
        return self._current

    def for_append(self) -> WriterId:
        """The id for an append that begins now: half of the lease, at least, is left for uploading."""
        if self._runtime.monotonic() - self._known_at >= self._half:
            self.renew()
        return self._current

    def renew(self) -> None:
        """Go on under a new id, unless others share this one."""
        if not self._fixed:
            now_ms, entropy = max(self._runtime.now_ms(), self._fence_ms), self._runtime.random_bytes(16)
            self._current = WriterId.born(now_ms, entropy)
            self._known_at = self._runtime.monotonic()

    def begin(self) -> float:
        """Note that an attempt is sent now; pass the result to ``end``."""
        return self._runtime.monotonic()

    def end(self, begun: float, *, committed: bool) -> None:
        """Note that the attempt ended. ``committed``: the shard knows the writer, for a lease from when it was sent."""
        if committed:
            self._known_at = max(self._known_at, begun)

    @property
    def _half(self) -> float:
        return self._lease_seconds / 2
