"""Creating a source: its name is claimed, then upstream, then its shards with the snapshot in them, the record last.

What is too large to be read at once follows the record, in pieces, as an export that joins (``completing``).
Until the record is there the source does not exist. What is destroyed is only ever what carries the generation of the
life, or of the attempt, that is ended: so a late one destroys nothing of another, and after an uncertain answer
nothing is destroyed at all.
Source: sources.md section 1, consistent snapshot; catalog-semantics.md section 4.2.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

import persist
from persist import Determinate, InvalidArgument, PersistError, UsageError
from persist.runtime import system
from persist.sources import Reclocker, RemapTrace, SourceFrontier
from persist_ingest.location import Location, client
from persist_ingest.pipeline.anew.attempt import Pace
from persist_ingest.pipeline.anew.progress import AnewProgress
from persist_ingest.pipeline.claims import (
    Claim,
    announce,
    beating,
    give_up,
    holds,
    publish,
    release,
    renew,
    seize,
    set_up,
    spent,
    take,
)
from persist_ingest.pipeline.completing import completed, is_incomplete
from persist_ingest.pipeline.newest.kept import forget
from persist_ingest.pipeline.records import DATA_SINCE, Records, Source, SourceExists, SourceNotFound
from persist_ingest.pipeline.running import SPARK_BYTES_MIN, Runner
from persist_ingest.pipeline.state import Contents, contents_of
from persist_ingest.pipeline.timelines import AskedTimelines
from persist_ingest.pipeline.troubles import SNAPSHOTTING, Trouble, troubles, with_trouble
from persist_ingest.pipeline.work import ExportPlan, Work, prepared
from persist_ingest.sources.port import Announces, Beginning, BringsTimes, DropsWithin, SourceType, UpstreamNotOurs
from persist_ingest.sources.registry import source_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME_CHARS_MAX = 100
INTERVAL_MS: Final = 1_000
"""What times of bindings are rounded down to multiples of, unless something else is asked for."""


def create(
    location: Location,
    name: str,
    type_name: str,
    options: Mapping[str, str],
    *,
    interval_ms: int = INTERVAL_MS,
    minter: str = "",
    session: "Callable[[], SparkSession] | None" = None,
    spark_bytes_min: int = SPARK_BYTES_MIN,
    report: Callable[[int], None] = lambda rows: None,
    taken_over: Callable[[Claim], None] = lambda claim: None,
    pace: Pace | None = None,
) -> Source:
    """Set a source up and make what it begins with durable.

    On a definite failure nothing of it exists afterwards. After Indeterminate it may exist: nothing was taken back, and
    what there is can be listed, and created or dropped again. Broken off while large exports are read piece by piece,
    at ``pace``, it exists: its pipelines go on with those, and so does this call with the same options, which leaves
    those stalled that cannot be read.
    ``interval_ms``: times of its bindings are rounded down
    to multiples of it. ``taken_over`` gets whose abandoned attempt was cleared away first.

    Raises SourceExists, SourceCreating, ClaimLost, InvalidArgument (options), SourceFailure, LocationError.
    """
    check_name(name)
    given = options
    asked, options = AskedTimelines.of(options)
    kind = source_type(type_name)
    here = location.resolved()
    the_client = client(here)
    records = Records(the_client)
    digest = asked_for(given, interval_ms)
    try:
        claim = _claimed(the_client, records, name, type_name, taken_over)
    except SourceExists:
        there = records.sources().get(name)
        if there is None or records.asked(there) != digest or not is_incomplete(the_client, there):
            raise
        return completed(here, there, minter=minter, pace=pace, report=report)
    doubt: BaseException | None = None
    try:

        def announced(made: Mapping[str, Any]) -> None:
            nonlocal claim
            claim = announce(records, claim, made)

        with beating(records, claim), _created(kind, options, name, announced) as beginning:
            source = _source(the_client, claim, beginning, interval_ms, asked)
            _check_fresh(the_client, source)
            # Before any shard: with this claim all is found that there may be.
            claim = set_up(records, claim, source)
            records.ask(name, claim.generation, digest)
            beginning.settle()
            _begin(here, source, beginning, minter, Runner(session, spark_bytes_min), report)
            try:
                publish(records, claim)
            except (UsageError, Determinate):
                raise
            except BaseException as error:
                # It may exist: what it needs upstream has to stay.
                doubt = error
    except BaseException:
        _taken_back(the_client, records, claim)
        raise
    if doubt is not None:
        raise doubt
    if not beginning.pieces:
        return source
    try:
        return completed(here, source, minter=minter, pace=pace, report=report)
    except SourceNotFound:
        raise
    except UsageError:
        with contextlib.suppress(PersistError):
            _dropped(here, records, source)
        raise


def drop(
    location: Location,
    name: str,
    *,
    environment: str = "",
    force: bool = False,
    left: Callable[[PersistError], None] = lambda error: None,
) -> Source:
    """End a source: what it set up upstream, its shards, its record. Its ids are dead for ever.

    The record goes last, so that no source of this name is created before all of this one is gone; broken off, it is
    to be repeated. However late it comes, it ends the life of the source that it found, and no other.
    ``force``: also when the upstream cannot be asked, for good or for now: what it keeps for the source stays there,
    and ``left`` gets why. ``environment``: what gave its shards up, see ``Client.finalize``. Raises SourceNotFound,
    InvalidArgument (a shard is an item of an environment: nothing happened), UpstreamNotOurs, and, unless forced, what
    the upstream raises.
    """
    records = Records(client(location.resolved()))
    return _dropped(location, records, records.source(name), environment=environment, force=force, left=left)


def _dropped(
    location: Location,
    records: Records,
    source: Source,
    *,
    environment: str = "",
    force: bool = False,
    left: Callable[[PersistError], None] = lambda error: None,
) -> Source:
    the_client = client(location.resolved())
    _finalize(the_client, source, environment=environment, dry_run=True)
    with _forced(force, left):
        _drop_upstream(the_client, source)
    _finalize(the_client, source, environment=environment)
    for shard in source.exports.values():
        forget(contents_of(location.resolved(), source, shard))
    records.forget_status(source)
    records.remove(source, system().now_ms())
    return source


def abandon(
    location: Location, name: str, *, force: bool = False, left: Callable[[PersistError], None] = lambda error: None
) -> Claim:
    """End an attempt to create a source, with all that it made; one that is at work fails with ClaimLost.

    ``force`` and ``left`` as for ``drop``. Raises SourceNotFound, ClaimLost, LocationError.
    """
    the_client = client(location.resolved())
    records = Records(the_client)
    claim = seize(records, name)
    try:
        with _forced(force, left):
            _clear_upstream(claim)
        if claim.source is not None:
            _finalize(the_client, claim.source)
        release(records, claim, spent(claim))
    except BaseException:
        with contextlib.suppress(PersistError):
            give_up(records, claim)
        raise
    return claim


def asked_for(options: Mapping[str, str], interval_ms: int) -> str:
    """A digest of what a source is asked for with. Letter case of options' names does not count."""
    named = sorted((name.lower(), text.strip()) for name, text in options.items())
    return hashlib.sha256(json.dumps([named, interval_ms]).encode()).hexdigest()


