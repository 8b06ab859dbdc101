"""The one way by which a catalog's rows get into its log: compared with what is known of the log before.

A row that goes is there, what comes stands beside nothing else under its key: an append of something else is
refused, because a log that took a retraction of a row that is not there can never be opened again. Source:
catalog-semantics.md section 1.2.3.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, Protocol

from persist.client.catalog.port import Grouping, RowLog, StagedRows, Staging
from persist.core.catalog.prepared import STEP, Prepared
from persist.core.catalog.rows import Row, RowCodec
from persist.core.catalog.snapshot import Net, Snapshot
from persist.errors import CorruptData, InvalidArgument, RequestTooLarge
from persist.runtime import system

ROW_BYTES_MAX: Final = 2 << 20
"""Bytes of a key and its value: any message holds two of them, as the answer of an edit does."""


class Memory(Protocol):
    """What a process knows of a log, complete below an upper."""

    def check(self, changes: Iterable[tuple[Row, int]]) -> None:
        """Nothing, when the changes of one time fit what is known. Raises CorruptData; nothing changes."""
        ...


class SnapshotMemory:
    """The Memory of a snapshot. ``net``: the changes that it was asked about last, as the snapshot takes them."""

    def __init__(self, snapshot: Snapshot, codec: RowCodec, prepared: Prepared | None = None) -> None:
        """``prepared``: changes whose rows come first."""
        self._snapshot = snapshot
        self._codec = codec
        self._prepared = prepared
        self.net = Net({}, {})

    def check(self, changes: Iterable[tuple[Row, int]]) -> None:
        """See Memory."""
        made = self._prepared
        if made is not None:
            changes = islice(changes, len(made.rows), None)
        self.net = self._snapshot.fitting(self._codec, changes, made.net if made else None)


Times = Sequence[tuple[int, Sequence[tuple[Row, int]]]]
"""Changes by times that rise."""


async def append(
    log: RowLog, memory: Memory, changes: Sequence[tuple[Row, int]], ts: int, *, expected_upper: int
) -> int | None:
    """As RowLog.append, once ``memory``, which knows the log below ``expected_upper``, was asked.

    Raises InvalidArgument for changes that do not fit it, RequestTooLarge for a row that no server could show: nothing
    was appended.
    """
    return await append_all(log, memory, [(ts, changes)], expected_upper=expected_upper)


async def append_all(
    log: RowLog, memory: Memory, times: Times, *, expected_upper: int, staged: StagedRows | None = None
) -> int | None:
    """As ``append``, for several times that change different rows: where the log takes that (Grouping).

    ``staged``: the first changes of the only time, which ``staging`` looked at.
    """
    begun = len(staged.rows) if staged is not None else 0
    changes = times[0][1] if len(times) == 1 else [change for _, changes in times for change in changes]
    _check_sizes(islice(changes, begun, None))
    try:
        memory.check(changes)
    except CorruptData as error:
        raise InvalidArgument(
            f"these changes do not fit the catalog: {error.message}",
            hint="nothing was changed; make a new transaction from what is there now, and report it",
            **error.details,
        ) from error
    if staged is not None:
        assert isinstance(log, Staging)
        return await log.append_staged(staged, changes[begun:], times[0][0], expected_upper=expected_upper)
    if len(times) == 1:
        return await log.append(changes, times[0][0], expected_upper=expected_upper)
    assert isinstance(log, Grouping)
    return await log.append_all(times, expected_upper=expected_upper)


async def staging(log: Staging, rows: Sequence[tuple[Row, int]]) -> StagedRows:
    """The rows, staged. Others get their turn meanwhile. Raises RequestTooLarge, and as ``stage``."""
    for begin in range(0, len(rows), STEP):
        _check_sizes(islice(rows, begin, begin + STEP))
        await system().sleep(0)
    return await log.stage(rows)


def _check_sizes(changes: Iterable[tuple[Row, int]]) -> None:
    for row, diff in changes:
        if diff > 0 and len(row.key) + len(row.value) > ROW_BYTES_MAX:
            raise RequestTooLarge(
                "an object of a catalog is too large", hint="keep large values elsewhere and name them here",
                kind=row.kind, bytes=len(row.key) + len(row.value), limit=ROW_BYTES_MAX,
            )  # fmt: skip
