"""The rows of a catalog as CatalogService returns them: a log to read, which only the leader writes.

Source: protos/persist/v1/catalog.proto.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import TypeVar

from persist.client.catalog.port import CatalogUpdates, Freshness
from persist.client.catalog.same_history import check_same
from persist.client.remote.catalog import CatalogCalls
from persist.core.catalog.errors import NotWritable
from persist.core.catalog.rows import Row, RowUpdate
from persist.errors import HistoryRewound, LocationError
from persist.typed import AnyMessage
from persist.v1 import catalog_pb2 as pb
from persist.wire.catalog.rpc import answers, counts_of, history_in, updates_of

R = TypeVar("R", pb.ReadRowsRequest, pb.WatchChangesRequest, pb.DumpRowsRequest)


class SeenUpper:
    """How far all that share it have seen a catalog, by reading and by writing."""

    def __init__(self) -> None:
        self.upper = 0
        self.history: int | None = None

    def hear(self, upper: int, history: int | None) -> None:
        """An answer reported this upper, of this history. That of another one, before a restore, counts no more."""
        self.upper = max(self.upper, upper) if history == self.history else upper
        self.history = history

    def forget(self) -> None:
        """All of it: the history is over."""
        self.upper, self.history = 0, None


class RemoteLog:
    """The RowLog of who follows over gRPC, which borrows ``calls``.

    Each call costs one RPC. ``upper`` is as fresh as the shard itself, what is read as ``freshness`` says.
    """

    def __init__(self, calls: CatalogCalls, seen: SeenUpper, freshness: Freshness = Freshness.NEWEST) -> None:
        self._calls = calls
        self._seen = seen
        self._freshness = freshness
        self._counting = False
        self._told: tuple[int, CatalogUpdates] | None = None
        self._history: int | None = None

    def __repr__(self) -> str:
        return "its servers"

    @property
    def history(self) -> int | None:
        """See RowLog. Known once rows were read; not of servers of earlier releases."""
        return self._history

    async def upper(self) -> int:
        """See RowLog."""
        status = await self._calls.read("GetStatus", pb.GetStatusRequest())
        check_same(self._history, history_in(status), self)
        upper: int = status.upper
        return upper

    async def snapshot(self, kinds: Iterable[str] | None = None) -> CatalogUpdates:
        """See RowLog. While ``counting``, one row stands for all of an append-only kind."""
        if self._counting and kinds is None:
            return await self._counted()
        return await self._dump(consolidated=True, kinds=kinds)

    async def updates(self, lower: int) -> CatalogUpdates:
        """See RowLog. What an answer returned already is not asked for again."""
        told, self._told = self._told, None
        if told is not None and told[0] == lower:
            return told[1]
        if lower == 0:
            return await self._dump(consolidated=False, kinds=None)
        request = pb.WatchChangesRequest(lower=lower, at_least=self._enough())
        pieces = await self._calls.gather("WatchChanges", self._of(request))
        with answers():
            return self._heard(_updates(pieces))

    async def append(self, changes: Sequence[tuple[Row, int]], ts: int, *, expected_upper: int) -> int | None:
        """See RowLog. Raises NotWritable: what is written over gRPC is what came of transactions."""
        raise NotWritable("rows are read here", hint="open a session", changes=len(changes))

    async def changed(self, upper: int, timeout: float) -> None:
        """See RowLog."""
        deadline = self._calls.deadline(timeout)
        pause = self._calls.pauses(timeout)
        request = self._of(pb.WatchChangesRequest(lower=upper, until=upper + 1, at_least=self._enough()))
        while not deadline.passed:
            try:
                async with aclosing(self._calls.watch(request, deadline.remaining())) as messages:
                    async for message in messages:
                        if message.upper > upper:
                            return
            except LocationError:
                if not await pause():
                    return

    async def forget(self, to: int) -> None:
        """See RowLog. The leader does."""

    async def close(self) -> None:
        """See RowLog."""

    def tell(self, lower: int, updates: list[RowUpdate] | None, upper: int) -> None:
        """An answer returned all updates from ``lower``: the next reading from there need not ask. None: it did not."""
        self._seen.hear(upper, self._history)
        self._told = None if updates is None else (lower, CatalogUpdates(updates, upper))

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """A block in which append-only kinds are counted only, which is enough to open a catalog."""
        self._counting = True
        try:
            yield
        finally:
            self._counting = False

    def _enough(self) -> int | None:
        """What a server is to know at least. None: all that was committed by now."""
        return {Freshness.NEWEST: None, Freshness.OWN: self._seen.upper, Freshness.ANY: 0}[self._freshness]

    def _heard(self, read: CatalogUpdates) -> CatalogUpdates:
        self._seen.hear(read.upper, self._history)
        return read

    def _of(self, request: R) -> R:
        """A request about the history that was read, and no other one."""
        if self._history is not None:
            request.history = self._history
        return request

    def _joined(self, pieces: Sequence[AnyMessage]) -> CatalogUpdates:
        """Rows as they were returned whole: what comes later is to be of their history."""
        found = history_in(pieces[-1])
        check_same(self._history, found, self)
        self._history = found
        return _updates(pieces)

    async def _counted(self) -> CatalogUpdates:
        """What was seen before this log was opened may be of a history that is over; this one is to show the newest."""
        begins = self._freshness is Freshness.OWN and self._history is None and self._seen.history is not None
        request = pb.ReadRowsRequest(at_least=self._enough(), history=self._seen.history if begins else self._history)
        try:
            pieces = await self._calls.gather("ReadRows", request)
        except HistoryRewound:
            if not begins:
                raise
            self._seen.forget()
            pieces = await self._calls.gather("ReadRows", pb.ReadRowsRequest())
        with answers():
            read = self._heard(self._joined(pieces))
            return CatalogUpdates([*read.updates, *counts_of(pieces[-1].counts, read.upper)], read.upper)

    async def _dump(self, *, consolidated: bool, kinds: Iterable[str] | None) -> CatalogUpdates:
        if kinds is not None and not (kinds := sorted(kinds)):
            return CatalogUpdates([], await self.upper())
        request = pb.DumpRowsRequest(consolidated=consolidated, kinds=kinds or ())
        pieces = await self._calls.gather("DumpRows", self._of(request))
        with answers():
            return self._joined(pieces)


def _updates(pieces: Sequence[AnyMessage]) -> CatalogUpdates:
    updates = [update for piece in pieces for update in updates_of(piece.updates)]
    return CatalogUpdates(updates, pieces[-1].upper)
