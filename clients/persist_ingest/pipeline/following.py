"""A source that brings its own times, at work: what is said is collected, and what is complete is appended.

There is no checkpoint: the upper of the data shard says which times are durable, and what the upstream says of others
is read again after a restart. Each append succeeds only where no other was first, with the same rows.
Source: design 004, variants; reliability.md I18.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

import persist
from persist import Antichain, UpperMismatch
from persist.sources import check_claim
from persist_ingest.pipeline.records import Source
from persist_ingest.pipeline.stash import Stash
from persist_ingest.sources.port import BringsTimes

CHUNK_UPDATES: Final = 50_000
"""Updates that are remembered before what is complete of them is appended."""


@dataclass(slots=True)
class Followed:
    """What a step did."""

    rows: int = 0
    bytes: int = 0
    appended: int = 0
    overtaken: int = 0


def follower(
    reader: BringsTimes,
    source: Source,
    writers: Mapping[str, "persist.WriteHandle"],
    uppers: Mapping[str, Antichain],
    now_ms: Callable[[], int],
) -> "Follower":
    """That of a source, which has one export."""
    ((name, writer),) = writers.items()
    return Follower(reader, writer, uppers[name], label=source.name, claims_epoch=source.claims_epoch, now_ms=now_ms)


class Follower:
    """One life of a pipeline of such a source."""

    def __init__(
        self,
        reader: BringsTimes,
        writer: "persist.WriteHandle",
        upper: Antichain,
        *,
        label: str,
        claims_epoch: bool,
        now_ms: Callable[[], int],
    ) -> None:
        """``claims_epoch``: its times are said to be milliseconds, and are believed only near the clock."""
        self._reader = reader
        self._writer = writer
        self._label = label
        self._claims_epoch = claims_epoch
        self._now_ms = now_ms
        self.stash = Stash(upper.time)

    @property
    def upper(self) -> Antichain:
        """What is durable, as far as it is known here."""
        return _frontier(self.stash.upper)

    def step(self) -> Followed:
        """Take in what came, append what became complete.

        Raises SourceFailure, BadRows, LocationError, SourceQuarantined (nothing was appended, and what was read stays
        known: the next step judges again).
        """
        done = Followed()
        for event in self._reader.follow():
            self.stash.put(event)
            # A claim is judged by the last of the times that are there, so that history may come first.
            if not self._claims_epoch and self.stash.count >= CHUNK_UPDATES:
                self._advance(done)
        self._advance(done)
        return done

    def _advance(self, done: Followed) -> None:
        upper = self.stash.complete()
        if upper == self.stash.upper:
            return
        if self._claims_epoch:
            check_claim(self._label, _frontier(upper), self._now_ms())
        table = self._table(upper)
        outcome = self._writer.compare_and_append(table, self.upper, _frontier(upper))
        if isinstance(outcome, UpperMismatch):
            # Another ingester was faster, with the same rows.
            done.overtaken += 1
            self.stash.taken(outcome.upper.time)
            return
        done.appended += 1
        done.rows += table.num_rows
        done.bytes += table.nbytes
        self.stash.taken(upper)

    def _table(self, upper: int | None) -> pa.Table:
        schema = self._writer.schema
        fields = pa.schema([*schema.key, *schema.val])
        rows = list(self.stash.rows(upper))
        columns = [pa.array([row[0].get(each.name) for row in rows], each.type) for each in fields]
        times, diffs = pa.array([row[1] for row in rows], pa.uint64()), pa.array([row[2] for row in rows], pa.int64())
        return pa.Table.from_arrays([*columns, times, diffs], names=[*fields.names, "ts", "diff"])


def _frontier(upper: int | None) -> Antichain:
    return Antichain(()) if upper is None else Antichain.of(upper)
