"""The state of a shard: everything persist knows about it, as one immutable value.

Maps are never mutated: a transition copies the small ones it changes, and one piece of the large ones.
Source: persist-semantics.md section 2.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.shard.commands import Rollup, SchemaEntry
from persist.core.shard.table import Table
from persist.core.shard.trace import Claim, Trace
from persist.errors import check
from persist.typed import AnyValue

STATE_FORMAT: Final = 3
"""The newest format of states that this release knows; it writes none newer than the location's write-version."""
FIRST_FORMAT: Final = 2
"""The oldest format that is still written, and the write-version of locations that name none."""
STEPS_FORMAT: Final = 3
"""The format in which batches change part by part, so that large ones are merged in steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedReader:
    """A reader under a lease: what it may read from, and the oldest seqno whose parts it may still fetch."""

    since: Antichain
    seqno: int
    heartbeat_ms: int
    lease_ms: int
    purpose: str = ""
    hostname: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalReader:
    """A reader without a lease, fenced by ``opaque``. Holds since but no seqno.

    ``registered``: the seqno at which it was, which distinguishes it from others under its id; 0: in the history
    before.
    """

    since: Antichain
    opaque: bytes
    purpose: str = ""
    registered: int = 0


class Verdict(IntEnum):
    """What became of a numbered call."""

    APPENDED = 1
    """It appended: ``upper`` is where it moved the shard's."""
    CLOSED = 2
    """Nothing: it was given up before anything came of it, and nothing ever will."""
    DONE = 3
    """It took effect; what it says now is read from the state, and from what it asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """What became of the call ``number`` of a session, at ``seqno``. ``upper`` is set for appends."""

    number: int
    verdict: Verdict
    upper: Antichain | None
    seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSession:
    """A caller that numbers its calls: numbers below ``first`` are over, ``outcomes`` (ascending) are known.

    ``seqno`` is where it last committed anything: what is forgotten of it, if it is forgotten.
    """

    first: int
    seqno: int
    heartbeat_ms: int
    lease_ms: int
    outcomes: tuple[CallOutcome, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOutcome:
    """What the append under a token came to. ``body``: distinguishes another append under the same token; or empty."""

    upper: Antichain
    seqno: int
    committed_ms: int
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A writer that appended lately: what it leaves in Blob is not swept."""

    heartbeat_ms: int
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """The newest version an application committed, and what that append came to. Clocks play no part in its end.

    ``owner``: who counts the versions (a streaming query); another one's are not replays. Empty: not given.
    """

    version: int
    upper: Antichain
    seqno: int
    owner: str = ""


@dataclass(frozen=True, kw_only=True)
class State:
    """A shard at one seqno.

    ``writers_since_ms``: unknown writers born before are refused, so what they left in Blob may be swept.
    ``format``: which fields it may hold; it never falls. ``known_format``: the newest one that the program which
    committed it knows; 0: not given.
    ``incarnation`` changes when the location is restored from a backup: what was said before counts no more.
    ``sessions_forgotten``, ``tokens_forgotten``: the greatest seqno at which a session, a token that the shard has
    forgotten had committed. ``transactions_forgotten``: 0, or the name of the last time that applications were
    forgotten, which no other such time has.
    """

    shard: ShardId
    seqno: int
    walltime_ms: int
    hostname: str
    format: int = FIRST_FORMAT
    known_format: int = 0
    trace: Trace = field(default_factory=Trace)
    rollups: Mapping[int, Rollup] = field(default_factory=dict)
    last_gc_req: int = 0
    writers_since_ms: int = 0
    incarnation: int = 0
    sessions_forgotten: int = 0
    tokens_forgotten: int = 0
    transactions_forgotten: int = 0
    active_rollup: Claim | None = None
    active_gc: Claim | None = None
    leased_readers: Mapping[str, LeasedReader] = field(default_factory=dict)
    critical_readers: Mapping[str, CriticalReader] = field(default_factory=dict)
    writers: Table[Writer] = field(default_factory=Table)
    sessions: Table[CallSession] = field(default_factory=Table)
    tokens: Table[TokenOutcome] = field(default_factory=Table)
    transactions: Table[TransactionRecord] = field(default_factory=Table)
    schemas: tuple[SchemaEntry, ...] = ()

    @staticmethod
    def initial(shard: ShardId, *, now_ms: int, hostname: str, format: int = FIRST_FORMAT) -> "State":
        """The first state of a shard: open, empty, without readers or writers, not rolled up yet."""
        return State(
            shard=shard, seqno=0, walltime_ms=now_ms, hostname=hostname, format=format, known_format=STATE_FORMAT
        )

    def evolved(self, **changes: AnyValue) -> "State":
        """This state with some fields changed: ``dataclasses.replace``, at a tenth of its cost on the commit path."""
        new = object.__new__(State)
        new.__dict__.update(self.__dict__, **changes)
        return new

    @property
    def since(self) -> Antichain:
        """Reads at times at or beyond it are correct."""
        return self.trace.since

    @property
    def upper(self) -> Antichain:
        """Times before it are complete."""
        return self.trace.upper

    @property
    def inline_bytes(self) -> int:
        """Bytes of data inside the state."""
        return self.trace.inline_bytes

    @property
    def seqno_since(self) -> int:
        """States before this seqno have no readers."""
        return min((reader.seqno for reader in self.leased_readers.values()), default=self.seqno)

    @property
    def critical_since(self) -> Antichain | None:
        """The meet of all critical sinces; None when there is no critical reader."""
        met: Antichain | None = None
        for reader in self.critical_readers.values():
            met = reader.since if met is None else met.meet(reader.since)
        return met

    @property
    def is_tombstone(self) -> bool:
        """Closed for reading and writing, without readers or writers: dead for ever."""
        held = self.leased_readers or self.critical_readers or self.writers
        return self.upper.is_empty and self.since.is_empty and not held

    @property
    def latest_rollup(self) -> tuple[int, Rollup]:
        """The newest rollup and its seqno."""
        check(bool(self.rollups), "a state has a rollup", shard=self.shard, seqno=self.seqno)
        newest = max(self.rollups)
        return newest, self.rollups[newest]
