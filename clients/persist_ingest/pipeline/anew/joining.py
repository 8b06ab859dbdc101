"""Exports that join a source while its others go on, and exports that leave it.

The record names an export with what it begins with before anything is read of it, as one that is being snapshotted: so
pipelines release nothing that it needs, and the next to find it goes on. One that leaves is out of the record first.
Source: catalog-semantics.md section 4.2.
"""

import contextlib
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import persist
from persist import Determinate, InvalidArgument, PersistError, ShardId, ShardNotFound
from persist.runtime import system
from persist_ingest.location import Location, client
from persist_ingest.pipeline.altering import altered
from persist_ingest.pipeline.anew.again import check_export, new_attempt, read_anew
from persist_ingest.pipeline.anew.attempt import Pace, discard
from persist_ingest.pipeline.anew.progress import AnewProgress
from persist_ingest.pipeline.lives.admitting import check_admitted, is_read
from persist_ingest.pipeline.records import DATA_SINCE, Records, Source
from persist_ingest.pipeline.troubles import SNAPSHOTTING, Trouble, amend, troubles, with_trouble
from persist_ingest.sources.lives import ServerRun
from persist_ingest.sources.port import Joined, Joins
from persist_ingest.sources.registry import source_type

_log = logging.getLogger(__name__)

AS_THE_SOURCE: Final[Mapping[str, str]] = {}


def add_export(
    location: Location,
    name: str,
    export: str,
    *,
    minter: str = "",
    pace: Pace | None = None,
    report: Callable[[int], None] = lambda rows: None,
    options: Mapping[str, str] = AS_THE_SOURCE,
) -> Source:
    """Take something more of the upstream in, while the source runs or not; once it returns, all of it is there.

    ``options``: of those that may be given to a source later, such as columns of it that are left out (``alter``).
    Broken off, pipelines go on with it, or ``resnapshot``. Raises SourceNotFound, InvalidArgument (it is one already,
    there is no such thing, or this type of source cannot), SourceFailure (what to correct upstream), LocationError.
    """
    here = location.resolved()
    records = Records(client(here))
    source = records.source(name)
    attempt = new_attempt()
    added = _add(client(here), records, source, _joins(source), export, attempt=attempt, options=options)
    done = read_anew(here, name, added, minter=minter, pace=pace, report=report, attempt=attempt)
    assert done is not None
    return done


def drop_export(location: Location, name: str, export: str, *, environment: str = "") -> Source:
    """Have a source go on without an export, and end that: its shard, with all history. The source as it is then.

    Broken off, it is to be repeated as long as the source has the export. ``environment``: what gave its shard up, see
    ``Client.finalize``. Raises SourceNotFound, InvalidArgument (there is none, or no other, or it is an item of an
    environment), LocationError.
    """
    the_client = client(location.resolved())
    records = Records(the_client)
    source = records.source(name)
    kind = _joins(source)
    check_export(source, export)
    if len(source.exports) == 1:
        raise InvalidArgument("a source has one export at least", hint="drop the source", source=name, export=export)

    def place(now: Source) -> Source:
        if export not in now.exports or now.exports[export] != source.exports[export]:
            return now
        exports = {each: shard for each, shard in now.exports.items() if each != export}
        without = replace(now, exports=exports, definition=kind.parted(now.definition, export), turn=now.turn + 1)
        return with_trouble(without, export, None)

    with contextlib.suppress(ShardNotFound):
        the_client.finalize(source.exports[export], force=True, dry_run=True, environment=environment)
    after = amend(records, source, place)
    known = AnewProgress.of(troubles(source).get(export))
    if known is not None:
        discard(location.resolved(), known)
    with contextlib.suppress(ShardNotFound):
        the_client.finalize(source.exports[export], force=True, environment=environment)
    kind.part(source.definition, export)
    return after


def join_new(location: Location, name: str) -> list[str]:
    """Have a source that is of everything upstream take in what came there since; what that is, by name.

    What cannot be taken in is left out, and looked at again at the next call.
    """
    the_client = client(location.resolved())
    records = Records(the_client)
    source = records.source(name)
    kind = source_type(source.type)
    if not isinstance(kind, Joins):
        return []
    found = []
    for each in kind.joinable(source.definition):
        try:
            _add(the_client, records, source, kind, each)
            found.append(each)
        except PersistError as error:
            _log.warning("source %s cannot take %s in: %s", name, each, error)
    return found


def _joins(source: Source) -> Joins:
    kind = source_type(source.type)
    if not isinstance(kind, Joins):
        raise InvalidArgument("this type of source has what it was created with", type=source.type)
    return kind


def _add(
    the_client: "persist.Client",
    records: Records,
    source: Source,
    kind: Joins,
    name: str,
    *,
    attempt: str = "",
    options: Mapping[str, str] = AS_THE_SOURCE,
) -> str:
    """Name an export in the record, with an empty shard; what it is called.

    ``attempt``: goes on with it at once; else the next to find it does, and it may be one that cannot be read yet.
    ``options``: what the source has from then on.
    """
    joined = kind.joined(altered(source, source.definition, options), name, lenient=not attempt)
    _check_run(records, source, joined.run, lenient=not attempt)
    shard = _fresh(the_client, source, joined)

    def place(now: Source) -> Source:
        if joined.export in now.exports:
            return now
        grown = replace(
            now,
            exports={**now.exports, joined.export: shard},
            definition=joined.renewed(altered(source, now.definition, options)),
            turn=now.turn + 1,
        )
        now_ms = system().now_ms()
        began = Trouble(state=SNAPSHOTTING, since_ms=now_ms, attempt=attempt, beat_ms=now_ms if attempt else 0)
        return with_trouble(grown, joined.export, began)

    after = amend(records, source, place)
    if after.exports[joined.export] != shard:
        # Another process was faster.
        the_client.finalize(shard, force=True)
    return joined.export


def _check_run(records: Records, source: Source, run: ServerRun | None, *, lenient: bool) -> None:
    """Raise HistoryLost or Determinate: what a copy of the server's files has is none of the source's.

    ``lenient``: it is taken in by itself, so it waits until another one admitted that server.
    """
    if run is not None:
        check_admitted(records, source, run)
    if lenient and not is_read(records, source, run):
        raise Determinate("another server answers than the one that is read", hint="it is looked at again")


def _fresh(the_client: "persist.Client", source: Source, joined: Joined) -> str:
    """A shard that was never used, called after the export: ids are dead for ever once they were used."""
    for number in itertools.count(source.generation):
        table = f"{source.name}.{joined.export}"
        name = table if number == 1 else f"{table}@{number}"
        try:
            the_client.named(name)
        except ShardNotFound:
            shard = ShardId.for_name(name)
            the_client.open_writer(shard, schema=joined.schema)
            the_client.open_since(DATA_SINCE, shard, purpose="history of a source")
            return str(shard)
    raise AssertionError
