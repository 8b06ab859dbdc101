"""ShadowCatalog: two catalogs that must do the same, to test one implementation by another.

Everything is done to both and compared: first whether it failed and how, then what it returned; after each commit all
objects and all rows. A difference is reported at once, by ShadowDiffers. Only times may differ: who made or advanced
one of the two alone leaves other uppers and other readings of oracles. Opening repairs that, by the greater one.

Both sides see one order: all shadows of an event loop take turns. Those of several processes do not, so that one of
them leads at a time, and a process that dies in between may leave two catalogs that differ: this is a tool for tests.
Source: design document 2, shadow implementation; catalog-semantics.md section 1.2.11.
"""

from collections.abc import Awaitable, Callable, Iterable

from persist.client.catalog.port import Dump, Freshness, OpenableCatalog, Repair
from persist.client.catalog.shadow.comparison import rows_of, same_outcome
from persist.client.catalog.shadow.opened import ShadowOpened, called, compared, whole
from persist.client.shard.handles import Closes
from persist.core.catalog.kinds import AnyKind
from persist.core.catalog.leadership.migrations import Upgrade
from persist.core.catalog.objects import FenceToken
from persist.runtime import Runtime, system
from persist.typed import AnyKey, AnyValue


class ShadowCatalog(Closes):
    """The OpenableCatalog over two others, which it owns. Answers with what the first says. Raises ShadowDiffers."""

    _noun = "catalog"
    _again = "make it again"

    def __init__(self, first: OpenableCatalog, second: OpenableCatalog, *, runtime: Runtime | None = None) -> None:
        self._sides = (first, second)
        self._runtime = runtime or system()

    async def is_initialized(self) -> bool:
        """See OpenableCatalog."""
        return bool(await self._both("is_initialized", lambda it: it.is_initialized()))

    async def fence_token(self) -> FenceToken | None:
        """See OpenableCatalog."""
        token: FenceToken | None = await self._both("fence_token", lambda it: it.fence_token())
        return token

    async def open(self, generation: int) -> ShadowOpened:
        """See OpenableCatalog. Times that differ are repaired."""
        return await self._opened("open", lambda it: it.open(generation))

    async def open_savepoint(self, generation: int, *, allow_uninitialized: bool = False) -> ShadowOpened:
        """See OpenableCatalog. Times that differ are repaired in its memory."""
        return await self._opened(
            "open_savepoint", lambda it: it.open_savepoint(generation, allow_uninitialized=allow_uninitialized)
        )

    async def open_read_only(self, *, freshness: Freshness = Freshness.NEWEST) -> ShadowOpened:
        """See OpenableCatalog. Times that differ stay, are not compared, and those of the first are returned."""
        return await self._opened("open_read_only", lambda it: it.open_read_only(freshness=freshness))

    async def upgrade_check(self) -> Upgrade:
        """See OpenableCatalog."""
        upgrade: Upgrade = await self._both("upgrade_check", lambda it: it.upgrade_check())
        return upgrade

    async def dump(self, *, consolidated: bool = True, kinds: Iterable[str] | None = None) -> Dump:
        """See OpenableCatalog. Net rows are compared, as the logs may have consolidated up to different times."""
        chosen = None if kinds is None else list(kinds)
        dump: Dump = await self._both(
            "dump", lambda it: it.dump(consolidated=consolidated, kinds=chosen), lambda it: rows_of(it, times=False)
        )
        return dump

    async def edit(self, kind: AnyKind, key: AnyKey, value: AnyValue) -> AnyValue:
        """See OpenableCatalog."""
        previous = await self._both(f"edit {kind}", lambda it: it.edit(kind, key, value))
        await self.dump()
        return previous

    async def repair(self, *, commit: bool = False, token: FenceToken | None = None) -> Repair:
        """See OpenableCatalog. Each side has its own damage, so only whether it could be looked at is compared."""
        done: Repair = await self._both("repair", lambda it: it.repair(commit=commit, token=token), type)
        return done

    async def close(self) -> None:
        """See OpenableCatalog."""
        await self._both("close", lambda it: it.close())

    async def _both(
        self,
        what: str,
        call: Callable[[OpenableCatalog], Awaitable[AnyValue]],
        seen: Callable[[AnyValue], AnyValue] = lambda value: value,
    ) -> AnyValue:
        return await whole(compared(what, self._sides, call, seen))

    async def _opened(self, what: str, call: Callable[[OpenableCatalog], Awaitable[AnyValue]]) -> ShadowOpened:
        async def work() -> ShadowOpened:
            first, second = await called(self._sides, call)
            same_outcome(what, first, second, lambda it: (it.mode, it.token))
            opened = ShadowOpened(first.get(), second.get(), self._runtime)
            await opened.begin(what)
            return opened

        return await whole(work())
