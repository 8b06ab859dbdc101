"""Rebuilding Consensus when only Blob is left: each shard begins again from its newest rollup.

What was committed after that rollup is lost, and reported as far as possible: parts that nothing names. Collection
deletes nothing that the newest rollup names before a newer one is linked, so everything it names is there.
Source: persist-semantics.md section 2.7; reliability.md I8; docs/runbook.md, backups.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.shard.state import FIRST_FORMAT, State
from persist.errors import CorruptData
from persist.machine.backup.beginning import Beginnings, first_key
from persist.machine.backup.copying import Store, parts_of
from persist.machine.backup.manifest import NO_SHARDS, digest
from persist.machine.gate import Gate
from persist.machine.identity import Identity
from persist.storage.ports import Consensus
from persist.wire.shard.state import decode_rollup

_ROLLUP: Final = re.compile(r".*/rollup/(\d+)-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """One shard as it can be, or was, rebuilt.

    ``seqno``, ``upper``, ``since`` and ``walltime_ms`` are of the rollup it begins with; what was committed later is
    lost. ``loose`` parts with ``loose_bytes`` may be of it: no state names them. ``missing`` parts are named and gone:
    repair the shard. ``damaged``: newer rollups that cannot be read. ``why``: it cannot be rebuilt, empty if it can.
    """

    shard: ShardId
    seqno: int = 0
    since: Antichain | None = None
    upper: Antichain | None = None
    walltime_ms: int = 0
    rows: int = 0
    loose: int = 0
    loose_bytes: int = 0
    missing: int = 0
    damaged: int = 0
    begun: bool = False
    why: str = ""


class Rebuilder:
    """Rebuilds the shards of one Blob into a Consensus that does not know them."""

    def __init__(self, store: Store, consensus: Consensus) -> None:
        self._store = store
        self._beginnings = Beginnings(store, consensus)
        self._gate = Gate(consensus, settings=store.settings, runtime=store.runtime)
        self._identity = Identity(store.blob, consensus, self._gate, settings=store.settings, runtime=store.runtime)

    async def shards(self, under: str = "") -> AsyncIterator[ShardId]:
        """The shards that have rollups in Blob, each once; ``under``: only that prefix. Memory: all its keys."""
        keys = await self._store.sizes(under)
        for shard in sorted({key.partition("/")[0] for key in keys if _ROLLUP.fullmatch(key)}):
            if shard not in NO_SHARDS:
                yield ShardId.parse(shard)

    async def check(self) -> None:
        """Raise UnsafeConfiguration where the Consensus is another location's than the Blob. Writes nothing."""
        await self._identity.compare_named(self._store.deadline())

    async def rebuild(self, shard: ShardId, *, commit: bool = False) -> Rebuilt | None:
        """Begin the shard again, or only report what that would do; None when Consensus knows it already.

        Run again after a failure, it goes on. Once the shard stands, its older rollups are deleted: they are of a
        history that Consensus does not have. Raises VersionMismatch (another release wrote it), LocationError,
        CorruptData, UnsafeConfiguration (the Blob is of another location than this Consensus).
        """
        sizes = await self._store.sizes(f"{shard}/")
        rollups = _newest_first(sizes)
        found, damaged = await self._newest(shard, rollups)
        if found is None:
            if await self._beginnings.first_entry(shard) is not None:
                return None
            return Rebuilt(shard=shard, damaged=damaged, why="none of its rollups can be read")
        key, state = found
        origin = digest(b"rebuild", key.encode())
        first = await self._beginnings.first_entry(shard)
        mine = first_key(shard, origin)
        if first is not None and (mine not in sizes or key == mine):
            return None
        begun = False
        if commit:
            # A lost Consensus that turns up again is refused: it knows the Blob under another name.
            await self._identity.take_over(self._store.deadline())
            # The write-version went with Consensus: it is at least what was written.
            await self._gate.raise_to(max(state.format, FIRST_FORMAT), self._store.deadline())
            await self._beginnings.prepare(state, origin)
            begun = await self._beginnings.begin(shard, origin)
            # The oldest first: as long as any is there, so is the one that shows another run what this one does.
            for old in reversed(rollups):
                if old != mine:
                    await self._store.delete(old)
        return _rebuilt(shard, state, sizes, damaged=damaged, begun=begun)

    async def _newest(self, shard: ShardId, rollups: list[str]) -> tuple[tuple[str, State] | None, int]:
        """The newest rollup that can be read, and how many newer ones cannot. Raises VersionMismatch."""
        for damaged, key in enumerate(rollups):
            data = await self._store.get(key)
            match = _ROLLUP.fullmatch(key)
            assert match is not None
            try:
                return (key, decode_rollup(data or b"", shard, int(match.group(1)))), damaged
            except CorruptData:
                continue
        return None, len(rollups)


def _newest_first(sizes: dict[str, int]) -> list[str]:
    numbered = [(int(match.group(1)), key) for key in sizes if (match := _ROLLUP.fullmatch(key))]
    return [key for _, key in sorted(numbered, reverse=True)]


def _rebuilt(shard: ShardId, state: State, sizes: dict[str, int], *, damaged: int, begun: bool) -> Rebuilt:
    named = {part.key: part.encoded_bytes for part in parts_of(state) if part.key is not None}
    loose = [size for key, size in sizes.items() if key not in named and not _ROLLUP.fullmatch(key)]
    return Rebuilt(
        shard=shard,
        seqno=state.seqno,
        since=state.since,
        upper=state.upper,
        walltime_ms=state.walltime_ms,
        rows=state.trace.rows,
        loose=len(loose),
        loose_bytes=sum(loose),
        missing=sum(sizes.get(key) != size for key, size in named.items()),
        damaged=damaged,
        begun=begun,
    )
