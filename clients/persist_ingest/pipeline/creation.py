"""Creating a source: upstream first, then its shards with the snapshot in them, the record last.

Until the record is there the source does not exist, so what a crash leaves behind is shards that nobody names and
whatever the upstream keeps for it, which creating the source again replaces.
Source: sources.md section 1, consistent snapshot; catalog-semantics.md section 4.2.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import persist
from persist import InvalidArgument, PersistError, ShardId
from persist.runtime import system
from persist.sources import Reclocker, RemapTrace
from persist_ingest.location import Location, client
from persist_ingest.pipeline.records import DATA_SINCE, Records, Source
from persist_ingest.pipeline.running import SPARK_BYTES_MIN, Runner
from persist_ingest.pipeline.state import Contents
from persist_ingest.pipeline.work import ExportPlan, Work, prepared
from persist_ingest.sources.port import Beginning
from persist_ingest.sources.registry import source_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME_CHARS_MAX = 100


def create(
    location: Location,
    name: str,
    type_name: str,
    options: Mapping[str, str],
    *,
    interval_ms: int = 1_000,
    minter: str = "",
    session: "Callable[[], SparkSession] | None" = None,
    spark_bytes_min: int = SPARK_BYTES_MIN,
    report: Callable[[int], None] = lambda rows: None,
) -> Source:
    """Set a source up and make what it begins with durable. On any failure nothing of it exists afterwards.

    ``interval_ms``: times of its bindings are rounded down to multiples of it. Raises SourceExists, InvalidArgument
    (options), SourceFailure, LocationError.
    """
    check_name(name)
    the_client = client(location.resolved())
    records = Records(the_client)
    generation = records.generation(name)
    kind = source_type(type_name)
    with kind.create(options, source=name) as beginning:
        reader = beginning.reader
        source = Source(
            name=name,
            type=type_name,
            kind=reader.kind.value,
            incarnation=reader.incarnation,
            remap=str(_shard(name, "progress", generation, "_")),
            exports={export: str(_shard(name, export, generation, ".")) for export in reader.exports()},
            definition=dict(beginning.definition),
            generation=generation,
            interval_ms=interval_ms,
            created_ms=system().now_ms(),
        )
        _check_fresh(the_client, source)
        try:
            _begin(location.resolved(), source, beginning, minter, Runner(session, spark_bytes_min), report)
            records.add(source)
        except BaseException:
            _undo(the_client, source)
            raise
    return source


def drop(
    location: Location, name: str, *, force: bool = False, left: Callable[[PersistError], None] = lambda error: None
) -> Source:
    """End a source: its record, what it set up upstream, its shards. Its ids are dead for ever.

    ``force``: also when the upstream cannot be asked, for good or for now: what it keeps for the source stays there,
    and ``left`` hears why. Raises SourceNotFound, and, unless forced, what the upstream raises.
    """
    the_client = client(location.resolved())
    records = Records(the_client)
    source = records.source(name)
    try:
        source_type(source.type).drop(source.definition)
    except PersistError as error:
        if not force:
            raise
        left(error)
    records.remove(name, system().now_ms())
    for ingester in records.status(name):
        records.tell(name, ingester, None)
    for shard in (source.remap, *source.exports.values()):
        with contextlib.suppress(persist.ShardNotFound):
            the_client.finalize(shard, force=True)
    return source


def check_name(name: str) -> None:
    """Raise InvalidArgument unless this can name a source: its shards are called after it."""
    plain = name.replace("_", "").replace("-", "")
    if not plain.isalnum() or not plain.isascii() or not 0 < len(name) <= NAME_CHARS_MAX:
        raise InvalidArgument(
            "not a name for a source", hint="letters, digits, _ and -, at most 100 of them", got=name[:NAME_CHARS_MAX]
        )


def _shard(name: str, export: str, generation: int, separator: str) -> ShardId:
    """The first source of a name has shards that are read as tables ``name.export`` and ``name_progress``."""
    table = f"{name}{separator}{export}"
    return ShardId.named("table", table if generation == 1 else f"{table}@{generation}")


def _check_fresh(the_client: Any, source: Source) -> None:
    """What an earlier attempt left behind must not be mixed in. Raises InvalidArgument."""
    for name, shard in {**source.exports, "progress": source.remap}.items():
        with contextlib.suppress(persist.ShardNotFound):
            if the_client.recent_upper(shard) != persist.Antichain((0,)):
                raise InvalidArgument(
                    "a shard of this name holds something already",
                    hint=f"finalize it (persist shard finalize {shard} --force), or choose another name",
                    shard=shard,
                    export=name,
                )


def _begin(
    location: Location,
    source: Source,
    beginning: Beginning,
    minter_endpoints: str,
    runner: Runner,
    report: Callable[[int], None],
) -> None:
    the_client = client(location)
    schemas = beginning.reader.exports()
    writers = {name: the_client.open_writer(shard, schema=schemas[name]) for name, shard in source.shards.items()}
    for shard in source.shards.values():
        the_client.open_since(DATA_SINCE, shard, purpose="history of a source")
    minter = the_client.minter(minter_endpoints)
    try:
        minter.mint(source.remap_source, beginning.bound, high=beginning.bound)
        trace: RemapTrace = minter.bindings(source.remap_source)
    finally:
        minter.close()
    exports = {
        name: ExportPlan(
            spec=writer.batch_spec(),
            lower=0,
            upper=trace.upper.time or 0,
            contents=Contents(location=location, shard=source.exports[name]),
        )
        for name, writer in writers.items()
    }
    works = [Work(task=task, reclocker=Reclocker.of(trace), exports=exports) for task in beginning.snapshot]
    done = runner.run(works, report) if works else []
    # Also without a snapshot: what lies before the first binding is none of this source's.
    for name, writer in writers.items():
        writer.compare_and_append_batches(prepared(done, name), [0], trace.upper)


def _undo(the_client: Any, source: Source) -> None:
    for shard in (source.remap, *source.exports.values()):
        with contextlib.suppress(PersistError):
            the_client.finalize(shard, force=True)
