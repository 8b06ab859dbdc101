"""Minter: what a TimestampMinter does, here in this process or behind gRPC.

Each call names the source in full, so any number of minters serve any number of sources and know nothing between
calls that the remap shard does not. Nothing is answered that is not committed.
Source: design 003; catalog-semantics.md sections 4.2, 5.1 and 5.2; reliability.md I18-I20.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from persist.core.binding.binding_log import MintRules
from persist.core.binding.remap import Binding, RemapTrace
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import SourceKind, SourceTime

REMAP_SINCE = "minter"
"""The critical since of every remap shard: ``compact`` moves it, and nothing else does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemapSource:
    """One incarnation of a source, as a minter has to know it: where its bindings are and what they mean.

    ``rules`` may differ from call to call: they say how to mint, never what was minted.
    """

    remap: ShardId
    kind: SourceKind
    incarnation: str
    rules: MintRules = field(default_factory=MintRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How far a source is bound: the newest source frontier, complete before ``upper``; ``since`` as of its reading."""

    frontier: SourceFrontier
    upper: Antichain
    since: Antichain


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumptionOf:
    """Where an export, or the source as a whole, goes on.

    ``time``: from here on it is to be written. ``offsets``: from here on it is to be read; None where that is unknown,
    so nothing may be forgotten upstream.
    """

    time: Antichain
    offsets: SourceFrontier | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumptions:
    """The resumption of a source and of each export. Committing ``source.offsets`` upstream is safe."""

    source: ResumptionOf
    exports: Mapping[str, ResumptionOf]


class Minter(Protocol):
    """Bindings of sources. Every call may raise LocationError; repeating any of them is safe and gives the same.

    Calls raise UpstreamReplaced when the remap shard is about another incarnation, CorruptData when it is none. Only
    ``mint`` begins a source: all others raise ShardNotFound for one that was not begun, and leave nothing there.
    """

    async def get_binding(
        self,
        source: RemapSource,
        times: Sequence[SourceTime],
        *,
        high: SourceFrontier | None = None,
        timeout: float | None = None,
    ) -> list[Binding]:
        """For each source time (inclusive: of a message) the lowest binding beyond it, minted now if there is none.

        The same for every caller, for ever. ``high``: what the upstream is known to have; without it no more than
        ``rules.max_jump`` is bound at once. Raises NotReadable (bound at since or before: its time is forgotten),
        JumpTooLarge, ClockAhead, InvalidArgument, ShardNotFound.
        """
        ...

    async def mint(
        self,
        source: RemapSource,
        wanted: SourceFrontier | None = None,
        *,
        high: SourceFrontier | None = None,
        timeout: float | None = None,
    ) -> Bound:
        """Bind everything before ``wanted`` (exclusive) unless it is; without it complete the present tick only.

        A source that was not begun yet begins with this. Raises as ``get_binding``.
        """
        ...

    async def bindings(self, source: RemapSource, *, timeout: float | None = None) -> RemapTrace:
        """All that is committed, at this moment or later than the call began.

        Raises ShardNotFound, UpstreamReplaced, CorruptData, LocationError.
        """
        ...

    def watch(self, source: RemapSource, *, timeout: float | None = None) -> AsyncIterator[RemapTrace]:
        """The trace now, and again after each change, until closed or ``timeout`` seconds have passed.

        Raises ShardNotFound, UpstreamReplaced, CorruptData, LocationError, each while iterating.
        """
        ...

    async def resumption(
        self, source: RemapSource, exports: Mapping[str, ShardId], *, timeout: float | None = None
    ) -> Resumptions:
        """Where the source goes on, from the uppers of its data shards as they are now.

        Exports that do not exist yet are at the minimum. Raises ShardNotFound, UpstreamReplaced, CorruptData,
        LocationError.
        """
        ...

    async def compact(
        self,
        source: RemapSource,
        exports: Mapping[str, ShardId],
        *,
        hold: Antichain | None = None,
        timeout: float | None = None,
    ) -> Antichain:
        """Let the remap shard forget what lies before resumption - 1; its since afterwards. Never goes back.

        ``hold``: since does not go beyond it, however far the exports are by now; a minter of an earlier release does
        not know of it. Raises ShardNotFound, UpstreamReplaced, CorruptData, LocationError.
        """
        ...

    async def close(self) -> None:
        """Release what it holds: leases run out by themselves where that fails. Raises LocationError."""
        ...
