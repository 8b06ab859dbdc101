"""The catalog over any log of rows: what can be known of it before it is open, and opening it.

Source: catalog-semantics.md sections 1.2.1, 1.2.2, 1.2.5, 1.2.7 and 1.2.12; reliability.md I16.
"""

from collections.abc import Iterable
from dataclasses import replace

from persist.client.catalog.build_objects import load
from persist.client.catalog.edits import edit
from persist.client.catalog.log.savepoint_log import ForkedLog
from persist.client.catalog.opened import OpenedCatalog, dump
from persist.client.catalog.port import Dump, Freshness, Repair, RowLog, check_freshness
from persist.client.catalog.raw import FROZEN_TAGS, RawCatalog
from persist.client.catalog.repairs import repair
from persist.client.catalog.take_over import begin_or_renew, migrate, orphans, take_over
from persist.client.shard.handles import Closes
from persist.core.catalog.errors import IncompatibleDataVersion
from persist.core.catalog.kinds import FENCE_TOKEN, AnyKind
from persist.core.catalog.leadership.fencing import FenceClaim, open_step
from persist.core.catalog.leadership.migrations import Migrations, Upgrade
from persist.core.catalog.objects import FenceToken
from persist.core.catalog.open_rules import Mode, check_open
from persist.core.catalog.rows import RowCodec
from persist.core.release import RELEASE
from persist.errors import CorruptData, PersistError
from persist.typed import AnyKey, AnyValue
from persist.wire.catalog.migrations import MIGRATIONS
from persist.wire.catalog.rows import CODEC


class DurableCatalog(Closes):
    """The OpenableCatalog over a log, which it closes when it is closed. What it opened is of no use afterwards.

    ``content_version``: the release that goes on with the catalog, as a semantic version.
    """

    _noun = "catalog"
    _again = "ask the client for it again"

    def __init__(
        self,
        log: RowLog,
        *,
        content_version: str = RELEASE,
        codec: RowCodec = CODEC,
        migrations: Migrations = MIGRATIONS,
    ) -> None:
        self._log = log
        self._content_version = content_version
        self._codec = codec
        self._migrations = migrations

    async def is_initialized(self) -> bool:
        """See OpenableCatalog."""
        return (await self._frozen()).is_initialized

    async def fence_token(self) -> FenceToken | None:
        """See OpenableCatalog."""
        return (await self._frozen()).token

    async def fence(self) -> tuple[FenceToken | None, int]:
        """The token of the process that opened it last, and the incarnation of the fence: how often it was set back."""
        frozen = await self._frozen()
        return frozen.token, frozen.incarnation

    async def open(self, generation: int) -> OpenedCatalog:
        """See OpenableCatalog."""
        check_open(Mode.WRITABLE, generation, initialized=True)
        log, raw = self._log, await self._raw()
        token = await take_over(log, self._codec, raw, generation, lambda: self._check_versions(raw))
        return await self._opened(log, raw, Mode.WRITABLE, FenceClaim(generation, token, raw.incarnation), token)

    async def open_savepoint(self, generation: int, *, allow_uninitialized: bool = False) -> OpenedCatalog:
        """See OpenableCatalog."""
        log = ForkedLog(await self._log.snapshot())
        raw = RawCatalog(self._codec, await log.updates(0))
        check_open(Mode.SAVEPOINT, generation, initialized=raw.is_initialized, allow_uninitialized=allow_uninitialized)
        self._check_versions(raw)
        token = raw.token
        # It would not be allowed to lead: a newer deployment does.
        open_step(token, generation)
        return await self._opened(log, raw, Mode.SAVEPOINT, FenceClaim(None), token)

    async def open_read_only(self, *, freshness: Freshness = Freshness.NEWEST) -> OpenedCatalog:
        """See OpenableCatalog."""
        check_freshness(freshness)
        raw = await self._raw()
        check_open(Mode.READ_ONLY, None, initialized=raw.is_initialized)
        self._check_versions(raw)
        self._check_current(raw)
        return await self._opened(self._log, raw, Mode.READ_ONLY, FenceClaim(None), raw.token)

    async def upgrade_check(self) -> Upgrade:
        """See OpenableCatalog."""
        log = ForkedLog(await self._log.snapshot())
        raw = RawCatalog(self._codec, await log.updates(0))
        check_open(Mode.READ_ONLY, None, initialized=raw.is_initialized)
        self._check_versions(raw)
        upgrade = self._migrations.check(raw.rows)
        # What decodes may still not open: names that clash, say.
        await self._opened(log, raw, Mode.SAVEPOINT, FenceClaim(None), raw.token)
        return upgrade

    async def dump(self, *, consolidated: bool = True, kinds: Iterable[str] | None = None) -> Dump:
        """See OpenableCatalog."""
        return await dump(self._log, consolidated=consolidated, kinds=kinds)

    async def edit(self, kind: AnyKind, key: AnyKey, value: AnyValue) -> AnyValue:
        """See OpenableCatalog."""
        return await edit(self._log, self._codec, kind, key, value, self._check_current)

    async def repair(self, *, commit: bool = False, token: FenceToken | None = None) -> Repair:
        """See OpenableCatalog."""
        done = await repair(self._log, self._codec, commit=commit, token=token)
        try:
            await DurableCatalog(
                ForkedLog(done.mended),
                content_version=self._content_version,
                codec=self._codec,
                migrations=self._migrations,
            ).upgrade_check()
        except PersistError as error:
            # What was done is reported whatever else is wrong, such as that this is another release's catalog.
            if not done.damages and not isinstance(error, CorruptData):
                raise
            return replace(done, left=str(error))
        return done

    async def close(self) -> None:
        """See OpenableCatalog."""
        await self._log.close()

    def __repr__(self) -> str:
        return f"<Catalog over {self._log}>"

    async def _opened(
        self, log: RowLog, raw: RawCatalog, mode: Mode, claim: FenceClaim, token: FenceToken | None
    ) -> OpenedCatalog:
        if mode is not Mode.READ_ONLY:
            await migrate(log, raw, self._migrations, claim)
            await begin_or_renew(log, self._codec, raw, self._migrations, self._content_version, claim)
        snapshot = await load(self._codec, raw)
        version = self._migrations.current
        opened = OpenedCatalog(
            log, self._codec, snapshot, mode=mode, upper=raw.upper, version=version, claim=claim, token=token
        )
        opened._belongs_to = self
        if mode is not Mode.READ_ONLY:
            await opened.reclaim(orphans(self._codec, snapshot))
        return opened

    async def _raw(self) -> RawCatalog:
        return RawCatalog(self._codec, await self._log.snapshot())

    async def _frozen(self) -> RawCatalog:
        # Who leads is to be known of a damaged catalog, too.
        return RawCatalog.mended(self._codec, await self._log.snapshot(FROZEN_TAGS))

    def _check_versions(self, raw: RawCatalog) -> None:
        """Whether this release may go on. Raises IncompatibleContentVersion, IncompatibleDataVersion, CorruptData."""
        if raw.rows.keys() - {FENCE_TOKEN.tag}:
            self._migrations.version(raw.rows)
            raw.check_content_version(self._content_version)

    def _check_current(self, raw: RawCatalog) -> None:
        """Whether this release reads it as it is. Raises IncompatibleDataVersion."""
        found = self._migrations.version(raw.rows)
        if found != self._migrations.current:
            raise IncompatibleDataVersion(
                "the catalog needs a migration",
                hint="open it writable with this release first",
                found=found,
                min=self._migrations.current,
                current=self._migrations.current,
            )
