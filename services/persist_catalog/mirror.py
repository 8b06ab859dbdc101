"""Mirror: the rows of a catalog in memory as they are durable, and the newest changes of them, for many readers.

Rows stay bytes: a mirror serves catalogs of every data version, and returns rows without touching each. Source:
catalog-semantics.md sections 1.1 (change feed) and 1.2.3.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from persist.client.catalog.port import CatalogUpdates, Grouping, RowLog, StagedRows, Staging
from persist.client.catalog.raw import RawCatalog
from persist.client.catalog.same_history import check_same
from persist.core.catalog.objects import FenceToken
from persist.core.catalog.rows import Row, RowCodec, RowUpdate, by_time
from persist.errors import (
    CorruptData,
    Determinate,
    HistoryRewound,
    InvalidArgument,
    LocationError,
    NotReadable,
    PersistError,
)
from persist.runtime import Runtime

_log = logging.getLogger("persist.catalog")

TAIL_UPDATES: Final = 100_000
"""How many updates are remembered for those who follow."""
TAIL_BYTES: Final = 64 << 20
"""How many bytes they are, at most."""
UPDATE_BYTES: Final = 300
"""Of an update in memory, beside its key and its value."""
WAIT_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 0.5


class Mirror:
    """Follows a log, which nothing else may use, and closes it. ``raw`` is what it knows.

    All methods raise what the log raises, and CorruptData for ever once the log returned what cannot be.
    """

    def __init__(
        self,
        log: RowLog,
        codec: RowCodec,
        read: CatalogUpdates,
        *,
        runtime: Runtime,
        tail: int = TAIL_UPDATES,
        tail_bytes: int = TAIL_BYTES,
    ):
        """``tail``, ``tail_bytes``: the newest changes it remembers; earlier ones are read from the log."""
        self._log = log
        self._codec = codec
        self._runtime = runtime
        self._reading = asyncio.Lock()
        self._appending = asyncio.Lock()
        self._begun = self._done = 0
        self._moved = asyncio.Event()
        self._broken: CorruptData | None = None
        self._tail_max, self._bytes_max = tail, tail_bytes
        self._heard = False
        self._begin(read)

    @classmethod
    async def open(cls, log: RowLog, codec: RowCodec, *, runtime: Runtime) -> "Mirror":
        """A mirror of what is in the log now."""
        return cls(log, codec, await log.snapshot(), runtime=runtime)

    @property
    def upper(self) -> int:
        """What it knows is complete below this time."""
        return self.raw.upper

    @property
    def lower(self) -> int:
        """Updates from this time on are remembered."""
        return self._lower

    @property
    def history(self) -> int | None:
        """Which history of the catalog it shows, as the log says."""
        return self._log.history

    async def check_same(self, asked: int | None) -> None:
        """Nothing, if it shows the history that is asked for. Raises HistoryRewound, if that is over.

        Determinate while this mirror itself is behind a restore.
        """
        if asked is None or self.history is None or asked == self.history:
            return
        try:
            await self.sync()
        except HistoryRewound as error:
            raise Determinate("this server is behind a restore", hint="retry") from error
        check_same(asked, self.history, "at this server")

    @property
    def token(self) -> FenceToken | None:
        """Of the leader, as far as it knows."""
        return self.raw.token

    async def sync(self) -> int:
        """The upper, after what was committed before this call was taken over. Calls that overlap share readings."""
        asked = self._begun
        async with self._reading:
            self.check()
            if self._done > asked:
                return self.upper
            self._begun += 1
            reading = self._begun
            try:
                await self._read()
            except CorruptData as error:
                self._break(error)
                raise
            self._done = reading
            return self.upper

    async def at_least(self, upper: int | None) -> int:
        """The upper, which is this one or a later one: what is known already, if it is. None: as ``sync``.

        Raises InvalidArgument for an upper that the log does not have.
        """
        self.check()
        if upper is None:
            return await self.sync()
        if self.upper < upper and await self.sync() < upper:
            raise _untold(upper, self.upper)
        return self.upper

    async def follow(self) -> None:
        """Keep up until cancelled, however often the log fails, or until it returned what cannot be."""
        while True:
            upper = self.upper
            try:
                await self._log.changed(upper, WAIT_SECONDS)
                # What moved may be what this process appends, which it is about to get.
                async with self._appending:
                    pass
                if self.upper == upper:
                    await self.sync()
                else:
                    await self._release()
            except CorruptData as error:
                self._break(error)
                return
            except Exception as error:
                if not isinstance(error, PersistError):
                    _log.exception("following the catalog failed; going on")
                await self._runtime.sleep(PAUSE_SECONDS)

    async def changed(self, upper: int) -> None:
        """Wait until it knows more than up to ``upper``. For callers with a deadline; a task has to ``follow``."""
        while self.upper <= upper:
            self.check()
            await self._moved.wait()

    def since(self, lower: int) -> list[RowUpdate] | None:
        """All updates from ``lower`` to ``upper``; None when they are not remembered. Raises InvalidArgument."""
        times = self.times_since(lower)
        return None if times is None else [update for updates in times for update in updates]

    def times_since(self, lower: int) -> list[list[RowUpdate]] | None:
        """As ``since``, the net updates of each time by themselves."""
        if lower > self.upper:
            raise _untold(lower, self.upper)
        if lower < self._lower:
            return None
        found: deque[list[RowUpdate]] = deque()
        for times in reversed(self._tail):
            if times[-1].ts < lower:
                break
            found.appendleft(times)
        return list(found)

    async def changes(self, lower: int) -> CatalogUpdates:
        """As ``since``, from the log itself where they are not remembered. Raises NotReadable, InvalidArgument."""
        known = self.since(lower)
        if known is not None:
            return CatalogUpdates(known, self.upper)
        if lower == 0:
            raise NotReadable("a feed begins at a returned upper", hint="read the rows first", since=self._lower)
        async with self._reading:
            return await self._log.updates(lower)

    async def dump(self, kinds: Iterable[str] | None, *, consolidated: bool) -> CatalogUpdates:
        """Rows as they are durable, of all kinds or these."""
        if consolidated:
            return await self._log.snapshot(kinds)
        wanted = None if kinds is None else frozenset(kinds)
        read = await self._log.updates(0)
        return CatalogUpdates([each for each in read.updates if wanted is None or each.row.kind in wanted], read.upper)

    @property
    def appending(self) -> asyncio.Lock:
        """Held while this process appends what the mirror will get."""
        return self._appending

    def hear(self, times: Sequence[tuple[int, Sequence[tuple[Row, int]]]], expected_upper: int) -> None:
        """Take over what this process appended itself, unless something before it is missing."""
        if self.upper != expected_upper or self._broken is not None:
            return
        self._heard = True
        try:
            for ts, changes in times:
                self._take_one(changes, ts)
        except CorruptData as error:
            # What was appended is there, whatever is wrong with it here.
            self._break(error)
        self._wake()

    def check(self) -> None:
        """Nothing, while the log returned what can be. Raises CorruptData, for ever."""
        if self._broken is not None:
            raise _anew(self._broken)

    async def close(self) -> None:
        """Close the log."""
        await self._log.close()

    async def _read(self) -> None:
        lower = self.upper
        try:
            read = await self._log.updates(lower) if lower else None
        except NotReadable:
            # It was away for long. Who follows it has to begin anew, too.
            read = None
        if read is None:
            read = await self._log.snapshot()
            if read.upper > self.upper:
                self._begin(read)
                self._wake()
            return
        if read.upper > self.upper:
            # SUBTLE: what this process appended meanwhile was taken already.
            self._take([update for update in read.updates if update.ts >= self.upper], read.upper)
        else:
            await self._release()

    async def _release(self) -> None:
        """What was tapped was not read, so the log cannot know by itself that it is not needed any more."""
        if self._heard:
            self._heard = False
            with contextlib.suppress(LocationError):
                await self._log.forget(self.upper - 1)

    def _begin(self, read: CatalogUpdates) -> None:
        self.raw = RawCatalog(self._codec, read)
        self._lower = read.upper
        self._tail: deque[list[RowUpdate]] = deque()
        self._remembered = self._bytes = 0

    def _take(self, updates: Sequence[RowUpdate], upper: int) -> None:
        for ts, changes in by_time(updates):
            self._take_one(changes, ts)
        self.raw.upper = upper
        self._wake()

    def _take_one(self, changes: Sequence[tuple[Row, int]], ts: int) -> None:
        """The net changes of one time."""
        self.raw.apply(changes, ts + 1)
        self._remember([RowUpdate(row, ts, diff) for row, diff in changes])

    def _remember(self, updates: list[RowUpdate]) -> None:
        if not updates:
            return
        self._tail.append(updates)
        self._remembered += len(updates)
        self._bytes += _bytes_of(updates)
        # The newest stay however many they are: who appended them has yet to look at what they touch.
        while len(self._tail) > 1 and (self._remembered > self._tail_max or self._bytes > self._bytes_max):
            gone = self._tail.popleft()
            self._remembered -= len(gone)
            self._bytes -= _bytes_of(gone)
            self._lower = gone[-1].ts + 1

    def _break(self, error: CorruptData) -> None:
        # Anew: the traceback would hold what was read.
        self._broken = self._broken or _anew(error)
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


def _bytes_of(updates: Iterable[RowUpdate]) -> int:
    return sum(UPDATE_BYTES + len(update.row.key) + len(update.row.value) for update in updates)


def _untold(got: int, upper: int) -> InvalidArgument:
    return InvalidArgument("this upper was never returned", hint="use one that was", got=got, upper=upper)


def _anew(error: CorruptData) -> CorruptData:
    """The same error: whether it is a restore (HistoryRewound) says to its server what to do."""
    return type(error)(error.message, hint=error.hint, **error.details)


class TappedLog:
    """A RowLog whose appends a mirror gets, so that it need not read them."""

    def __init__(self, log: RowLog, mirror: Mirror) -> None:
        self._log = log
        self._mirror = mirror
        self.upper, self.snapshot, self.updates = log.upper, log.snapshot, log.updates
        self.changed, self.forget, self.close = log.changed, log.forget, log.close
        if isinstance(log, Grouping):
            self._append_all = log.append_all
            self.append_all = self._appended_all
        if isinstance(log, Staging):
            self._append_staged = log.append_staged
            self.stage, self.append_staged = log.stage, self._appended_staged

    @property
    def history(self) -> int | None:
        """See RowLog."""
        return self._log.history

    async def append(self, changes: Sequence[tuple[Row, int]], ts: int, *, expected_upper: int) -> int | None:
        """See RowLog."""
        async with self._mirror.appending:
            found = await self._log.append(changes, ts, expected_upper=expected_upper)
            if found is None:
                self._mirror.hear([(ts, changes)], expected_upper)
        return found

    async def _appended_staged(
        self, staged: StagedRows, rest: Sequence[tuple[Row, int]], ts: int, *, expected_upper: int
    ) -> int | None:
        """See Staging, for a log that is one."""
        async with self._mirror.appending:
            found = await self._append_staged(staged, rest, ts, expected_upper=expected_upper)
            if found is None:
                self._mirror.hear([(ts, [*staged.rows, *rest])], expected_upper)
        return found

    async def _appended_all(
        self, times: Sequence[tuple[int, Sequence[tuple[Row, int]]]], *, expected_upper: int
    ) -> int | None:
        """See Grouping, for a log that is one."""
        async with self._mirror.appending:
            found = await self._append_all(times, expected_upper=expected_upper)
            if found is None:
                self._mirror.hear(times, expected_upper)
        return found
