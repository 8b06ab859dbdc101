"""Which runs of a server the bindings of a source may come from, once one of them had less than was bound.

Files that were put back show that only until as much was logged again. A process that was led to a copy of the files
sees the same, while the server that the others read has everything. So what is kept in mind is how much log that run
had. Nothing moves its slot from then on, by which it is known however much it logs. Another one is not it: the run that
was read last, and any whose slot is further.
Source: catalog-semantics.md section 4.2, restart checks; docs/adr/0031-lost-histories-by-runs.md.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final, Self

from persist import Determinate
from persist.runtime import system
from persist.sources import STALLED, Lsn, Probe, SourceFrontier, UpstreamRegressed, precedes
from persist.typed import Fields
from persist_ingest.pipeline.records import SERVERS, VERSION, Records, Source
from persist_ingest.pipeline.troubles import amend, running, troubles, with_trouble
from persist_ingest.sources.lives import HistoryLost, OnServer, ServerRun
from persist_ingest.sources.port import SourceFailure, SourceReader

if TYPE_CHECKING:
    import persist

ELSEWHERE_SECONDS: Final = 2.0
"""For how long others may bind nothing, beside two intervals of the source; at most five times as long."""
_PAUSE_SECONDS: Final = 0.1
_ASIDE_MAX: Final = 64
"""Of as many that see at once what has exports stand aside, each may be the first to have them do so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """What is recorded. ``run``: the one that was read last; empty: none is known.

    ``less``: how much log one had, at most, of those that had less than was bound; None: none did. ``aside``: since
    when exports that ran stand aside for that, or are about to, as each process that saw it has it; in ``life`` of the
    upstream. ``left``: runs that a person decided against, while they were read.
    """

    generation: int
    run: str = ""
    less: int | None = None
    aside: Sequence[int] = field(default_factory=list)
    life: str = ""
    left: Sequence[str] = field(default_factory=list)
    version: int = VERSION

    @classmethod
    def of(cls, record: Mapping[str, object] | None, source: Source) -> Self:
        """As recorded of this life of a source."""
        if record is None or record["generation"] != source.generation:
            return cls(generation=source.generation)
        known: Fields = {each.name: record[each.name] for each in fields(cls) if each.name in record}
        return cls(**known)

    def admits(self, run: ServerRun) -> bool:
        """Whether it is certain that this is none that had less."""
        if run.name in self.left:
            return False
        return self.less is None or run.name == self.run or run.read > self.less

    def having_less(self, run: ServerRun) -> Self:
        """The same once that one had less."""
        name = "" if run.name == self.run else self.run
        return replace(self, run=name, less=max(self.less or 0, run.end))


class Admission:
    """What one process knows: the run that it reads is one that it may bind from."""

    def __init__(self, client: "persist.Client", records: Records) -> None:
        self._client = client
        self._records = records
        self._run = ""

    def admit(self, source: Source, reader: object, bound: int, *, anew: bool = False, decided: bool = False) -> None:
        """Have the run that was asked last recorded as the one that is read, before anything is bound of it.

        ``bound``: how much log was bound before it was asked. ``anew``: an export is read anew from it; ``decided``: as
        a person says. Where none runs any more that settles which one is right. Raises UpstreamRegressed, HistoryLost
        (it may be one that had less than was bound, whatever it has now), Determinate (others bind from another one).
        """
        if not isinstance(reader, OnServer):
            return
        run = reader.run()
        is_settled = decided and anew and not running(source)
        if run.end < bound and not is_settled:
            raise UpstreamRegressed("the upstream has less than was bound", high=Lsn(run.end), bound=Lsn(bound))
        if run.name == self._run:
            return
        if not is_settled:
            check_admitted(self._records, source, run)
        # Files that were copied may run twice, and both have as much: then it is those who read on that are right.
        if not is_settled and binds_elsewhere(self._client, self._records, source, run):
            raise Determinate(
                "other ingesters bind from another server: this is a copy of its files, or they are led to one",
                hint="have the connections of all lead to one server (dsn, PGHOST, DNS); it is tried again",
            )
        admitted(self._records, source, run, anew=anew, decided=decided)
        self._run = run.name

    def probed(self, source: Source, reader: SourceReader, bound: int) -> Probe:
        """What a reader says; what it says of tables counts once its server is the right one. Raises as admit."""
        try:
            return reader.probe()
        except SourceFailure:
            self.admit(source, reader, bound)
            raise

    def look(self, source: Source) -> None:
        """Where others read another run by now, this one is to be admitted again before anything is bound of it."""
        if self._run and Servers.of(self._records.servers(source) or None, source).run != self._run:
            self._run = ""


