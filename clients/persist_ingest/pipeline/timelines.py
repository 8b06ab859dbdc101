"""Which timeline a source is in: decided when it is created, recorded with it, checked whenever it is opened.

Source: design 004, variants; catalog-semantics.md section 6.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from persist import InvalidArgument
from persist.sources import (
    EPOCH_MILLISECONDS,
    CounterTimeline,
    EpochMilliseconds,
    ExternalTimeline,
    UserTimeline,
    claims_epoch,
    source_timeline,
    timeline_of,
)
from persist_ingest.sources.port import BringsTimes, SourceFailure, SourceReader

_TIMELINE: Final = "timeline"
_EPOCH: Final = ("epoch_ms_timeline", "epochmstimeline")


@dataclass(frozen=True, slots=True)
class Decided:
    """The text of a timeline; ``claims_epoch``: it is not checked that its times are milliseconds."""

    timeline: str
    claims_epoch: bool


@dataclass(frozen=True, slots=True)
class AskedTimelines:
    """What options say: ``timeline=`` and ``epoch_ms_timeline=``, which every source has."""

    timeline: str | None = None
    epoch_ms_timeline: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "tuple[AskedTimelines, dict[str, str]]":
        """These, and the other options. Raises InvalidArgument: one is given twice."""
        found: dict[str, str] = {}
        rest: dict[str, str] = {}
        for name, text in options.items():
            known = name.lower()
            which = _TIMELINE if known == _TIMELINE else _EPOCH[0] if known in _EPOCH else None
            if which is None:
                rest[name] = text
            elif which in found:
                raise InvalidArgument(f"option {which} is given twice", hint="keep one of them", got=name)
            else:
                found[which] = text.strip()
        return cls(**found), rest

    def decided(self, reader: SourceReader, *, id: str, name: str) -> Decided:
        """The timeline of a source that was just set up; ``id`` names it for ever. Raises InvalidArgument."""
        epoch: object = self.epoch_ms_timeline
        if isinstance(epoch, str) and epoch.lower() == "true":
            epoch = True
        own = own_timeline(reader, id=id, name=name)
        timeline = source_timeline(own, timeline=self.timeline, epoch_ms_timeline=epoch)
        return Decided(str(timeline), claims_epoch(own, timeline))


def own_timeline(reader: SourceReader, *, id: str, name: str) -> EpochMilliseconds | ExternalTimeline | CounterTimeline:
    """What a source's times are by themselves: minted, counted by a topic, or brought along."""
    if not isinstance(reader, BringsTimes):
        return EPOCH_MILLISECONDS
    return reader.counter or ExternalTimeline(id, name)


def check_timeline(recorded: Decided, reader: SourceReader, *, id: str, name: str) -> None:
    """Raises SourceFailure unless a source whose times are the reader's can be in the timeline that was recorded."""
    own = own_timeline(reader, id=id, name=name)
    timeline = timeline_of(recorded.timeline)
    is_possible = isinstance(timeline, UserTimeline) or timeline in (own, EPOCH_MILLISECONDS)
    if not is_possible or claims_epoch(own, timeline) != recorded.claims_epoch:
        raise SourceFailure(
            "the source's times are not of the timeline that was recorded when it was created",
            hint="drop the source and create it again",
            source=name,
            recorded=recorded.timeline,
            brings=str(own),
        )
