"""What every catalog offers, wherever its rows are, and what it needs of the place they are in.

Openable, read-only and read-write are apart: who has one of them can do what it says and nothing else. Source: design
document 2; catalog-semantics.md section 1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from persist.core.catalog.kinds import AnyKind, Kind
from persist.core.catalog.leadership.fencing import FenceClaim
from persist.core.catalog.leadership.migrations import Upgrade
from persist.core.catalog.leadership.repair import RowDamage
from persist.core.catalog.objects import AuditLogKey, FenceToken, StorageUsageKey
from persist.core.catalog.open_rules import Mode
from persist.core.catalog.rows import Row, RowUpdate
from persist.core.catalog.snapshot import Change
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.ids import Token
from persist.errors import InvalidArgument
from persist.typed import AnyKey, AnyValue

K = TypeVar("K")
V = TypeVar("V")


class Freshness(StrEnum):
    """What a catalog that was opened for reading shows at least, where servers are asked.

    ``newest``: all that was committed before the call. ``own``: all that was committed through the same catalog, or
    was seen through it: any server answers, from its memory if that reaches so far. ``any``: what a server knows.
    None of them ever goes back.
    """

    NEWEST = "newest"
    OWN = "own"
    ANY = "any"


def check_freshness(freshness: str) -> Freshness:
    """The freshness with this name. Raises InvalidArgument."""
    try:
        return Freshness(freshness)
    except ValueError:
        raise InvalidArgument(
            "no such freshness", hint=f"known: {', '.join(Freshness)}", got=str(freshness)[:80]
        ) from None


class CatalogUpdates(NamedTuple):
    """All updates of a range of times, and the upper they lead to: every later one is at this time or after it."""

    updates: list[RowUpdate]
    upper: int


class RowLog(Protocol):
    """Rows that come and go at times, durably: the part of a catalog that differs between implementations.

    Once an update was read or acknowledged it is there for ever, at its time or (consolidated with what cancels it) a
    later one. Nothing below ``upper`` changes. All methods raise StoreUnavailable when the place cannot be reached.
    """

    @property
    def history(self) -> int | None:
        """Which history of the rows it returns: another one after a restore. None: not known yet, or never."""
        ...

    async def upper(self) -> int:
        """The newest upper; 0 before the first append. As fresh as the place itself: never from memory alone."""
        ...

    async def snapshot(self, kinds: Iterable[str] | None = None) -> CatalogUpdates:
        """All updates so far, consolidated as of ``upper - 1``. ``kinds``: tags to read, others may be left out."""
        ...

    async def updates(self, lower: int) -> CatalogUpdates:
        """All updates from ``lower`` (an upper that was returned before) to the newest upper. Costs what they cost.

        From 0: everything, what was forgotten as of a later time. Raises NotReadable when others made the log forget
        times from ``lower`` on, which takes that this process was away for long: read a snapshot instead.
        """
        ...

    async def append(self, changes: Sequence[tuple[Row, int]], ts: int, *, expected_upper: int) -> int | None:
        """Commit changes at ``ts`` if the upper is ``expected_upper`` (<= ``ts``); the upper is ``ts + 1`` then.

        None when that is done, durably and once, else the upper there is instead. No changes: only the upper advances.
        Unknown outcomes are resolved before it returns. Raises Indeterminate when even that was not possible.
        """
        ...

    async def changed(self, upper: int, timeout: float) -> None:
        """Wait until the upper is above this one, ``timeout`` seconds at most."""
        ...

    async def forget(self, to: int) -> None:
        """Times up to ``to`` need not be distinguished any more. Cheap, may do nothing, never loses what is live."""
        ...

    async def close(self) -> None:
        """Give back what is held. The rows stay."""
        ...


@runtime_checkable
class Nudging(Protocol):
    """A RowLog whose upper can be moved on even while others append without a pause."""

    async def nudge(self) -> None:
        """Move the upper on by a time, wherever it is. A process about to append must read first, and is late then."""
        ...


@runtime_checkable
class Grouping(Protocol):
    """A RowLog that takes what happens at several times by one append."""

    async def append_all(
        self, times: Sequence[tuple[int, Sequence[tuple[Row, int]]]], *, expected_upper: int
    ) -> int | None:
        """As ``append`` for each of these times, which rise, one after the other, but all or none of them."""
        ...


class StagedRows(Protocol):
    """Changes that lie where they are durable, and that nothing names until they are appended."""

    @property
    def rows(self) -> Sequence[tuple[Row, int]]:
        """Them."""
        ...

    async def release(self) -> None:
        """End it, once: they stay only where an append took them, or may have."""
        ...


@runtime_checkable
class Staging(Protocol):
    """A RowLog that takes the changes of a large append before it is known when they happen, as that takes long."""

    async def stage(self, rows: Sequence[tuple[Row, int]]) -> StagedRows:
        """Have them ready for appends that follow each other until one is done. Raises as ``append``."""
        ...

    async def append_staged(
        self, staged: StagedRows, rest: Sequence[tuple[Row, int]], ts: int, *, expected_upper: int
    ) -> int | None:
        """As ``append`` of what is staged, and of the rest."""
        ...


class Dump(NamedTuple):
    """All updates of a catalog, consolidated as of ``upper - 1`` or with all times that can be distinguished."""

    updates: list[RowUpdate]
    upper: int


@dataclass(frozen=True, slots=True)
class Repair:
    """What was found and what makes it whole: rows that come (1) and go (-1), the fence token's among them.

    ``token`` fences the former leader; None when nothing was changed. ``mended`` are the rows as they are
    then. ``left`` says what keeps the catalog from being opened all the same, which takes a person; empty: nothing.
    """

    damages: tuple[RowDamage, ...]
    changes: tuple[tuple[Row, int], ...]
    token: FenceToken | None
    mended: CatalogUpdates
    left: str = ""


class ReadOnlyCatalog(Protocol):
    """An open catalog, in memory, as of ``upper``. It goes on only by ``sync`` or by a commit.

    When another process opened the catalog since, every method that looks at the durable one raises FencedByEpoch or
    FencedByGeneration, and once one did all do, for ever, reads of memory and of transactions too; a catalog that is
    open for reading, or as a savepoint, is never fenced.
    """

    @property
    def mode(self) -> Mode:
        """What it was opened for."""
        ...

    @property
    def token(self) -> FenceToken | None:
        """Deploy generation and epoch it was opened with, or found (read only); None for a savepoint of nothing."""
        ...

    @property
    def upper(self) -> int:
        """What it shows is complete below this time."""
        ...

    @property
    def history(self) -> int | None:
        """Which history of the catalog it shows: another one after a restore. None: not known."""
        ...

    def get(self, kind: Kind[K, V], key: K) -> V | None:
        """The object with a key. Raises InvalidArgument for append-only kinds, Fenced."""
        ...

    def objects(self, kind: Kind[K, V]) -> Mapping[K, V]:
        """All objects of a kind, a copy. Raises InvalidArgument for append-only kinds, Fenced."""
        ...

    def count(self, kind: AnyKind) -> int:
        """How many objects a kind has, append-only ones too. Raises Fenced."""
        ...

    async def sync(
        self, target: int | None = None, *, timeout: float | None = None
    ) -> list[tuple[int, tuple[Change, ...]]]:
        """Take over what was committed, up to now or until ``upper >= target``; the changes by time.

        Raises Fenced, TimeoutError (after ``timeout`` seconds; None waits on).
        """
        ...

    async def audit_logs(self) -> list[AuditLogKey]:
        """All audit events in the order of their ids, read from where they are durable.

        Raises Fenced, LocationError.
        """
        ...

    async def storage_usage(self) -> list[StorageUsageKey]:
        """All measurements of storage in the order of their ids, read from where they are durable.

        Raises Fenced, LocationError.
        """
        ...

    async def dump(self, *, consolidated: bool = True, kinds: Iterable[str] | None = None) -> Dump:
        """All rows as they are durable; of these tags only if given. Raises Fenced, LocationError, CorruptData."""
        ...

    async def close(self) -> None:
        """Give back what is held. Nothing durable changes. Raises LocationError where a server has to be notified."""
        ...


class ReadWriteCatalog(ReadOnlyCatalog, Protocol):
    """A catalog open for writing, or a savepoint, whose writes go to its memory only."""

    def transaction(self, *, token: Token | None = None) -> CatalogTransaction:
        """Changes to make together. With a ``token`` it is committed once, however often it is repeated.

        Raises Fenced, NotWritable.
        """
        ...

    async def commit(self, transaction: CatalogTransaction, *, ts: int = 0) -> int:
        """Make it durable at ``ts`` or as soon after as is possible; the new upper.

        Without changes nothing is written, and what it read is checked all the same: the upper up to which it is true.
        It takes transactions of its own only: raises InvalidArgument for those of any other open catalog. What others
        of this catalog's sessions committed meanwhile and the transaction does not depend on is no hindrance. Raises
        OutOfSync (naming the keys: run it again), Fenced, NotWritable, Indeterminate (with a token: repeat it, then it
        is resolved).
        """
        ...

    async def set(self, kind: Kind[K, V], objects: Mapping[K, V | None]) -> int:
        """Insert, change or (None) delete objects in a transaction of their own; the new upper. See ``commit``.

        Raises UniquenessViolation, InvalidArgument, Fenced, NotWritable, LocationError.
        """
        ...

    async def allocate(self, name: str, count: int = 1) -> range:
        """Ids that were and will be given to no other, durably. Raises IdExhaustion, InvalidArgument, Fenced."""
        ...

    async def confirm_leadership(self) -> None:
        """Look at the durable catalog whether this one still leads. Raises FencedByEpoch, FencedByGeneration."""
        ...

    async def advance_upper(self, to: int) -> None:
        """Make the upper at least ``to``. Raises Fenced even when there was nothing to do."""
        ...

    async def prune_storage_usage(self, retention_ms: int | None, boot_ms: int) -> list[StorageUsageKey]:
        """Retract measurements taken more than the retention before boot; those that stay. None keeps all.

        Raises Fenced, NotWritable, LocationError.
        """
        ...


@runtime_checkable
class LedCatalog(ReadWriteCatalog, Protocol):
    """One that this process holds itself, and not a server."""

    @property
    def claim(self) -> FenceClaim:
        """Who may fence it."""
        ...


class OpenableCatalog(Protocol):
    """A catalog that is not opened yet: what can be known and done before."""

    async def is_initialized(self) -> bool:
        """Whether there is a catalog. Raises LocationError."""
        ...

    async def fence_token(self) -> FenceToken | None:
        """Deploy generation and epoch of the process that opened it last; None before that.

        Raises LocationError, CorruptData.
        """
        ...

    async def open(self, generation: int) -> ReadWriteCatalog:
        """Lead: fence the former leader, migrate, initialize. Raises FencedByGeneration, IncompatibleDataVersion,
        IncompatibleContentVersion, FencedByMigration."""
        ...

    async def open_savepoint(self, generation: int, *, allow_uninitialized: bool = False) -> ReadWriteCatalog:
        """The catalog as it would be, migrated, in memory only. Raises NotWritable and as ``open``."""
        ...

    async def open_read_only(self, *, freshness: Freshness = Freshness.NEWEST) -> ReadOnlyCatalog:
        """The catalog as it is. Raises Uninitialized, IncompatibleDataVersion (also when it would need a migration).

        ``freshness``: what it shows at least, now and after each ``sync``; who reads the rows itself sees the newest.
        """
        ...

    async def upgrade_check(self) -> Upgrade:
        """What opening with this release would change, without effect. Raises as ``open_read_only``, CorruptData."""
        ...

    async def dump(self, *, consolidated: bool = True, kinds: Iterable[str] | None = None) -> Dump:
        """All rows as they are durable, whatever their data version; of these tags only if given.

        Raises LocationError, CorruptData.
        """
        ...

    async def edit(self, kind: AnyKind, key: AnyKey, value: AnyValue) -> AnyValue:
        """Insert or change (None: delete) one object, fencing the leader; the previous value, or None.

        For repairs by hand: no rule but one value per key is checked, and that is so afterwards, whatever rows the key
        had before. Raises Uninitialized, IncompatibleDataVersion.
        """
        ...

    async def repair(self, *, commit: bool = False, token: FenceToken | None = None) -> Repair:
        """What makes a catalog whole that CorruptData keeps from being opened; with ``commit`` it is done.

        Each row is there once and each key has one value then: see ``Repair`` for what was wrong and what changes. An
        append fences the leader; where nothing is wrong nothing is done. With ``token`` the fence token is set back
        to this one, too, for a generation or epoch that went too far by mistake: every holder of a token before is
        fenced for ever, also where the same one comes again. Raises InvalidArgument through servers, and for a token
        that is not set back.
        """
        ...

    async def close(self) -> None:
        """Give back what is held; what was opened from it is of no use any more. Raises LocationError."""
        ...