def log_bound(reader: object, frontier: SourceFrontier) -> int:
    """How much log of a server is bound by then; 0 of what is none, whose partitions may have other names."""
    return (frontier.bound(0) or 0) if isinstance(reader, OnServer) else 0


def binds_elsewhere(client: "persist.Client", records: Records, source: Source, run: ServerRun) -> bool:
    """Whether others bind meanwhile, and not from this run."""
    seconds = min(ELSEWHERE_SECONDS + 2 * source.interval_ms / 1000, 5 * ELSEWHERE_SECONDS)
    before, give_up = client.recent_upper(source.remap), system().monotonic() + seconds
    while Servers.of(records.servers(source) or None, source).run not in ("", run.name):
        if client.recent_upper(source.remap) != before:
            # SUBTLE: who binds from this run has recorded it before.
            return Servers.of(records.servers(source) or None, source).run != run.name
        if system().monotonic() >= give_up:
            break
        threading.Event().wait(_PAUSE_SECONDS)
    return False


def check_admitted(records: Records, source: Source, run: ServerRun) -> None:
    """Raise HistoryLost: it may be one that had less than was bound."""
    _check(Servers.of(records.servers(source) or None, source), run)


def _check(known: Servers, run: ServerRun) -> None:
    if not known.admits(run):
        raise HistoryLost(
            "this server, or a copy of its files, had less than was bound: what it logged since is another history",
            hint="have the connection lead to the server that the source was read from; if it is this one: "
            "persist source resnapshot",
            had=Lsn(known.less or 0),
            has=Lsn(run.end),
            slot_at=Lsn(run.read),
        )


def admitted(records: Records, source: Source, run: ServerRun, *, anew: bool = False, decided: bool = False) -> None:
    """See Admission. By what is recorded alone, whatever this process took it for."""
    is_first = anew and not running(records.source(source.name))

    def place(before: Mapping[str, object] | None) -> dict[str, object]:
        known = Servers.of(before, source)
        if not known.admits(run):
            if not (is_first and decided):
                _check(known, run)
            # It is the server now, and so the one that was read before is none any more.
            left = [each for each in dict.fromkeys([*known.left, known.run]) if each not in ("", run.name)]
            known = Servers(generation=source.generation, left=left[-_ASIDE_MAX:])
        # What is read anew has the slot moved: none goes on by itself where it was.
        return asdict(replace(known, run=run.name, aside=[] if is_first else known.aside))

    records.change(SERVERS, source.name, place)


def is_read(records: Records, source: Source, run: ServerRun | None) -> bool:
    """Whether this run is the one that is recorded as read, by this process or another; None: none is known."""
    return run is None or Servers.of(records.servers(source) or None, source).run == run.name


def declared(records: Records, source: Source, run: ServerRun) -> bool:
    """Record that this run had less than was bound; whether it is one that was bound from meanwhile."""
    was_read = False

    def place(before: Mapping[str, object] | None) -> dict[str, object]:
        nonlocal was_read
        known = Servers.of(before, source)
        was_read = known.run == run.name
        return asdict(known.having_less(run))

    records.change(SERVERS, source.name, place)
    return was_read


def set_aside(records: Records, source: Source, since_ms: int) -> None:
    """Record that exports are about to stand aside for that alone: who dies before they do has changed nothing."""
    if not running(records.source(source.name)):
        return

    def place(before: Mapping[str, object] | None) -> dict[str, object]:
        known = Servers.of(before, source)
        earlier = known.aside if known.life == source.incarnation else ()
        return asdict(replace(known, aside=[*earlier, since_ms][-_ASIDE_MAX:], life=source.incarnation))

    records.change(SERVERS, source.name, place)


def waiting(records: Records, source: Source) -> list[str]:
    """The exports that stand aside for that alone still.

    Nothing of the source was read since, under whatever options: none runs, and none is read anew. It may have gone on
    with a later life of its upstream meanwhile, which has all that was bound.
    """
    found = troubles(source)
    if running(source) or any(each.state != STALLED for each in found.values()):
        return []
    known = Servers.of(records.servers(source) or None, source)
    if known.life != source.incarnation and not precedes(known.life, source.incarnation):
        return []
    return [export for export, each in found.items() if each.since_ms in known.aside]


def taken_back(records: Records, source: Source, exports: list[str]) -> Source:
    """Have these go on: each was appended to by none meanwhile. Nothing is changed where others know more."""

    def place(now: Source) -> Source:
        after = now
        if waiting(records, now) == exports:
            for export in exports:
                after = with_trouble(after, export, None)
        return after

    return amend(records, source, place)
