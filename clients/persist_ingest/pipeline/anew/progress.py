"""How far an export is that is read anew: recorded with the source, so that another process goes on from there.

What was read is in a shard of its own. A step is *announced* in the record, then appended there, at the upper that the
record has; so the next process knows by that upper whether what was announced happened, and sees to it, before
anything else, that it cannot happen any more if it did not: an append that moves the upper by one is a step, one that
moves it by two belongs to no attempt.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from persist.typed import Fields
from persist_ingest.pipeline.troubles import Trouble

STEP: Final = 1
FENCE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A place. ``hold``: the log up to there is taken into account, and what comes later still needed.

    ``after``: the key of the last row that was read; ``complete``: there are no more. ``rows``, ``pieces``: how many.
    """

    hold: int
    after: tuple[str, ...] | None = None
    complete: bool = False
    rows: int = 0
    pieces: int = 0

    @staticmethod
    def of(given: Fields) -> "Reached":
        """From JSON."""
        after = given["after"]
        return Reached(**{**given, "after": None if after is None else tuple(after)})


@dataclass(frozen=True, slots=True, kw_only=True)
class AnewProgress:
    """``staging``: the shard of what was read, with ``upper`` when it holds all that ``reached`` says.

    ``begun``: what the type of the source goes on with; ``about``: rows in all, roughly; ``began_ms``: when it began.
    ``announced``: where the next step leads, which may have happened. ``moved``: the export has all of it.
    """

    staging: str
    begun: Mapping[str, object]
    reached: Reached
    upper: int = 0
    about: int = 0
    began_ms: int = 0
    announced: Reached | None = None
    moved: bool = False

    def found(self, upper: int | None) -> "AnewProgress | None":
        """What is so when the staging shard has this upper, which no announced step can move any more.

        None: it is not the shard that this is about.
        """
        if self.announced is not None and upper == self.upper + STEP:
            return replace(self, reached=self.announced, announced=None, upper=upper)
        if upper == self.upper or (self.announced is not None and upper == self.upper + FENCE):
            return replace(self, announced=None, upper=upper)
        return None

    def to_json(self) -> Mapping[str, object]:
        """JSON-ready."""
        return asdict(self)

    @staticmethod
    def of(trouble: Trouble | None) -> "AnewProgress | None":
        """That of an export; None where nothing was recorded of it yet."""
        if trouble is None or trouble.progress is None:
            return None
        given: Fields = trouble.progress
        announced = None if given["announced"] is None else Reached.of(given["announced"])
        return AnewProgress(**{**given, "reached": Reached.of(given["reached"]), "announced": announced})