def check_name(name: str) -> None:
    """Raise InvalidArgument unless this can name a source: its shards are called after it."""
    plain = name.replace("_", "").replace("-", "")
    if not plain.isalnum() or not plain.isascii() or not 0 < len(name) <= NAME_CHARS_MAX:
        raise InvalidArgument(
            "not a name for a source", hint="letters, digits, _ and -, at most 100 of them", got=name[:NAME_CHARS_MAX]
        )


def _claimed(
    the_client: "persist.Client", records: Records, name: str, type_name: str, taken_over: Callable[[Claim], None]
) -> Claim:
    """The name is this attempt's, and nothing is left of an earlier one."""
    claim, earlier = take(records, name, type_name)
    if earlier is None:
        return claim
    try:
        with beating(records, claim):
            _clear_upstream(claim)
            if claim.source is not None:
                _finalize(the_client, claim.source)
        claim = renew(records, claim)
    except BaseException:
        with contextlib.suppress(PersistError):
            give_up(records, claim)
        raise
    taken_over(earlier)
    return claim


def _source(
    the_client: "persist.Client", claim: Claim, beginning: Beginning, interval_ms: int, asked: AskedTimelines
) -> Source:
    reader, name, generation = beginning.reader, claim.name, claim.generation

    def shard(export: str, separator: str) -> str:
        """The first source of a name has shards that are read as tables ``name.export`` and ``name_progress``."""
        table = f"{name}{separator}{export}"
        return str(the_client.named(table if generation == 1 else f"{table}@{generation}", create=True))

    # Ids of shards are dead for ever once they were used: so they name a life of a source.
    remap = shard("progress", "_")
    decided = asked.decided(reader, id=remap, name=name)
    source = Source(
        name=name,
        type=claim.type,
        kind=reader.kind.value,
        incarnation=reader.incarnation,
        remap=remap,
        timeline=decided.timeline,
        claims_epoch=decided.claims_epoch,
        brings_times=isinstance(reader, BringsTimes),
        exports={export: shard(export, ".") for export in reader.exports()},
        definition=dict(beginning.definition),
        generation=generation,
        interval_ms=interval_ms,
        created_ms=system().now_ms(),
    )
    for export in beginning.pieces:
        source = with_trouble(source, export, Trouble(state=SNAPSHOTTING, since_ms=source.created_ms))
    return source


def _check_fresh(the_client: "persist.Client", source: Source) -> None:
    """Shards that are there already are not this attempt's, whatever they hold. Raises InvalidArgument."""
    for name, shard in {**source.exports, "progress": source.remap}.items():
        with contextlib.suppress(persist.ShardNotFound):
            the_client.recent_upper(shard)
            raise InvalidArgument(
                "there is a shard of this name already", hint="choose another name", shard=shard, export=name
            )


