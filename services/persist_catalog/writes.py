"""What sessions write: checked against what was committed meanwhile, and committed once however often it is asked for.

Source: catalog-semantics.md sections 1.2.6, 1.2.7 and 1.3.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, TypeVar

from persist.client.catalog.port import ReadWriteCatalog
from persist.core.catalog.conflicts import Footprint, Overlapping, classify
from persist.core.catalog.errors import OutOfSync
from persist.core.catalog.fingerprints import first_outcome
from persist.core.catalog.kinds import COMMIT, AnyKind, kind_of
from persist.core.catalog.objects import CommitKey
from persist.core.catalog.rows import Row, RowCodec, RowUpdate, by_time
from persist.core.catalog.snapshot import Change
from persist.core.catalog.transaction import Transaction
from persist.core.catalog.values import Unit
from persist.core.ids import Token
from persist.errors import CorruptData, Indeterminate, InvalidArgument
from persist.runtime import system
from persist.typed import AnyKey, AnyValue
from persist.wire.catalog.rpc import Session
from persist_catalog.leadership import Leadership
from persist_catalog.mirror import Mirror
from persist_catalog.sessions import Open, Sessions

STEP: Final = 1_000
"""Changes that are looked at before others get their turn at the event loop."""

T = TypeVar("T")


@dataclass(frozen=True)
class Commit:
    """What came of a transaction that ran at ``base_upper``. ``body`` stands for what it wants."""

    base_upper: int
    changes: Sequence[tuple[Row, int]]
    footprint: Footprint
    token: Token | None
    ts: int
    body: bytes

    @cached_property
    def name(self) -> bytes:
        """What stands for all of it: a request that is repeated has the same."""
        return sha256(repr((self.base_upper, sorted(self.changes), self.token, self.ts, self.body)).encode()).digest()


class Writes:
    """Commits of sessions, one after the other."""

    def __init__(self, leadership: Leadership, mirror: Mirror, sessions: Sessions, codec: RowCodec) -> None:
        self._leadership = leadership
        self._mirror = mirror
        self._sessions = sessions
        self._codec = codec

    async def commit(self, session: Session, request_id: bytes, commit: Commit, *, size: int = 0) -> int:
        """When it was committed, now or by an earlier call. Raises OutOfSync, Fenced, NotWritable, LeaseExpired,
        Overloaded. ``size``: bytes of the request.

        A token that was committed is known to every later leader, so it is looked for before the session is.
        """
        opened = self._sessions.find(session.session_id)
        if opened is None or opened.token != session.token:
            if (done := self._done(commit)) is not None:
                return done
            await self._leadership.join(session.token)
            opened = self._sessions.get(session.session_id)
        the_session = opened
        ts: int = await self._sessions.once(
            the_session, request_id, commit.name, lambda: self._commit(the_session, request_id, commit), size=size
        )
        return ts

    async def _commit(self, session: Open, request_id: bytes, commit: Commit) -> int:
        async with self._leadership.writing(session.token) as catalog:
            done = self._done(commit)
            if done is None and request_id in session.unsure:
                await self._mirror.sync()
                done = self._committed(commit)
            if done is not None:
                return done
            if self._mirror.upper < max(catalog.upper, commit.base_upper):
                await self._mirror.sync()
            await self._check(commit)
            transaction = await self._transaction(catalog, commit)
            return await catalog.commit(transaction, ts=commit.ts) - 1

    def _done(self, commit: Commit) -> int | None:
        """When its token was committed, as far as the leader knows. Raises InvalidArgument: with another body."""
        if commit.token is None:
            return None
        row = self._codec.encode(COMMIT.tag, CommitKey(commit.token), COMMIT.value(0))
        known = self._mirror.raw.row(row)
        return None if known is None else first_outcome(commit.token, self._codec.decode(known)[1], commit.body)

    def _committed(self, commit: Commit) -> int | None:
        """When exactly these changes were made from their base on: by the call whose outcome nobody knew.

        Raises Indeterminate when that is not remembered any more.
        """
        wanted = set(commit.changes)
        since = self._mirror.since(commit.base_upper)
        if since is None:
            raise Indeterminate(
                "whether this was committed is not remembered any more",
                hint="look at what is there; commit with a token, which is kept",
                base_upper=commit.base_upper,
            )
        for ts, changes in by_time(since):
            if wanted <= set(changes):
                return ts
        return None

    async def _check(self, commit: Commit) -> None:
        """Raise OutOfSync if something was committed from the base on that the transaction depends on.

        Raises InvalidArgument for a base of another epoch, or one that nobody was told.
        """
        if commit.base_upper < self._leadership.begun:
            raise InvalidArgument(
                "a transaction of an earlier epoch",
                hint="make a new one from what is there now; nothing was changed",
                base_upper=commit.base_upper,
                begun=self._leadership.begun,
            )
        since = self._mirror.since(commit.base_upper)
        if since is None:
            raise OutOfSync(
                "too much was committed meanwhile", hint="run the transaction again", updates="many", keys="unknown"
            )
        # SUBTLE: what is committed meanwhile is another leader's, which makes the append fail.
        changes = [change async for change in in_steps(changes_of(self._codec, since))]
        conflict = classify(commit.footprint, changes)
        if isinstance(conflict, Overlapping):
            keys = ", ".join(f"{tag} {key}" for tag, key in conflict.keys[:10])
            raise self._out_of_sync(conflict.changes, keys)

    async def _transaction(self, catalog: ReadWriteCatalog, commit: Commit) -> Transaction:
        """The transaction again, with all rules that hold whoever sends it. Raises OutOfSync, InvalidArgument."""
        transaction = catalog.transaction(token=commit.token)
        transaction.told_body = commit.body
        there, stale = self._mirror.raw.rows, []
        wanted: defaultdict[AnyKind, list[tuple[Any, Any]]] = defaultdict(list)
        async for kind, key_bytes, before, after in in_steps(_sides(commit.changes)):
            key = self._object(kind, key_bytes, before if after is None else after)[0]
            if kind.append_only:
                await self._append_only(transaction, kind, key, key_bytes, gone=after is None)
            elif there.get(kind.tag, {}).get(key_bytes) != before:
                stale.append(f"{kind} {key}")
            else:
                value = None if after is None else self._object(kind, key_bytes, after)[1]
                wanted[kind].append((key, value))
        if stale:
            raise self._out_of_sync(len(stale), ", ".join(stale[:10]))
        for kind, pairs in wanted.items():
            transaction.set_all(kind, pairs)
        return transaction

    async def _append_only(
        self, transaction: Transaction, kind: AnyKind, key: object, key_bytes: bytes, *, gone: bool
    ) -> None:
        if not gone:
            transaction.insert(kind, key, Unit())
            return
        durable = await self._mirror.dump([kind.tag], consolidated=True)
        if not any(row.key == key_bytes for row, _, _ in durable.updates):
            raise self._out_of_sync(1, f"{kind} {key}")
        transaction.retract(kind, key)

    def _object(self, kind: AnyKind, key: bytes, value: bytes | None) -> tuple[AnyKey, AnyValue]:
        try:
            return self._codec.decode(Row(kind.tag, key, value or b""))
        except CorruptData as error:
            raise InvalidArgument("no object of this kind", kind=kind, problem=error.message) from error

    def _out_of_sync(self, updates: int, keys: str) -> OutOfSync:
        return OutOfSync(
            "the catalog was changed meanwhile",
            hint="run the transaction again",
            updates=updates,
            upper=self._mirror.upper,
            keys=keys,
        )


async def in_steps(items: Iterable[T]) -> AsyncIterator[T]:
    """The items; others get their turn at the event loop between many of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % STEP == 0:
            await system().sleep(0)


def changes_of(codec: RowCodec, updates: Iterable[RowUpdate]) -> Iterator[Change]:
    """The changes of objects in updates, time by time."""
    for _, changes in by_time(updates):
        for kind, key_bytes, before, after in _sides(changes):
            old = None if before is None else codec.decode(Row(kind.tag, key_bytes, before))
            new = None if after is None else codec.decode(Row(kind.tag, key_bytes, after))
            key = (old or new or (None,))[0]
            yield Change(kind, key, None if old is None else old[1], None if new is None else new[1])


def _sides(changes: Iterable[tuple[Row, int]]) -> Iterator[tuple[AnyKind, bytes, bytes | None, bytes | None]]:
    """For each key its value before and after, None where there is none."""
    before: dict[tuple[str, bytes], bytes] = {}
    after: dict[tuple[str, bytes], bytes] = {}
    for row, diff in changes:
        (before if diff < 0 else after)[row.kind, row.key] = row.value
    for tag, key in {**before, **after}:
        yield kind_of(tag), key, before.get((tag, key)), after.get((tag, key))
