"""What a source begins with where that is too large to be read at once: its exports are read in pieces, once it exists.

It is a source like any other then, whose record says of each such export that it is being snapshotted, and how far.
So a pipeline of it goes on with what was broken off, and the log is consumed meanwhile.
Source: sources.md section 1, snapshot; docs/adr/0019-snapshots-in-pieces.md.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from persist import LeaseExpired, LocationError, UsageError
from persist.runtime import system
from persist_ingest.location import Location, client
from persist_ingest.pipeline.anew.attempt import PATIENCE_SECONDS, Pace
from persist_ingest.pipeline.pipeline import Pipeline
from persist_ingest.pipeline.records import Records, Source, SourceNotFound
from persist_ingest.pipeline.running import PipelineOptions
from persist_ingest.pipeline.troubles import SNAPSHOTTING, snapshotted, troubles
from persist_ingest.sources.port import HeldUp, SourceFailure

if TYPE_CHECKING:
    import persist

TICK_SECONDS: Final = 0.25


def is_incomplete(the_client: "persist.Client", source: Source) -> bool:
    """Some export of it is being read that never held anything."""
    return any(not _has_begun(the_client, source, export) for export in snapshotted(source))


def completed(
    location: Location,
    source: Source,
    *,
    minter: str = "",
    pace: Pace | None = None,
    report: Callable[[int], None] = lambda rows: None,
) -> Source:
    """Run this life of a source until every export that was being read holds what its upstream holds.

    ``report`` gets how many rows were read. Raises what reading one ended with (definite: it is stalled),
    SourceNotFound, LocationError (it goes on where it was).
    """
    records = Records(client(location.resolved()))
    expected = set(snapshotted(source))
    pace = pace or Pace()
    options = PipelineOptions(minter=minter, pace=pace, state_dir=pace.state_dir)
    patience, known = system().monotonic() + PATIENCE_SECONDS, troubles(source)
    with Pipeline(location, source.name, options=options) as pipeline:
        pipeline.watch.report = report
        while True:
            found = records.source(source.name)
            if found.generation != source.generation:
                raise SourceNotFound("this source was dropped while it was read", source=source.name)
            left = {export: each for export, each in troubles(found).items() if export in expected}
            for export, trouble in left.items():
                if trouble.state != SNAPSHOTTING:
                    raise _ended(pipeline.watch.errors.get(export), export, trouble.error, trouble.hint)
            if left != known:
                patience, known = system().monotonic() + PATIENCE_SECONDS, left
            try:
                pipeline.step()
                if not left:
                    return found
            except HeldUp:
                # Also while there is none yet that runs.
                pass
            except (LocationError, LeaseExpired):
                if system().monotonic() > patience:
                    raise
            pipeline.watch.wait(TICK_SECONDS)


def _has_begun(the_client: "persist.Client", source: Source, export: str) -> bool:
    return bool(the_client.recent_upper(source.shards[export]).time)


def _ended(error: Exception | None, export: str, told: str, hint: str) -> UsageError:
    """What is raised for an export that stopped; another process may have been at it."""
    if isinstance(error, UsageError):
        return error
    return SourceFailure("an export could not be read", hint=hint, export=export, reason=told)