def _begin(
    location: Location,
    source: Source,
    beginning: Beginning,
    minter_endpoints: str,
    runner: Runner,
    report: Callable[[int], None],
) -> None:
    """Shards, and in them what the source begins with, but for what is read in pieces.

    One that brings its times begins with its first step.
    """
    the_client = client(location)
    schemas = beginning.reader.exports()
    writers = {name: the_client.open_writer(shard, schema=schemas[name]) for name, shard in source.shards.items()}
    for shard in source.shards.values():
        the_client.open_since(DATA_SINCE, shard, purpose="history of a source")
    if source.brings_times:
        return
    minter = the_client.minter(minter_endpoints)
    try:
        minter.mint(source.remap_source, beginning.bound, high=beginning.bound)
        trace: RemapTrace = minter.bindings(source.remap_source)
    finally:
        minter.close()
    whole = {name: writer for name, writer in writers.items() if name not in beginning.pieces}
    exports = {
        name: ExportPlan(
            spec=writer.batch_spec(),
            lower=0,
            upper=trace.upper.time or 0,
            contents=Contents(location=location, shard=source.exports[name]),
        )
        for name, writer in whole.items()
    }
    works = [Work(task=task, reclocker=Reclocker.of(trace), exports=exports) for task in beginning.snapshot]
    done = runner.run(works, report) if works else []
    # Also without a snapshot: what lies before the first binding is none of this source's.
    for name, writer in whole.items():
        outcome = writer.compare_and_append_batches(prepared(done, name), [0], trace.upper)
        if isinstance(outcome, persist.UpperMismatch):
            raise InvalidArgument(
                "another program wrote to a shard of this source while it was created",
                hint="create it again",
                export=name,
                upper=outcome.upper,
            )


def _taken_back(the_client: "persist.Client", records: Records, claim: Claim) -> None:
    """After a failure that is certain: what this attempt made goes, then its claim. What stays, the claim names."""
    try:
        if claim.source is not None:
            # Upstream that was done at the way out, as far as it answered.
            _finalize(the_client, claim.source)
        if holds(records, claim):
            _clear_upstream(claim)
        release(records, claim, spent(claim))
    except PersistError:
        with contextlib.suppress(PersistError):
            give_up(records, claim)


def _finalize(the_client: "persist.Client", source: Source, *, environment: str = "", dry_run: bool = False) -> None:
    """Exports first: while the bindings can be read, what the source did upstream is known."""
    known = [AnewProgress.of(each) for each in troubles(source).values()]
    staged = [each.staging for each in known if each is not None]
    for shard in (*staged, *source.exports.values(), source.remap):
        with contextlib.suppress(persist.ShardNotFound):
            the_client.finalize(shard, force=True, dry_run=dry_run, environment=environment)


@contextlib.contextmanager
def _forced(force: bool, left: Callable[[PersistError], None]) -> Iterator[None]:
    try:
        yield
    except PersistError as error:
        if not force:
            raise
        left(error)


def _drop_upstream(the_client: "persist.Client", source: Source) -> None:
    """What this life of the source has upstream, and nothing that another set up since under the same names."""
    kind = source_type(source.type)
    bound = _bound(the_client, source)
    if bound is None:
        return
    if not isinstance(kind, DropsWithin):
        kind.drop(source.definition)
        return
    while True:
        try:
            kind.drop_within(source.definition, bound)
        except UpstreamNotOurs:
            # Or ours, and its pipelines got on meanwhile.
            before, bound = bound, _bound(the_client, source)
            if bound is None or bound == before:
                raise
        else:
            return


def _bound(the_client: "persist.Client", source: Source) -> SourceFrontier | None:
    """How far the source is bound, beyond which it confirmed nothing; None: all of it went before the shard did."""
    minter = the_client.minter()
    try:
        if the_client.recent_upper(source.remap).is_empty:
            return None
        trace: RemapTrace = minter.bindings(source.remap_source)
        return trace.frontier
    except (persist.ShardNotFound, persist.ShardClosed):
        return None
    finally:
        minter.close()


def _created(
    kind: SourceType, options: Mapping[str, str], name: str, announced: Callable[[Mapping[str, Any]], None]
) -> AbstractContextManager[Beginning]:
    if isinstance(kind, Announces):
        return kind.create_announced(options, source=name, announce=announced)
    return kind.create(options, source=name)


def _clear_upstream(claim: Claim) -> None:
    """What an attempt that is over set up upstream, however far it got."""
    if claim.source is not None:
        _drop_unread(claim.source)
    if claim.announced is not None:
        kind = source_type(claim.announced["type"])
        if isinstance(kind, Announces):
            kind.clear(claim.announced["made"])


def _drop_unread(source: Source) -> None:
    """What an attempt set up upstream, of which nothing was read on."""
    kind = source_type(source.type)
    if isinstance(kind, DropsWithin):
        with contextlib.suppress(UpstreamNotOurs):
            kind.drop_within(source.definition, None)
    else:
        kind.drop(source.definition)
