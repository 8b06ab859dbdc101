"""Two open catalogs as one: what is returned is what both return, and after each commit they are the same.

Source: catalog-semantics.md section 1.2.11.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from persist.client.catalog.port import Dump, LedCatalog, ReadOnlyCatalog, ReadWriteCatalog
from persist.client.catalog.shadow.comparison import (
    ShadowOutcome,
    Told,
    net_changes,
    outcome_of,
    rows_of,
    same,
    same_contents,
    same_outcome,
)
from persist.client.catalog.shadow.transaction import ShadowTransaction
from persist.core.catalog.errors import OutOfSync
from persist.core.catalog.kinds import TIMESTAMP, AnyKind, Kind
from persist.core.catalog.leadership.fencing import FenceClaim
from persist.core.catalog.objects import AuditLogKey, FenceToken, StorageUsageKey, Timestamp
from persist.core.catalog.open_rules import Mode
from persist.core.catalog.transaction import CatalogTransaction, foreign
from persist.core.ids import Token
from persist.runtime import Runtime
from persist.typed import AnyValue

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

_POLL_SECONDS: Final = 0.01
_LEVEL_TRIES: Final = 200
"""How often the side that is behind is asked whether it has caught up, where others commit meanwhile."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class ShadowOpened:
    """Two open catalogs, as one. With Mode.READ_ONLY a ReadOnlyCatalog, which refuses to write."""

    def __init__(self, first: ReadWriteCatalog, second: ReadWriteCatalog, runtime: Runtime) -> None:
        self._first = first
        self._second = second
        self._sides = (first, second)
        self._runtime = runtime
        self._moving = 0
        self._times = True
        self._untold: Told = []

    @property
    def mode(self) -> Mode:
        """See ReadOnlyCatalog."""
        return self._first.mode

    @property
    def token(self) -> FenceToken | None:
        """See ReadOnlyCatalog."""
        return self._first.token

    @property
    def claim(self) -> FenceClaim:
        """See LedCatalog: the first side's, which opens first."""
        assert isinstance(self._first, LedCatalog)
        return self._first.claim

    @property
    def upper(self) -> int:
        """See ReadOnlyCatalog."""
        return int(self._now("upper", lambda it: it.upper, timely=True))

    @property
    def history(self) -> int | None:
        """See ReadOnlyCatalog. That of its shard: a stash has none."""
        return self._first.history

    def get(self, kind: Kind[K, V], key: K) -> V | None:
        """See ReadOnlyCatalog."""
        value: V | None = self._now(f"get {kind} {key}", lambda it: it.get(kind, key), timely=kind is TIMESTAMP)
        return value

    def objects(self, kind: Kind[K, V]) -> Mapping[K, V]:
        """See ReadOnlyCatalog."""
        found: Mapping[K, V] = self._now(f"objects {kind}", lambda it: it.objects(kind), timely=kind is TIMESTAMP)
        return found

    def count(self, kind: AnyKind) -> int:
        """See ReadOnlyCatalog."""
        return int(self._now(f"count {kind}", lambda it: it.count(kind), timely=kind is TIMESTAMP))

    async def sync(self, target: int | None = None, *, timeout: float | None = None) -> Told:
        """See ReadOnlyCatalog. Compared is what changed in all, and where both are then. Looks every 10 ms."""
        end = None if timeout is None else self._runtime.monotonic() + timeout
        if self.mode is Mode.SAVEPOINT:
            told: Told = await self._both("sync", lambda it: it.sync(target, timeout=timeout), net_changes)
            return told
        while True:
            await self._moved(self._levelled)
            if target is None or self._first.upper >= target:
                told, self._untold = self._untold, []
                return told
            if end is not None and self._runtime.monotonic() >= end:
                raise TimeoutError
            await self._runtime.sleep(_POLL_SECONDS)

    async def audit_logs(self) -> list[AuditLogKey]:
        """See ReadOnlyCatalog."""
        events: list[AuditLogKey] = await self._both("audit_logs", lambda it: it.audit_logs())
        return events

    async def storage_usage(self) -> list[StorageUsageKey]:
        """See ReadOnlyCatalog."""
        usage: list[StorageUsageKey] = await self._both("storage_usage", lambda it: it.storage_usage())
        return usage

    async def dump(self, *, consolidated: bool = True, kinds: Iterable[str] | None = None) -> Dump:
        """See ReadOnlyCatalog. Compared are net rows, as by ShadowCatalog."""
        chosen = None if kinds is None else list(kinds)
        dump: Dump = await self._both("dump", lambda it: it.dump(consolidated=consolidated, kinds=chosen), self._rows)
        return dump

    async def close(self) -> None:
        """See ReadOnlyCatalog."""
        await self._both("close", lambda it: it.close())

    # ---- writing -----------------------------------------------------------------------------------------------------

    def transaction(self, *, token: Token | None = None) -> CatalogTransaction:
        """See ReadWriteCatalog. A ShadowTransaction: functions given to it run twice."""
        quiet = self._is_quiet()
        second = self._second.transaction(token=token) if quiet else None
        return ShadowTransaction(self, self._first.transaction(token=token), second, self._is_quiet)

    async def commit(self, transaction: CatalogTransaction, *, ts: int = 0) -> int:
        """See ReadWriteCatalog. Afterwards all objects and all rows are compared."""
        if not isinstance(transaction, ShadowTransaction) or transaction.owner is not self:
            raise foreign()

        async def work() -> int:
            second = transaction.second
            if second is None:
                return await self._commit_late(transaction, ts)
            own = {self._first: transaction.first, self._second: second}
            upper = await self._compared("commit", lambda it: it.commit(own[it], ts=ts))
            await self._same_everything("commit")
            return int(upper)

        return int(await self._moved(work))

    async def set(self, kind: Kind[K, V], objects: Mapping[K, V | None]) -> int:
        """See ReadWriteCatalog."""
        wanted = dict(objects)
        return int(await self._written(f"set {kind}", lambda it: it.set(kind, wanted)))

    async def allocate(self, name: str, count: int = 1) -> range:
        """See ReadWriteCatalog."""
        ids: range = await self._written(f"allocate {name}", lambda it: it.allocate(name, count))
        return ids

    async def confirm_leadership(self) -> None:
        """See ReadWriteCatalog."""
        await self._both("confirm_leadership", lambda it: it.confirm_leadership())

    async def advance_upper(self, to: int) -> None:
        """See ReadWriteCatalog."""
        await self._written("advance_upper", lambda it: it.advance_upper(to))

    async def prune_storage_usage(self, retention_ms: int | None, boot_ms: int) -> list[StorageUsageKey]:
        """See ReadWriteCatalog."""
        kept: list[StorageUsageKey] = await self._written(
            "prune_storage_usage", lambda it: it.prune_storage_usage(retention_ms, boot_ms)
        )
        return kept

    # ---- inside, with the turn --------------------------------------------------------------------------------------

    async def begin(self, what: str) -> None:
        """Repair the times, or see that they cannot be, and compare everything. With the turn, before it is used."""
        if self.mode is Mode.READ_ONLY:
            first, second = (it.objects(TIMESTAMP) for it in self._sides)
            self._times = self._first.upper == self._second.upper and first == second
        else:
            await self._repair_times()
        await self._same_everything(what)

    async def _repair_times(self) -> None:
        first, second = (dict(it.objects(TIMESTAMP)) for it in self._sides)
        for own, side in ((first, self._first), (second, self._second)):
            behind = {
                timeline: later
                for timeline in first.keys() | second.keys()
                if (later := _later(first.get(timeline), second.get(timeline))) != own.get(timeline)
            }
            if behind:
                await side.set(TIMESTAMP, behind)
        upper = max(it.upper for it in self._sides)
        for side in self._sides:
            if side.upper < upper:
                await side.advance_upper(upper)

    async def _commit_late(self, transaction: ShadowTransaction, ts: int) -> int:
        """Commit what was made while the catalogs moved: the first decides, the second must agree.

        Its operations are repeated on the second before the first goes on, so from the same state as it has. What the
        first refuses because of what came meanwhile, the second is not asked.
        """
        try:
            transaction.first.refresh()
        except OutOfSync:
            # It refuses, or finds the token of what was committed before: nothing is written either way.
            return await self._first.commit(transaction.first, ts=ts)
        second = transaction.replayed(self._second.transaction(token=transaction.token))
        own = {self._first: transaction.first, self._second: second}
        upper = await self._compared("commit", lambda it: it.commit(own[it], ts=ts))
        await self._same_everything("commit")
        return int(upper)

    async def _levelled(self) -> None:
        """Follow on both sides until they are at one upper: who commits to both is seen by one of them first."""
        told: tuple[Told, Told] = ([], [])
        for attempt in range(_LEVEL_TRIES):
            if attempt:
                await self._runtime.sleep(_POLL_SECONDS)
            first, second = await called(self._sides, lambda it: it.sync())
            for side, outcome in zip(told, (first, second), strict=True):
                side += outcome.value or []
            same_outcome("sync", first, second, lambda _: None)
            if not self._times or self._first.upper == self._second.upper:
                break
        self._untold += told[0]
        same("changes by sync", *map(self._timeless, told))
        same_contents("sync", self._first, self._second, times=self._times)

    def _timeless(self, told: Told) -> Mapping[AnyValue, AnyValue]:
        return {of: change for of, change in net_changes(told).items() if self._times or of[0] is not TIMESTAMP}

    async def _same_everything(self, what: str) -> None:
        same_contents(what, self._first, self._second, times=self._times)
        await self._compared(f"rows after {what}", lambda it: it.dump(), self._rows)

    def _rows(self, dump: Dump) -> Mapping[AnyValue, int]:
        rows: dict[Any, int] = dict(rows_of(dump, times=self._times))
        if self._times and self.mode is not Mode.READ_ONLY:
            # Where the log is: memory may say otherwise. A reader's may be on its way, moved by another process.
            rows["upper"] = dump.upper
        return rows

    def _is_quiet(self) -> bool:
        return not self._moving

    def _now(self, what: str, call: Callable[[ReadOnlyCatalog], object], *, timely: bool) -> AnyValue:
        """What is in memory; compared unless the sides are on their way, or it is a time and those differ."""
        first = outcome_of(lambda: call(self._first))
        if self._moving or (timely and not self._times):
            return first.get()
        return same_outcome(what, first, outcome_of(lambda: call(self._second)))

    async def _written(self, what: str, call: Callable[[ReadWriteCatalog], Awaitable[object]]) -> AnyValue:
        async def work() -> AnyValue:
            value = await self._compared(what, call)
            await self._same_everything(what)
            return value

        return await self._moved(work)

    async def _both(
        self,
        what: str,
        call: Callable[[ReadWriteCatalog], Awaitable[AnyValue]],
        seen: Callable[[AnyValue], AnyValue] = lambda value: value,
    ) -> AnyValue:
        return await self._moved(lambda: self._compared(what, call, seen))

    async def _compared(
        self,
        what: str,
        call: Callable[[ReadWriteCatalog], Awaitable[AnyValue]],
        seen: Callable[[AnyValue], AnyValue] = lambda value: value,
    ) -> AnyValue:
        return await compared(what, self._sides, call, seen)

    async def _moved(self, work: Callable[[], Awaitable[T]]) -> T:
        async def moving() -> T:
            self._moving += 1
            try:
                return await work()
            finally:
                self._moving -= 1

        return await whole(moving())


