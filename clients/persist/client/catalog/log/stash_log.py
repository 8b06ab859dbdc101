"""A RowLog in the tables of a SQL database: a catalog without any shard, on SQLite or PostgreSQL.

Source: design document 2, stash implementation; docs/formats.md, stash.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from persist.client.catalog.port import CatalogUpdates, RowLog
from persist.core.catalog.rows import Row, RowUpdate
from persist.errors import CorruptData, HistoryRewound, LocationError
from persist.retry.attempts import Attempts, Call, Doubt
from persist.runtime import Runtime, system
from persist.settings import Settings
from persist.storage.open import open_stash, safe
from persist.storage.stash.port import Stash, StashRow, StashRows, check_environment
from persist.wire.checksum import crc32c

T = TypeVar("T")

FORGET_EVERY: Final = 64
"""Of so many calls of ``forget`` one does anything: they come with every commit."""

_STEPS_MAX: Final = 16
_FORGET_SECONDS: Final = 5.0
"""How many steps one ``forget`` takes at most, and how long each."""

_POLL_FIRST_SECONDS: Final = 0.005
_POLL_MAX_SECONDS: Final = 0.1


async def open_stash_log(
    uri: str, environment: str, *, settings: Settings | None = None, runtime: Runtime | None = None
) -> RowLog:
    """The rows of an environment in the database at ``sqlite:PATH`` or ``postgres://user@host:port/database``.

    SQLite takes ``?mode=ro`` and ``?max_pages=N``. Tables are made when missing; any number of environments share
    them. Raises InvalidUri, InvalidArgument (no environment has this name), UnsafeConfiguration (the database could
    lose acknowledged data; ``settings.allow_unsafe`` accepts findings by name), LocationError, VersionMismatch.
    """
    chosen, clock = settings or Settings(), runtime or system()
    name = check_environment(environment)
    stash = open_stash(uri, runtime=clock)
    try:
        await safe((stash,), settings=chosen, runtime=clock)
        log = StashLog(stash, name, settings=chosen, runtime=clock)
        await log.upper()
    except BaseException:
        await stash.close()
        raise
    return log


class StashLog:
    """The RowLog of one environment in a Stash, which it owns.

    Raises HistoryRewound when the database shows an older upper than this log has seen, CorruptData for rows whose
    checksum is wrong. ``changed`` looks every tenth of a second.
    """

    def __init__(self, stash: Stash, environment: str, *, settings: Settings, runtime: Runtime) -> None:
        self._stash = stash
        self._environment = environment
        self._runtime = runtime
        self._attempts = Attempts(settings=settings, runtime=runtime)
        self._attempt_ms = settings.store_timeout_ms
        """The longest attempt at what is short, so that time is left to learn what became of it."""
        self._seen = 0
        self._forgotten = 0

    def __repr__(self) -> str:
        return f"StashLog({self._stash.uri!r}, {self._environment!r})"

    @property
    def history(self) -> int | None:
        return None

    async def upper(self) -> int:
        before = self._seen
        upper = await self._repeat(
            lambda seconds: self._stash.upper(self._environment, timeout=seconds), limit_ms=self._attempt_ms
        )
        return self._advanced(before, upper)

    async def snapshot(self, kinds: Iterable[str] | None = None) -> CatalogUpdates:
        before = self._seen
        chosen = None if kinds is None else sorted(set(kinds))
        found = await self._repeat(lambda seconds: self._stash.snapshot(self._environment, chosen, timeout=seconds))
        return self._checked(before, found)

    async def updates(self, lower: int) -> CatalogUpdates:
        before = self._seen
        found = await self._repeat(lambda seconds: self._stash.updates(self._environment, lower, timeout=seconds))
        return self._checked(before, found)

    async def append(self, changes: Sequence[tuple[Row, int]], ts: int, *, expected_upper: int) -> int | None:
        before, doubt, token = self._seen, Doubt(), self._runtime.random_bytes(16)
        rows = [StashRow(*row, _crc(row), ts, diff) for row, diff in _net(changes)]

        async def attempt(seconds: float) -> int | None:
            # Once an answer was lost the token shows what became of it.
            return await self._stash.append(
                self._environment,
                rows,
                expected=expected_upper,
                ts=ts,
                token=token,
                again=doubt.maybe_applied,
                timeout=seconds,
            )

        upper = await self._repeat(attempt, doubt=doubt, limit_ms=self._attempt_ms)
        if upper is not None:
            return self._advanced(before, upper)
        self._advanced(before, ts + 1)
        return None

    async def changed(self, upper: int, timeout: float) -> None:
        end = self._runtime.monotonic() + timeout
        pause = _POLL_FIRST_SECONDS
        while await self.upper() <= upper and (left := end - self._runtime.monotonic()) > 0:
            await self._runtime.sleep(min(pause, left))
            pause = min(pause * 2, _POLL_MAX_SECONDS)

    async def forget(self, to: int) -> None:
        calls, self._forgotten = self._forgotten, self._forgotten + 1
        if calls % FORGET_EVERY:
            return
        # Not retried, nor is a failure reported: nothing is lost but room, and the next one goes on from there.
        with contextlib.suppress(LocationError):
            steps = 0
            while steps < _STEPS_MAX and await self._stash.forget(self._environment, to, timeout=_FORGET_SECONDS):
                steps += 1

    async def close(self) -> None:
        await self._stash.close()

    async def _repeat(self, call: Call[T], *, doubt: Doubt | None = None, limit_ms: int | None = None) -> T:
        return await self._attempts.repeat(self._attempts.deadline(None), call, doubt=doubt, limit_ms=limit_ms)

    def _advanced(self, before: int, upper: int) -> int:
        """``before``: what was seen when the call began; it may have been overtaken by others of this log since."""
        if upper < before:
            raise HistoryRewound(
                "the stash shows an older history than was seen",
                hint="stop: a backup was restored, or this is another database",
                environment=self._environment,
                upper=upper,
                seen=before,
            )
        self._seen = max(self._seen, upper)
        return upper

    def _checked(self, before: int, found: StashRows) -> CatalogUpdates:
        self._advanced(before, found.upper)
        return CatalogUpdates([_update(row, found.upper) for row in found.rows], found.upper)


def _update(found: StashRow, upper: int) -> RowUpdate:
    kind, key, value, crc, ts, diff = found
    row = Row(kind, key, value)
    # SQLite puts any type into any column.
    whole = list(map(type, found)) == [str, bytes, bytes, int, int, int] and crc == _crc(row)
    if not whole or not 0 <= ts < upper:
        raise CorruptData("a row of the stash is not what was written", hint="stop and restore it", kind=kind, ts=ts)
    return RowUpdate(row, ts, diff)


def _crc(row: Row) -> int:
    # Length first, so that no byte can change sides.
    return crc32c(b"%s\0%d\0%s%s" % (row.kind.encode(), len(row.key), row.key, row.value))


def _net(changes: Iterable[tuple[Row, int]]) -> list[tuple[Row, int]]:
    sums: defaultdict[Row, int] = defaultdict(int)
    for row, diff in changes:
        sums[row] += diff
    return [(row, diff) for row, diff in sums.items() if diff]
