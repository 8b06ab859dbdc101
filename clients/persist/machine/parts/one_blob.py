"""Reading many blobs, of which a store may not return some: each is an error of its own, with its key.

A sector that cannot be read, or a permission that is missing, is about one blob; several in a row are about the store.
"""

from typing import Final

from persist.errors import CorruptData, LocationError
from persist.retry.attempts import Attempts
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Blob

IN_A_ROW_MAX: Final = 3
"""Blobs after one another that are not returned, before the store is taken for away."""


class NotReturned(CorruptData):
    """A store has a blob and does not return it. Its bytes may be whole: nothing is taken out for it."""


class OneByOne:
    """Reads blobs, each with a deadline of its own: twice a call's limit."""

    def __init__(self, blob: Blob, *, settings: Settings, runtime: Runtime) -> None:
        self._blob = blob
        self._runtime = runtime
        self._limit_ms = settings.blob_timeout_ms
        self._seconds = min(2 * settings.blob_timeout_ms, settings.maintenance_timeout_ms) / 1000
        self._attempts = Attempts(settings=settings, runtime=runtime)
        self._in_a_row = 0

    async def get(self, key: str) -> bytes | None:
        """A blob, None when it is not there. Raises NotReturned; LocationError once several in a row are not."""

        async def call(seconds: float) -> bytes | None:
            return await self._blob.get(key, timeout=seconds)

        try:
            data = await self._attempts.read(Deadline(self._runtime, self._seconds), call, limit_ms=self._limit_ms)
        except LocationError as error:
            self._in_a_row += 1
            if self._in_a_row >= IN_A_ROW_MAX:
                raise
            hint = "see why the store does not return it: a disk's error, a permission; then check again"
            raise NotReturned(f"it cannot be read: {_said(error)}", hint=hint, key=key) from error
        self._in_a_row = 0
        return data


def _said(error: LocationError) -> str:
    """What the store said, in one line."""
    values = " ".join(f"{name}={value}" for name, value in error.details.items() if name != "key")
    return f"{error.message} {values}".strip()