async def whole(work: Awaitable[T]) -> T:
    """Do it in turn, to its end even if the caller goes away: half of it would be a difference."""

    async def in_turn() -> T:
        turn = _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with turn:
            return await work

    task = asyncio.ensure_future(in_turn())
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


async def called(sides: tuple[T, T], call: Callable[[T], Awaitable[AnyValue]]) -> tuple[ShadowOutcome, ShadowOutcome]:
    """What a call on both at once comes to. Raises what no caller handles, as cancellation."""

    async def outcome(side: T) -> ShadowOutcome:
        try:
            return ShadowOutcome(await call(side))
        except Exception as error:
            return ShadowOutcome(None, error)

    first, second = await asyncio.gather(*map(outcome, sides))
    return first, second


async def compared(
    what: str, sides: tuple[T, T], call: Callable[[T], Awaitable[AnyValue]], seen: Callable[[AnyValue], AnyValue]
) -> AnyValue:
    """What a call on both at once comes to, when that is the same. Raises ShadowDiffers, or as the first does."""
    first, second = await called(sides, call)
    return same_outcome(what, first, second, seen)


def _later(first: Timestamp | None, second: Timestamp | None) -> Timestamp:
    known = [each for each in (first, second) if each is not None]
    return Timestamp(max(it.read_ts for it in known), max(it.write_ts for it in known))
