"""Exports of a source that do not go on while its others do: what keeps each is in the source's record.

An export that is kept is not appended to, so what it holds is right up to its upper, and stays so. All ingesters read
the record before they release anything upstream, so none forgets what an export that is just being mended needs.
Source: sources.md section 1, semantics seen; catalog-semantics.md section 4.2.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from persist import PersistError
from persist.runtime import system
from persist.sources import SILENT_MS, STALLED, SourceFrontier, SourceKind
from persist.typed import Fields
from persist_ingest.pipeline.records import Records, Source, SourceNotFound, source_of
from persist_ingest.sources.port import TableAltered, TakesOver

SNAPSHOTTING: Final = "snapshotting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why an export does not go on. ``state``: stalled, or snapshotting: ``attempt`` reads it anew, and beats.

    ``since_ms``: when it stopped; ``error`` and ``hint``: why, and what to do. ``progress``: how far an attempt is, as
    ``anew.progress`` has it; None: it has not begun to read.
    """

    state: str
    since_ms: int
    error: str = ""
    hint: str = ""
    attempt: str = ""
    beat_ms: int = 0
    progress: Fields | None = None

    @staticmethod
    def of(error: PersistError) -> "Trouble":
        """That of an export that this was raised for, now."""
        text = f"{type(error).__name__}: {error.message}"
        shown = ", ".join(f"{key}={value}" for key, value in error.details.items() if key != "export")
        return Trouble(
            state=STALLED,
            since_ms=system().now_ms(),
            error=f"{text} [{shown}]" if shown else text,
            hint=str(error.hint or ""),
        )


def troubles(source: Source) -> dict[str, Trouble]:
    """Those of its exports that do not go on."""
    return {export: Trouble(**fields) for export, fields in source.troubles.items()}


def running(source: Source) -> list[str]:
    """Those that do."""
    return [export for export in source.exports if export not in source.troubles]


def snapshotted(source: Source) -> dict[str, Trouble]:
    """Those of its exports that are being snapshotted, at work or abandoned."""
    return {export: each for export, each in troubles(source).items() if each.state == SNAPSHOTTING}


def held(source: Source, silent_ms: int) -> int | None:
    """Up to where the upstream may release its log, as exports are going to read what follows; None: anything.

    One that was not begun needs nothing while no attempt was at work on it since ``silent_ms``: one that was only
    asleep finds what it begins with gone, and begins again.
    """
    begun = [
        each for each in snapshotted(source).values() if each.progress or (each.attempt and each.beat_ms >= silent_ms)
    ]
    found = [each.progress["reached"]["hold"] if each.progress else 0 for each in begun]
    return min(found, default=None)


@dataclass(frozen=True, slots=True)
class Held:
    """What exports need that are going to be read. ``log``: the upstream's from there on; 0: all, None: nothing of it.

    ``bindings``: an export is about to have all of its times, or has, without being one that runs: it needs theirs. A
    snapshot is bound once it is complete, to a time that is later than all that was durable before. Without snapshots
    it is bound while an attempt is at work on it.
    """

    log: int | None = None
    bindings: bool = False

    @staticmethod
    def by(source: Source, silent_ms: int, *, has_snapshots: bool) -> "Held":
        """By those of a source. ``silent_ms``: an attempt that said nothing since then is none."""

        def is_near(each: Trouble) -> bool:
            if each.progress is None:
                return not has_snapshots and bool(each.attempt) and each.beat_ms >= silent_ms
            places = (each.progress["reached"], each.progress["announced"])
            return any(place is not None and place["complete"] for place in places)

        return Held(held(source, silent_ms), any(map(is_near, snapshotted(source).values())))

    def bounded(self, frontier: SourceFrontier, kind: SourceKind) -> SourceFrontier:
        """As far as the upstream may forget, of what is durable up to ``frontier``."""
        limit = None if self.log is None else SourceFrontier.at(kind, {kind.least: self.log})
        return frontier if limit is None or frontier.less_equal(limit) else limit


def stall(records: Records, source: Source, export: str, error: PersistError, kind: object) -> Source:
    """Have an export stand aside; the source as it is recorded then, by this process or another.

    Nothing is recorded where others know more than this ``source`` says, nor of the last one that runs: it keeps all;
    unless it is taken over by itself. ``kind``: the source's type.
    """

    def place(now: Source) -> Source:
        if now.turn != source.turn or export in now.troubles:
            return now
        after = stopped(now, export, Trouble.of(error), error, kind)
        return now if running(now) == [export] and troubles(after)[export].state == STALLED else after

    return amend(records, source, place)


def stopped(source: Source, export: str, told: Trouble, error: PersistError, kind: object) -> Source:
    """The source with an export that does not go on for ``told``; or that is going to be snapshotted again by itself.

    The latter where its type has it so, after a change of the upstream's that another snapshot is the answer to.
    """
    if not isinstance(error, TableAltered) or not isinstance(kind, TakesOver):
        return with_trouble(source, export, told)
    taken = kind.taken_over(source.definition, export, system().now_ms())
    if taken is None:
        return with_trouble(source, export, told)
    # To pipelines it is one that was abandoned, from then on.
    again = replace(told, state=SNAPSHOTTING, hint=taken.hint, beat_ms=max(0, taken.at_ms - SILENT_MS - 1))
    return with_trouble(replace(source, definition=taken.definition, turn=source.turn + 1), export, again)


def check_same_life(source: Source, now: Source) -> None:
    """Raise SourceNotFound where another life of a source is recorded: it has other bindings, maybe another type."""
    if now.generation != source.generation:
        raise SourceNotFound(
            "this source was dropped, and another one has its name now",
            hint=f"persist source run {now.name} ingests that one",
            source=now.name,
        )


def amend(records: Records, source: Source, place: Callable[[Source], Source]) -> Source:
    """Change the record of this life of a source. Raises SourceNotFound, also where another life of it is."""

    def placed(before: Mapping[str, object] | None) -> dict[str, object]:
        now = None if before is None else source_of(before)
        if before is None or now is None or now.generation != source.generation:
            raise SourceNotFound("this source was dropped", hint="list what there is", source=source.name)
        after = place(now)
        return dict(before) if after is now else after.to_record()

    return Source(**(records.change("source", source.name, placed) or {}))


def with_trouble(source: Source, export: str, trouble: Trouble | None) -> Source:
    """The source with this about an export; None: it runs."""
    others: Mapping[str, Fields] = {name: each for name, each in source.troubles.items() if name != export}
    if trouble is None:
        return replace(source, troubles=others)
    told = {name: each for name, each in asdict(trouble).items() if name != "progress" or each is not None}
    return replace(source, troubles={**others, export: told})
