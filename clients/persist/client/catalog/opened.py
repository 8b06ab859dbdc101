"""An open catalog: its objects in memory, kept up with a log of rows, and what may be written to it.

One lock serialises whatever looks at the log or writes to it, in the order of asking; transactions are made beside each
other. Source: catalog-semantics.md sections 1.2.1, 1.2.3 and 1.2.6 to 1.2.10.
"""

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from persist.client.catalog.build_objects import difference
from persist.client.catalog.commits import Commits
from persist.client.catalog.log.append import SnapshotMemory, append_all, staging
from persist.client.catalog.port import Dump, Grouping, RowLog, StagedRows, Staging
from persist.client.catalog.preparing import decoded, prepare
from persist.client.catalog.raw import RawCatalog, live_keys, versions
from persist.client.shard.handles import Closes
from persist.core.catalog.errors import Fenced, IncompatibleDataVersion, NotWritable, OutOfSync
from persist.core.catalog.kinds import AUDIT_LOG, STORAGE_USAGE, AnyKind, Kind, check_kind, check_object
from persist.core.catalog.leadership.commit_rules import (
    advanced_upper,
    audit_events,
    commit_ts,
    committed_at,
    split_usage,
)
from persist.core.catalog.leadership.fencing import FenceClaim
from persist.core.catalog.leadership.follow import follow
from persist.core.catalog.objects import AuditLogKey, FenceToken, StorageUsageKey
from persist.core.catalog.open_rules import Mode
from persist.core.catalog.prepared import Prepared
from persist.core.catalog.rows import Row, RowCodec, RowUpdate
from persist.core.catalog.snapshot import Change, Snapshot
from persist.core.catalog.transaction import Batch, CatalogTransaction
from persist.core.ids import Token
from persist.errors import CorruptData, HistoryRewound, InvalidArgument, NotReadable, PersistError, UsageError
from persist.typed import AnyValue

K = TypeVar("K")
V = TypeVar("V")

Told = list[tuple[int, tuple[Change, ...]]]

WAIT_SECONDS = 30.0
"""How long to wait for news before asking whether there is any."""


