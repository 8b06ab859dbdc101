"""What a source keeps in mind of an upstream that lost a part of the history that was read of it.

Files of a server that were put back show that only until it has logged as much again.
Source: sources.md section 1, semantics seen; catalog-semantics.md section 4.2, restart checks.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from persist import Determinate, LocationError, PersistError
from persist.sources import UpstreamRegressed
from persist_ingest.pipeline.records import Records, Source
from persist_ingest.pipeline.troubles import Trouble, amend, running, snapshotted, with_trouble
from persist_ingest.sources.lives import HistoryLost, Lags
from persist_ingest.sources.port import SourceType, is_apart

LOST: Final = (UpstreamRegressed, HistoryLost)
"""What proves that an upstream lost a part of the history that was read, and cannot be seen any more once it grew."""


def keep_in_mind(
    records: Records,
    source: Source,
    kind: SourceType,
    reader: object,
    error: PersistError,
    end: Callable[[Trouble], None],
) -> None:
    """After one of ``LOST``: no export goes on by itself, as what it holds may be of the history that is lost.

    Each is right at the times it has, and stands aside until it is snapshotted again, which succeeds once the upstream
    has more than was bound. ``end``: gets each snapshot that ends so. Raises Determinate, and keeps nothing, where it
    is a standby that lags.
    """
    if isinstance(reader, Lags) and reader.lags():
        raise Determinate(
            "the server does not have all of the log yet that another one had",
            hint="it is tried again once it has; or name the primary (target_session_attrs=read-write)",
        ) from error
    hint = "once the server's log has grown beyond what was read: snapshot it again (persist source resnapshot)"
    trouble = replace(Trouble.of(error), hint=hint)

    ended: list[Trouble] = []

    def place(now: Source) -> Source:
        after = now
        ended.clear()
        # One that another process put right meanwhile is of a later turn.
        if now.turn == source.turn and is_apart(kind, now.definition):
            # What a snapshot has read so far may be of the lost history, too: it ends, and another one begins anew.
            ended.extend(snapshotted(now).values())
            for export in [*running(now), *snapshotted(now)]:
                after = with_trouble(after, export, trouble)
        return after

    amend(records, source, place)
    for each in ended:
        # What was lost is the error to be raised, and what stays costs no more than room.
        with contextlib.suppress(LocationError):
            end(each)
