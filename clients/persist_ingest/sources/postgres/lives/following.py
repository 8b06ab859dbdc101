"""Whether a source may go on with a server that has another timeline: it has all of the log that the source knows.

A server that is promoted, or recovered to a point in time, has the log of the timelines before its own, of each up to
where it was left: that is in its history file. What was bound up to there is the same there, byte by byte.
Source: sources.md section 1, promotion; PostgreSQL documentation, timelines; docs/adr/0030-failover-by-succession.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from persist.sources import Lsn, SourceFrontier, UpstreamLost, UpstreamReplaced
from persist_ingest.sources.lives import ServerRun
from persist_ingest.sources.postgres import catalog
from persist_ingest.sources.postgres.checks import check_life, check_slot
from persist_ingest.sources.postgres.definition import PostgresDefinition
from persist_ingest.sources.postgres.reader import KIND
from persist_ingest.sources.postgres.session import UpstreamConnection

_NEW_SOURCE: Final = "have dsn lead to the right one (persist source alter), or make a new source of this one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """Implements the Successor port. ``steps``: the timelines that the source goes on with, each with where it began.

    ``left``: where the last one before was left; ``same``: up to where the server has what the record is of. ``run``:
    of the server; None: it does not have the slot. ``lost``: what it lacks.
    """

    before: tuple[int, int]
    steps: tuple[tuple[int, int], ...]
    left: int
    same: int
    run: ServerRun | None
    lost: UpstreamLost | None = None

    @property
    def most(self) -> SourceFrontier:
        return SourceFrontier.at(KIND, {0: self.left})

    def check(self) -> None:
        if self.lost is not None:
            raise self.lost

    def renewed(self, definition: Mapping[str, object]) -> Mapping[str, object]:
        return self._next(definition).to_json()

    def incarnation(self, definition: Mapping[str, object]) -> str:
        return self._next(definition).incarnation

    def doubtful(self, definition: Mapping[str, object]) -> Sequence[str]:
        given = PostgresDefinition.from_json(definition)
        return [table.export for table in given.tables if not 0 < table.seen <= self.same]

    def _next(self, definition: Mapping[str, object]) -> PostgresDefinition:
        given = PostgresDefinition.from_json(definition)
        return given.following(*self.steps) if given.life == self.before else given


def promoted(definition: PostgresDefinition, bound: str) -> Promoted | None:
    """How to go on with the server that there is now; None: it is on the timeline that the source is on.

    ``bound``: the incarnation that the bindings are of, which may be a step further than the record. Raises
    UpstreamReplaced (the source cannot go on with it), LocationError.
    """
    done = _unrecorded(definition, bound)
    known = done[-1] if done else definition.life
    with UpstreamConnection(definition.dsn) as session:
        system, timeline, database = catalog.identity(session)
        details = {"system": system, "timeline": timeline, "database": database, "source_timeline": known[0]}
        if (system, database) != (definition.system, definition.database):
            raise UpstreamReplaced("this is another server, or another database of it", hint=_NEW_SOURCE, **details)
        if timeline < known[0]:
            raise UpstreamReplaced(
                "this server is on a timeline that the source has left for a later one: it was the primary before",
                hint="have dsn lead to the server that took over (persist source alter)",
                **details,
            )
        history = catalog.history(session, timeline)
        if timeline == known[0]:
            check_life(session, definition.following(*done))
            return _promoted(definition, done, history, _run(session, definition)) if done else None
        if _left(history, known) is None:
            raise UpstreamReplaced(
                "this server does not come from the timeline that the source is on: it has another history",
                hint=_NEW_SOURCE,
                **details,
                comes_from=", ".join(f"{each} up to {Lsn(end)}" for each, end in history),
            )
        if done:
            # How many steps there were without a record could not be found out.
            return _promoted(definition, done, history, _run(session, definition))
        lost = None
        try:
            check_slot(session, definition)
        except UpstreamLost as error:
            lost = error
        step = (timeline, history[-1][1])
        return replace(_promoted(definition, (step,), history, _run(session, definition)), lost=lost)


def _run(session: UpstreamConnection, definition: PostgresDefinition) -> ServerRun | None:
    found = catalog.slot(session, definition.slot)
    if found is None:
        return None
    return ServerRun(name=session.server_began, read=found.confirmed, end=catalog.positions(session).flushed)


def _promoted(
    definition: PostgresDefinition,
    steps: tuple[tuple[int, int], ...],
    history: Sequence[tuple[int, int]],
    run: ServerRun | None,
) -> Promoted:
    lives = (definition.life, *steps)
    left = [_left(history, life) or 0 for life in lives[:-1]]
    return Promoted(before=definition.life, steps=steps, left=left[-1], same=min(left), run=run)


def _left(history: Sequence[tuple[int, int]], known: tuple[int, int]) -> int | None:
    """Where the timeline was left by one that comes from it; None: that does not, or from one of the same number."""
    began = 0
    for timeline, end in history:
        if timeline == known[0]:
            return end if known[1] in (0, began) else None
        began = end
    return None


def _unrecorded(definition: PostgresDefinition, bound: str) -> tuple[tuple[int, int], ...]:
    """What the bindings went on with, and the record does not say: who did that died just then."""
    if bound == definition.incarnation:
        return ()
    timeline, at, began = bound.rpartition(" ")[2].partition("@")
    step = (int(timeline), catalog.position(began)) if at and timeline.isdecimal() and "/" in began else (0, 0)
    if definition.following(step).incarnation != bound:
        raise UpstreamReplaced(
            "the bindings are of another upstream", hint=_NEW_SOURCE, incarnation=bound, expected=definition.incarnation
        )
    return (step,)
