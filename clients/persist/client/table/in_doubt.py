"""Tables whose rows statements put without an answer: what came of them is found out before anyone here reads there.

Until then they may still come, and who looks for them, sees none and puts them again has them twice. Rows of tables in
a log come with its next write or never. The doubts of all sessions of a client are kept here: which of them looks does
not matter. Source: docs/adr/0012-numbered-calls.md; docs/guarantees.md, guarantee 12.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from persist.core.data.encoding import encode_key
from persist.core.ids import ShardId
from persist.errors import Determinate, LocationError, PersistError

if TYPE_CHECKING:
    from persist.client.shard.write.doubts import Resolved
    from persist.client.table.table import Table

KEPT_MAX: Final = 1_000
"""Doubts that are over, and kept for who repeats what was in doubt; the newest."""
_HAPPENED: Final = "the rows put into {} before, without an answer, are there"
_NOT: Final = "the rows put into {} before, without an answer, are not there, and will not be"
_FORGOTTEN: Final = "whether the rows put into {} before, without an answer, are there is not known: no more will come"


@dataclass(eq=False, slots=True, kw_only=True)
class InDoubt:
    """Rows that a statement put into a table without an answer. ``news``: what came of them; empty: it is not known.

    ``owner``: who gave it, as long as that lasts. ``put``: what names the rows, see ``named``; ``said``: the statement.
    """

    shard: ShardId
    name: str
    table: "Table | None"
    owner: object | None
    put: bytes
    said: str = ""
    news: str = ""
    may_be_there: bool = False
    was_told: bool = False
    settling: asyncio.Lock = field(default_factory=asyncio.Lock)


def named(rows: pa.Table) -> bytes:
    """What equal rows in equal order have in common, and others do not; of values without an order, their number."""
    digest = hashlib.sha256(f"{rows.num_rows} {rows.schema.names}".encode())
    with contextlib.suppress(PersistError):
        for each in rows.columns if rows.num_rows else ():
            _, ends, content = encode_key([each]).buffers()
            digest.update(ends or b"")
            digest.update(content or b"")
    return digest.digest()


class TablesInDoubt:
    """Of one client."""

    def __init__(self) -> None:
        self._all: list[InDoubt] = []

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._all)

    def add(self, doubt: InDoubt) -> None:
        """A write into a table ended without an answer."""
        self._all.append(doubt)

    def release(self, owner: object) -> None:
        """An owner ends: what came of its rows is news to all who read there."""
        for each in self._all:
            if each.owner is owner:
                each.owner = None

    async def settle(self, shards: Collection[ShardId], timeout: float | None, *, owner: object | None = None) -> None:
        """Find out what came of all rows put into these, and of all that an owner put: nothing more comes then.

        One or two RPCs for each such table, none where there is none. Raises Determinate: it is not known yet of one.
        """
        for each in list(self._all):
            if each.shard in shards or (owner is not None and each.owner is owner):
                async with each.settling:
                    if not each.news:
                        await self._settle(each, timeout)

    async def _settle(self, doubt: InDoubt, timeout: float | None) -> None:
        assert doubt.table is not None
        resolved: tuple[Resolved, ...] | None
        try:
            resolved = await doubt.table.resolve(timeout=timeout)
        except LocationError as error:
            raise Determinate(
                "rows of a statement before this one may still come into a table: nothing of this one happened",
                hint="repeat it: what came of those is looked for first",
                table=doubt.name,
                detail=error,
            ) from error
        except PersistError:
            # The table was dropped, or the location restored: nothing more comes.
            resolved = None
        doubt.table = None
        if resolved is None or any(each.forgotten for each in resolved):
            doubt.news, doubt.may_be_there = _FORGOTTEN.format(doubt.name), True
        elif any(each.appended is not None for each in resolved):
            doubt.news, doubt.may_be_there = _HAPPENED.format(doubt.name), True
        else:
            doubt.news = _NOT.format(doubt.name)

    def news(self, shards: Collection[ShardId], owner: object) -> list[InDoubt]:
        """What is known, and not said yet: of the rows of this owner, and, in these tables, of those without one."""
        return [
            each
            for each in self._all
            if each.news
            and not each.was_told
            and (each.owner is owner or (each.owner is None and each.shard in shards))
        ]

    def tell(self, told: Collection[InDoubt]) -> None:
        """An answer said these. Rows that are there, whose owner has gone, stay known for who repeats them."""
        for each in told:
            each.was_told = True
        kept = [each for each in self._all if not each.was_told or (each.may_be_there and each.owner is None)]
        over = [each for each in kept if each.was_told]
        self._all = [each for each in kept if each not in over[:-KEPT_MAX]]

    def repeated(self, shard: ShardId, owner: object, put: bytes, said: str) -> InDoubt | None:
        """Rows that may be there, which a caller is about to put in again without knowing it. It is said with this.

        Of the same owner these are any rows, until it was said; of one that has gone the same rows, or statement.
        """
        for each in self._all:
            if each.shard != shard or not each.may_be_there:
                continue
            is_own = each.owner is owner and not each.was_told
            if is_own or (each.owner is None and (each.put == put or (said and each.said == said))):
                self._all.remove(each)
                return each
        return None
