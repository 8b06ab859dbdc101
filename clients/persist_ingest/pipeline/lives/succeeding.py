"""How a source goes on with a later life of its upstream: a standby that was promoted, a recovery to an earlier point.

First its bindings go on, in one append, which says how much was bound and ends all binding for the earlier life; then
its record says so. A process that dies between leaves bindings that the next one finds, and is right about.
Source: catalog-semantics.md section 4.2; reliability.md I18; docs/adr/0030-failover-by-succession.md.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa

import persist
from persist import Determinate, PersistError, UpperMismatch
from persist.sources import REMAP_SCHEMA, SourceKind, UpstreamReplaced, incarnation_of, succession
from persist_ingest.pipeline.lives.admitting import admitted, waiting
from persist_ingest.pipeline.records import Records, Source
from persist_ingest.pipeline.troubles import Trouble, amend, running, stopped
from persist_ingest.sources.lives import Follows, ServerRun, Successor
from persist_ingest.sources.port import TableAltered

_log = logging.getLogger(__name__)

TRIES: Final = 100
"""How often another ingester may bind something just then."""


def succeed(
    client: "persist.Client",
    records: Records,
    source: Source,
    kind: object,
    error: PersistError,
    admit: Callable[[ServerRun], None],
    *,
    decided: bool = False,
) -> Source:
    """The source as it is recorded, on the life of its upstream that there is now, after ``error``: it is another one.

    ``admit`` raises for a run that is not to be read; ``decided``: a person has an export read anew from it.
    Raises ``error`` where there is none that it could go on with, UpstreamReplaced, UpstreamLost, LocationError.
    """
    now = records.source(source.name)
    if now.generation != source.generation:
        raise error
    if (now.turn, now.incarnation) != (source.turn, source.incarnation):
        # Another one was faster, or knows more.
        return now
    if not isinstance(kind, Follows):
        raise error
    there = _incarnation(client, now)
    try:
        successor = kind.successor(now.definition, there)
        if successor is None:
            raise error
        if successor.run is not None:
            # SUBTLE: a copy that had less, and logged more since, says that it has all of the history.
            admit(successor.run)
        incarnation = successor.incarnation(now.definition)
        _bind(client, now, there, incarnation, successor)
    except UpstreamReplaced:
        _check_still(client, records, now, there)
        raise
    _log.warning("source %s goes on with a later life of its upstream: %s", source.name, incarnation)
    if successor.run is not None:
        # None binds for an earlier life any more.
        admitted(records, now, successor.run, anew=decided, decided=decided)
    return _record(records, now, successor, incarnation, kind)


def _check_still(client: "persist.Client", records: Records, source: Source, there: str) -> None:
    """Raise Determinate where another ingester went on since this one looked: what it knows is of an earlier life."""
    now = records.source(source.name)
    if (now.turn, now.incarnation, _incarnation(client, now)) != (source.turn, source.incarnation, there):
        raise Determinate("another ingester goes on with a later life of the upstream", hint="it is tried again")


def _incarnation(client: "persist.Client", source: Source) -> str:
    """That which the bindings are of now."""
    return incarnation_of(_bindings(client, source)[1])


def _bindings(client: "persist.Client", source: Source) -> tuple[int, pa.Table]:
    """The upper of the bindings, and what they are just before it."""
    remap = source.remap_source.remap
    with client.open_reader(remap, purpose="bindings go on") as reader:
        # After the reader, which keeps it readable.
        upper = client.recent_upper(remap).time
        if not upper:
            raise Determinate("nothing was bound yet, or nothing more will be", hint="see the source's status")
        return upper, reader.snapshot(upper - 1).to_arrow()


def _bind(client: "persist.Client", source: Source, before: str, after: str, successor: Successor) -> None:
    """Have the bindings go on. Raises UpstreamReplaced and UpstreamLost, and then nothing is changed."""
    writer = client.open_writer(source.remap_source.remap, schema=REMAP_SCHEMA)
    for _ in range(TRIES):
        upper, found = _bindings(client, source)
        rows = succession(SourceKind(source.kind), before, after, found, upper, successor.most)
        if rows is not None:
            successor.check()
        if rows is None or not isinstance(writer.compare_and_append(rows, [upper], [upper + 1]), UpperMismatch):
            return
    raise Determinate("another ingester binds all the time", hint="it is tried again")


def _record(records: Records, source: Source, successor: Successor, incarnation: str, kind: object) -> Source:
    """Tables that may have been looked at in a history that is lost have to be read anew."""
    found = TableAltered(
        "another server took over, just after the table was altered on the one before: that may be lost",
        hint="snapshot it again (persist source resnapshot)",
    )

    def place(now: Source) -> Source:
        if (now.turn, now.incarnation) != (source.turn, source.incarnation):
            return now
        definition: Mapping[str, object] = successor.renewed(now.definition)
        after = replace(now, definition=definition, incarnation=incarnation, turn=now.turn + 1)
        # What stands aside for a server that had less would go on by itself, too.
        for export in {*running(now), *waiting(records, now)}.intersection(successor.doubtful(now.definition)):
            after = stopped(after, export, Trouble.of(found), found, kind)
        return after

    return amend(records, source, place)
