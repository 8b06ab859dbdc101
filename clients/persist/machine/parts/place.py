"""Where parts are read and written: what the pipelines need of a client or a server."""

from dataclasses import dataclass
from typing import Protocol

from persist.retry.attempts import Attempts
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Blob


class Place(Protocol):
    """A store of blobs, and how to call it."""

    @property
    def blob(self) -> Blob:
        """Where the parts are."""
        ...

    @property
    def settings(self) -> Settings:
        """Knobs."""
        ...

    @property
    def runtime(self) -> Runtime:
        """Clock and threads."""
        ...

    @property
    def attempts(self) -> Attempts:
        """How calls are repeated."""
        ...


@dataclass(frozen=True, slots=True)
class PlaceOf:
    """A place made of what it needs."""

    blob: Blob
    settings: Settings
    runtime: Runtime
    attempts: Attempts
