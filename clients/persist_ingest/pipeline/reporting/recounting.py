"""Rows that exports hold less than no times, counted little by little while a pipeline has nothing to do with them.

A retraction of what is not there shows in nothing that is written: only all of an export says so. Exports with state
(keys) see it at once, and write nothing. Of the others this goes through all rows in portions of keys, each at the
last complete time by then, so that no step waits for it, nothing is held for it in between, and no memory is needed.
Source: catalog-semantics.md section 4; reliability.md I19.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from persist.runtime import system
from persist.typed import Fields
from persist_ingest.location import Location
from persist_ingest.pipeline.records import Source
from persist_ingest.pipeline.state import Key, contents_of
from persist_ingest.pipeline.troubles import running

PORTION_ROWS: Final = 200_000
PAUSE_SECONDS: Final = 20.0
"""Between two portions: a fraction of a hundredth of a core, and 100 million rows in three hours."""
FIRST_SECONDS: Final = 60.0
"""After a pipeline began: one that runs for moments has other things to do."""
WRONG_SECONDS: Final = 60.0
"""Between two rounds while some export is wrong: so that one that was mended is seen to be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recounted:
    """What all of an export came to. ``at_ms``: when the last of it was read."""

    rows: int
    negative: int
    at_ms: int


class Recount:
    """That of one pipeline. ``found``: by export, what was counted last."""

    def __init__(self, location: Location, every_ms: int) -> None:
        """``every_ms``: between the ends of one round over all exports and the beginning of the next; 0: none."""
        self.found: dict[str, Recounted] = {}
        self.portion_rows = PORTION_ROWS
        self._location = location
        self._every = every_ms / 1000
        self._due_at = system().monotonic() + min(FIRST_SECONDS, self._every)
        self._left: list[str] = []
        self._after: Key | None = None
        self._rows = self._negative = 0

    def due(self, source: Source) -> Callable[[], None] | None:
        """The next portion, once it may be counted."""
        if not self._every or system().monotonic() < self._due_at:
            return None
        return lambda: self.go_on(source)

    def go_on(self, source: Source) -> None:
        """Count one portion of one export that runs. Raises NotReadable, LocationError: it is begun with again."""
        # Should it fail it is tried again no sooner than that.
        self._due_at = system().monotonic() + PAUSE_SECONDS
        runs = running(source)
        self._left = [export for export in self._left if export in runs] or sorted(runs)
        if not self._left:
            return
        export = self._left[0]
        try:
            part = contents_of(self._location, source, source.shards[export]).counted(self._after, self.portion_rows)
        except BaseException:
            self._next(0)
            raise
        self._rows += part.rows
        self._negative += part.negative
        self._after = part.behind
        if part.behind is None:
            self.found[export] = Recounted(rows=self._rows, negative=self._negative, at_ms=system().now_ms())
            self._next(1)
        rest = PAUSE_SECONDS * min(1.0, part.rows / self.portion_rows)
        if not self._left:
            is_wrong = any(each.negative for each in self.found.values())
            rest = min(WRONG_SECONDS, self._every) if is_wrong else self._every
        self._due_at = system().monotonic() + rest

    def _next(self, done: int) -> None:
        del self._left[:done]
        self._after, self._rows, self._negative = None, 0, 0

    def details(self) -> dict[str, object]:
        """For the source's status, JSON-ready."""
        return {RECOUNTED: {export: asdict(each) for export, each in self.found.items()}} if self.found else {}


RECOUNTED: Final = "recounted"


def recounted(ingesters: Mapping[str, Fields], exports: Mapping[str, object]) -> dict[str, Recounted]:
    """What ingesters said last, of exports that are there."""
    found: dict[str, Recounted] = {}
    for told in ingesters.values():
        for export, each in (told.get("details") or {}).get(RECOUNTED, {}).items():
            one = Recounted(**each)
            if export in exports and (export not in found or found[export].at_ms < one.at_ms):
                found[export] = one
    return found
