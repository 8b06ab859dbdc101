"""What a transaction log still holds, and how it forgets what is copied to the tables.

An entry is taken back by an update of -1 at a later time; once since has passed both, merging leaves nothing of it.
Source: catalog-semantics.md section 4.2, table writes; docs/adr/0009-tables.md.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from persist.client.timeline.register import Register, seconds
from persist.core.ids import ShardId
from persist.core.shard.commands import Appended
from persist.retry.deadline import Deadline
from persist.typed import Record

if TYPE_CHECKING:
    from persist.client.shard.read.handle import ReadHandle
    from persist.client.shard.write.handle import WriteHandle

TRIES: Final = 10
"""Attempts to take entries back between the transactions of others. What stays is taken back the next time."""

Name = tuple[str, bytes]
"""Table and entry."""


@dataclass(slots=True)
class LiveRows:
    """The entries of a log before some time that were not taken back."""

    entries: dict[Name, bytes]
    upper: Register
    """The log's."""

    @property
    def tables(self) -> list[ShardId]:
        """Whom they are for."""
        return sorted({ShardId.parse(table) for table, _ in self.entries})

    async def retract(self, writer: "WriteHandle", reader: "ReadHandle", end: int, deadline: Deadline) -> bool:
        """Take all of them back, at the log's upper, which was ``end``; whether that succeeded."""
        for _ in range(TRIES):
            if not self.entries:
                return True
            outcome = await writer.compare_and_append(self._updates(end), end, end + 1, timeout=seconds(deadline))
            if isinstance(outcome, Appended):
                return True
            # SUBTLE: another process may have taken the same ones back meanwhile: never twice.
            upper = self.upper.heard(outcome.upper)
            for row in (await (await reader.diffs(end, upper, timeout=seconds(deadline))).to_arrow()).to_pylist():
                if row["diff"] < 0:
                    self.entries.pop((row["table"], row["entry"]), None)
            end = upper
        return False

    def _updates(self, ts: int) -> pa.Table:
        count = len(self.entries)
        return pa.table(
            {
                "table": pa.array([table for table, _ in self.entries], pa.string()),
                "entry": pa.array([entry for _, entry in self.entries], pa.binary()),
                "rows": pa.array(list(self.entries.values()), pa.binary()),
                "ts": pa.array([ts] * count, pa.uint64()),
                "diff": pa.array([-1] * count, pa.int64()),
            }
        )


async def live_rows(reader: "ReadHandle", upper: Register, deadline: Deadline) -> tuple[LiveRows, int]:
    """What the log holds before its upper, and that upper. Two RPCs, and memory for all of it."""
    end = await upper.read(deadline)
    snapshot = await reader.snapshot(end - 1, timeout=seconds(deadline))
    rows: list[Record] = (await snapshot.to_arrow()).to_pylist()
    return LiveRows({(row["table"], row["entry"]): row["rows"] for row in rows if row["diff"] > 0}, upper), end