class OpenedCatalog(Closes):
    """The ReadWriteCatalog over any RowLog; with Mode.READ_ONLY a ReadOnlyCatalog, which refuses to write.

    A savepoint's log is in memory. ``claim`` says who may fence it, ``token`` what it leads with or found,
    ``version`` the data version of this release.
    """

    _noun = "open catalog"
    _again = "open it again"

    def __init__(
        self,
        log: RowLog,
        codec: RowCodec,
        snapshot: Snapshot,
        *,
        mode: Mode,
        upper: int,
        version: int,
        claim: FenceClaim,
        token: FenceToken | None,
    ) -> None:
        self._log = log
        self._codec = codec
        self._version = version
        self._snapshot = snapshot
        self._mode = mode
        self._upper = upper
        self._claim = claim
        self._token = token
        self._turn = asyncio.Lock()
        self._commits = Commits(snapshot, codec)
        self._ended: PersistError | None = None
        self._untold: Told = []
        self._staged: dict[int, tuple[Prepared, StagedRows]] = {}
        """What lies where it is durable of transactions that wait for their turn, by what they come down to."""

    @property
    def mode(self) -> Mode:
        """See ReadOnlyCatalog."""
        return self._mode

    @property
    def token(self) -> FenceToken | None:
        """See ReadOnlyCatalog."""
        return self._token

    @property
    def claim(self) -> FenceClaim:
        """What it may call its own."""
        return self._claim

    @property
    def upper(self) -> int:
        """See ReadOnlyCatalog."""
        return self._upper

    @property
    def history(self) -> int | None:
        """See ReadOnlyCatalog."""
        return self._log.history

    def get(self, kind: Kind[K, V], key: K) -> V | None:
        """See ReadOnlyCatalog."""
        _cached(kind)
        check_object(kind, key)
        self._snapshot.check()
        return self._snapshot.get(kind, key)

    def objects(self, kind: Kind[K, V]) -> Mapping[K, V]:
        """See ReadOnlyCatalog."""
        _cached(kind)
        self._snapshot.check()
        return dict(self._snapshot.objects(kind))

    def count(self, kind: AnyKind) -> int:
        """See ReadOnlyCatalog."""
        self._snapshot.check()
        return self._snapshot.count(kind)

    async def sync(self, target: int | None = None, *, timeout: float | None = None) -> Told:
        """See ReadOnlyCatalog. Changes taken over while time ran out are reported the next time."""
        async with asyncio.timeout(timeout):
            while True:
                async with self._turn:
                    await self._follow()
                if target is None or self._upper >= target:
                    break
                if self._mode is Mode.SAVEPOINT:
                    raise InvalidArgument(
                        "a savepoint goes on by its own commits only", target=target, upper=self._upper
                    )
                await self._log.changed(self._upper, WAIT_SECONDS)
        told, self._untold = self._untold, []
        return told

    async def audit_logs(self) -> list[AuditLogKey]:
        """See ReadOnlyCatalog."""
        async with self._turn:
            await self._look()
            return audit_events(await self._durable(AUDIT_LOG))

    async def storage_usage(self) -> list[StorageUsageKey]:
        """See ReadOnlyCatalog."""
        async with self._turn:
            await self._look()
            return split_usage(await self._durable(STORAGE_USAGE), 0, None)[0]

    async def dump(self, *, consolidated: bool = True, kinds: Iterable[str] | None = None) -> Dump:
        """See ReadOnlyCatalog. A savepoint's rows are those it was made from and its own."""
        async with self._turn:
            await self._look()
            return await dump(self._log, consolidated=consolidated, kinds=kinds)

    async def close(self) -> None:
        """See ReadOnlyCatalog. The log goes with the catalog this was opened from."""

    def __repr__(self) -> str:
        return f"<Catalog open as {self._mode.name.lower()} upper={self._upper} over {self._log}>"

    # ---- writing -----------------------------------------------------------------------------------------------------

    def transaction(self, *, token: Token | None = None) -> CatalogTransaction:
        """See ReadWriteCatalog."""
        self._check()
        return CatalogTransaction(self._snapshot, token=token)

    async def commit(self, transaction: CatalogTransaction, *, ts: int = 0) -> int:
        """See ReadWriteCatalog. A large one is made ready while others are committed."""
        if not transaction.is_large or not await self._prepare(transaction):
            async with self._turn:
                return await self._commit(transaction, ts)
        async with self.staged(transaction), self._turn:
            return await self._commit(transaction, ts)

    @contextlib.asynccontextmanager
    async def staged(self, transaction: CatalogTransaction) -> AsyncIterator[None]:
        """Have the rows of a large transaction, which is prepared, lie where they are durable before it takes its turn.

        To the end of the block. As an append of them names them then, the turn does not take longer for many. Nothing
        for a log that cannot, and where it is staged already. Raises RequestTooLarge, LocationError.
        """
        made = transaction.prepared
        if made is None or not isinstance(self._log, Staging) or id(made) in self._staged:
            yield
            return
        rows = await staging(self._log, made.rows)
        self._staged[id(made)] = made, rows
        try:
            yield
        finally:
            del self._staged[id(made)]
            await rows.release()

    async def commit_all(self, wanted: Sequence[tuple[CatalogTransaction, int]]) -> list[int | PersistError | None]:
        """What comes of transactions that do not depend on one another, each to be committed at a time or after it.

        The upper after it, why it is refused, or None: it is to be committed by itself. Those that are committed are by
        one append. Raises what that raises: what became of them is as unknown as of one.
        """
        async with self._turn:
            while True:
                self._check()
                found = self._together(wanted)
                times = [each for each in found if isinstance(each, tuple)]
                if len(times) < 2:
                    return [None if isinstance(each, tuple) else each for each in found]
                try:
                    done = await self._append_all(times)
                except UsageError:
                    # Of one of them, and nothing was appended: alone it is refused with the reason.
                    return [None if isinstance(each, tuple) else each for each in found]
                if done:
                    return [each[0] + 1 if isinstance(each, tuple) else each for each in found]
                await self._follow()

    async def set(self, kind: Kind[K, V], objects: Mapping[K, V | None]) -> int:
        """See ReadWriteCatalog."""
        async with self._turn:
            while True:
                transaction = self.transaction()
                transaction.set_all(kind, objects.items())
                with contextlib.suppress(OutOfSync):
                    return await self._commit(transaction)

    async def allocate(self, name: str, count: int = 1) -> range:
        """See ReadWriteCatalog."""
        async with self._turn:
            while True:
                transaction = self.transaction()
                ids = transaction.allocate(name, count)
                with contextlib.suppress(OutOfSync):
                    await self._commit(transaction)
                    return ids

    async def confirm_leadership(self) -> None:
        """See ReadWriteCatalog. Raises NotWritable when it was opened for reading."""
        self._check_writable()
        async with self._turn:
            await self._follow()

    async def advance_upper(self, to: int) -> None:
        """See ReadWriteCatalog. Raises NotWritable when it was opened for reading."""
        self._check_writable()
        async with self._turn:
            # An append that no other came before shows that no other process leads. Otherwise the log must be asked.
            while (upper := advanced_upper(self._upper, to)) is not None:
                if await self._append([], upper - 1):
                    return
                await self._follow()
            await self._follow()

    async def prune_storage_usage(self, retention_ms: int | None, boot_ms: int) -> list[StorageUsageKey]:
        """See ReadWriteCatalog."""
        self._check_writable()
        async with self._turn:
            while True:
                await self._follow()
                transaction = self.transaction()
                keep, gone = split_usage(await self._durable(STORAGE_USAGE), boot_ms, retention_ms)
                for measured in gone:
                    transaction.retract(STORAGE_USAGE, measured)
                if await self._try(transaction):
                    return keep

    async def _prepare(self, transaction: CatalogTransaction) -> bool:
        """Whether it is to be committed yet: if so it is ready now. Raises OutOfSync, Fenced, InvalidArgument."""
        self._check()
        transaction.check_made_from(self._snapshot)
        if committed_at(self._snapshot, transaction, self._codec) is not None:
            return False
        await prepare(transaction, self._codec)
        return True

    # ---- inside, with the turn --------------------------------------------------------------------------------------

    async def reclaim(self, changes: list[tuple[Row, int]]) -> None:
        """Commit changes that opening makes, before any other user has this catalog. Raises Fenced."""
        async with self._turn:
            if changes and not await self._append(changes, self._upper):
                await self._follow()
                raise OutOfSync("another process moved the catalog while it was opened", hint="open it again")

    async def _commit(self, transaction: CatalogTransaction, ts: int = 0) -> int:
        self._check()
        transaction.check_made_from(self._snapshot)
        while True:
            self._check()
            # SUBTLE: before the transaction looks at what came meanwhile, which may be itself.
            done = committed_at(self._snapshot, transaction, self._codec)
            if done is not None:
                return done + 1
            if await self._try(transaction, ts):
                return self._upper

    async def _try(self, transaction: CatalogTransaction, ts: int = 0) -> bool:
        """Whether it is committed now, or has nothing to commit; if not, look again at what came first."""
        self._check()
        if transaction.is_large:
            await prepare(transaction, self._codec)
        batch = transaction.batch()
        at = commit_ts(self._mode, batch, self._snapshot, ts, self._upper)
        rows = batch.rows(self._codec, at, transaction.body(self._codec) if batch.token else b"")
        if not rows:
            return await self._confirmed(transaction)
        await self._check_durable(batch)
        if await self._append([*rows, *(self._commits.pruned() if batch.token else ())], at, batch.prepared):
            return True
        await self._follow()
        return False

    async def _confirmed(self, transaction: CatalogTransaction) -> bool:
        """Whether a transaction without changes has none of them at the newest upper either. Raises Fenced, OutOfSync.

        What it read is reported as true, too: that takes a look at where it is durable. A reader looks when it syncs.
        """
        if self._mode is not Mode.WRITABLE:
            return True
        await self._follow()
        return not transaction.batch().changes

    async def _check_durable(self, batch: Batch) -> None:
        """Objects that are not in memory go only if they are there. Raises OutOfSync, Fenced."""
        gone = [(kind, key) for kind, key, _, after, _ in batch.changes if kind.append_only and after is None]
        for kind in {kind for kind, _ in gone}:
            there = set(await self._durable(kind))
            missing = [f"{kind} {key}" for of, key in gone if of is kind and key not in there]
            if missing:
                await self._follow()
                raise OutOfSync(
                    "what is to go is not there",
                    hint="read it again",
                    updates=len(missing),
                    upper=self._upper,
                    keys=", ".join(missing[:10]),
                )

    def _together(
        self, wanted: Sequence[tuple[CatalogTransaction, int]]
    ) -> list[tuple[int, list[tuple[Row, int]]] | int | PersistError | None]:
        """Of each transaction its rows and their time, one after the other; or what becomes of it without them."""
        found: list[tuple[int, list[tuple[Row, int]]] | int | PersistError | None] = []
        upper, named = self._upper, list[list[tuple[Row, int]]]()
        for transaction, ts in wanted:
            one = self._member(transaction, ts, upper)
            if isinstance(one, tuple):
                upper = one[0] + 1
                named += [one[1]] if transaction.token is not None else []
            found.append(one)
        if named:
            named[0] += self._commits.pruned(len(named))
        return found

    def _member(
        self, transaction: CatalogTransaction, ts: int, upper: int
    ) -> tuple[int, list[tuple[Row, int]]] | int | PersistError | None:
        try:
            transaction.check_made_from(self._snapshot)
            done = committed_at(self._snapshot, transaction, self._codec)
            if done is not None:
                return done + 1
            batch = transaction.batch()
            at = commit_ts(self._mode, batch, self._snapshot, ts, upper)
            rows = batch.rows(self._codec, at, transaction.body(self._codec) if batch.token else b"")
        except Fenced:
            raise
        except UsageError as error:
            return error
        alone = not rows or any(kind.append_only and after is None for kind, _, _, after, _ in batch.changes)
        return None if alone or not isinstance(self._log, Grouping) else (at, rows)

    async def _append(self, changes: list[tuple[Row, int]], ts: int, prepared: Prepared | None = None) -> bool:
        """Whether the changes are there now. If not, another process was first: follow. Raises InvalidArgument."""
        return await self._append_all([(ts, changes)], prepared)

    async def _append_all(
        self, times: Sequence[tuple[int, list[tuple[Row, int]]]], prepared: Prepared | None = None
    ) -> bool:
        self._check()
        memory = SnapshotMemory(self._snapshot, self._codec, prepared)
        staged = self._staged.get(id(prepared))
        with self._ends_if(HistoryRewound):
            found = await append_all(self._log, memory, times, expected_upper=self._upper, staged=staged and staged[1])
        if found is not None:
            return False
        self._commits.saw(self._snapshot.take(memory.net))
        self._upper = times[-1][0] + 1
        # Only what others may read again is at stake: the next append reports it anew.
        with contextlib.suppress(PersistError):
            await self._log.forget(self._upper - 1)
        return True

    async def _follow(self) -> None:
        """Take over what was committed since. Raises Fenced, for ever."""
        self._check()
        if self._mode is Mode.SAVEPOINT:
            return
        try:
            with self._ends_if(HistoryRewound):
                read = await self._log.updates(self._upper)
        except NotReadable:
            await self._read_again()
            return
        with self._ends_if(CorruptData):
            updates, refusal = self._readable(read.updates)
            codec = await decoded(self._codec, updates)
            followed = follow(self._snapshot, codec, self._claim, updates)
        self._untold += [(ts, changes) for ts, changes in followed.changes if changes]
        for _, changes in followed.changes:
            self._commits.saw(changes)
        ended = followed.fenced or refusal
        if ended is not None:
            raise self._end(ended)
        self._upper = read.upper

    async def _read_again(self) -> None:
        """Go on from a new snapshot: the updates in between are forgotten, as this process was away for long."""
        with self._ends_if(HistoryRewound):
            read = await self._log.snapshot()
        with self._ends_if(CorruptData):
            raw = RawCatalog(self._codec, read)
            fenced = self._claim.fenced_by(raw.token, raw.incarnation)
            ended = fenced or self._readable(read.updates)[1]
            if ended is not None:
                raise self._end(ended)
            changes = self._snapshot.apply(self._codec, difference(self._codec, self._snapshot, raw))
            self._snapshot.recount(raw.counts)
        self._commits.saw(changes)
        self._untold += [(read.upper - 1, changes)] if changes else []
        self._upper = read.upper

    async def _durable(self, kind: Kind[K, AnyValue]) -> list[K]:
        read = await self._log.snapshot([kind.tag])
        return live_keys(self._codec, kind, read.updates)

    async def _look(self) -> None:
        """Before the log is read past this catalog: one that may be fenced learns of it. With the turn."""
        if self._mode is Mode.WRITABLE:
            await self._follow()
        self._check()

    def _readable(self, updates: list[RowUpdate]) -> tuple[list[RowUpdate], IncompatibleDataVersion | None]:
        """The updates before a newer release migrated, and that it did. None of the rest may be decoded.

        Only followers get that far: who leads is fenced by the process that migrates, at an earlier time.
        """
        if self._claim.generation is not None:
            return updates, None
        for ts, found in sorted(versions(self._codec, updates)):
            if found != self._version:
                refusal = IncompatibleDataVersion(
                    "a newer release migrated the catalog",
                    hint="run that release",
                    found=found,
                    min=self._version,
                    current=self._version,
                )
                return [update for update in updates if update.ts < ts], refusal
        return updates, None

    def _check(self) -> None:
        if self._ended is not None:
            raise copy.copy(self._ended)

    def _check_writable(self) -> None:
        self._check()
        if self._mode is Mode.READ_ONLY:
            raise NotWritable("the catalog is open for reading only", hint="ask the leader")

    def _end(self, refusal: PersistError) -> PersistError:
        self._ended = refusal
        if self._claim.generation is not None:
            # What a reader has seen stays true as of its upper. Who led would take it for what is.
            self._snapshot.ended = refusal
        return copy.copy(refusal)

    @contextlib.contextmanager
    def _ends_if(self, kind: type[CorruptData]) -> Iterator[None]:
        # What was half taken over, or is of another history, is of no use any more.
        try:
            yield
        except kind as error:
            self._ended = self._snapshot.ended = error
            raise


async def dump(log: RowLog, *, consolidated: bool, kinds: Iterable[str] | None) -> Dump:
    """All rows of a log, of these tags only if given."""
    wanted = None if kinds is None else frozenset(kinds)
    if consolidated:
        return Dump(*await log.snapshot(wanted))
    read = await log.updates(0)
    return Dump([update for update in read.updates if wanted is None or update.row.kind in wanted], read.upper)


def _cached(kind: AnyKind) -> None:
    check_kind(kind)
    if kind.append_only:
        raise InvalidArgument("objects of this kind are not in memory", hint="read where they are durable", kind=kind)
