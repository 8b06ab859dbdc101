"""Register: a number that only rises, kept as the upper of a shard without rows.

Linearizable among any number of processes, because each raise is a commit of the shard and each read asks for its
newest state. Source: catalog-semantics.md section 5.3.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from persist.client.shard.same_history import newest, renewed
from persist.core.data.schema import Schema
from persist.core.frontier import TIME_MAX, Antichain
from persist.core.ids import ShardId
from persist.core.shard.commands import Appended
from persist.errors import InvalidBounds, LeaseExpired, NotYetAvailable, OutcomeForgotten, ShardClosed
from persist.retry.deadline import Deadline

if TYPE_CHECKING:
    from persist.client.shard.client import ShardClient
    from persist.client.shard.write.handle import WriteHandle

NO_ROWS: Final = Schema(key={"nothing": pa.bool_()})
"""What the shard of a register would hold if it held rows."""

TRIES: Final = 2
"""Attempts to raise from the value last seen, before the server is asked to raise from wherever it is."""


class Register:
    """The upper of one shard as a number that only rises. Calls may overlap."""

    def __init__(self, client: "ShardClient", writer: "WriteHandle") -> None:
        self._client = client
        self._writer = writer
        self._known = _number(writer.upper, writer.shard)
        self.over = False
        """The location was restored, or the shard refuses this process: open another one, which knows nothing yet."""

    @classmethod
    async def open(cls, client: "ShardClient", shard: ShardId, *, timeout: float | None = None) -> "Register":
        """The register kept by ``shard``, which is made if missing. Two RPCs, three the first time."""
        return cls(client, await client.open_writer(shard, schema=NO_ROWS, timeout=timeout))

    @property
    def known(self) -> int:
        """The register is at least this. No RPC; never goes back."""
        return self._known

    def use(self, writer: "WriteHandle") -> None:
        """Go on with another writer of the same shard. Raises LeaseExpired when the location was restored meanwhile."""
        with self._ending():
            self._writer = renewed(self._writer.incarnation, writer)
        self._known = max(self._known, _number(writer.upper, writer.shard))

    async def read(self, deadline: Deadline) -> int:
        """What it is at some moment of this call. One RPC. Raises LeaseExpired when the location was restored."""
        writer = self._writer
        with self._ending():
            info = await newest(self._client.location, writer.shard, writer.incarnation, deadline)
        return self.heard(info.upper)

    async def raise_to(self, value: int, deadline: Deadline) -> None:
        """Return when it is at least ``value``: it becomes exactly that, or it was that much already.

        No RPC when that is known, one when no other process raises it at the same time.
        """
        while self._known < value:
            await self._moved(self._known, value, deadline)

    async def take(self, count: int, not_before: int, deadline: Deadline, *, not_after: int | None = None) -> range:
        """Numbers that no other caller is ever given, at least one and at most ``count``, each at least ``not_before``.

        Afterwards the register lies behind them. All are at least what it was when this call began. One RPC unless
        several processes take several at the same time, then three at most. Beyond ``not_after`` there is one at most.
        """
        for _ in range(TRIES if count > 1 else 0):
            begin = self._known
            first = max(begin, not_before)
            last = _in_time(first + count - 1)
            if not_after is not None:
                last = max(first, min(last, not_after))
            if await self._moved(begin, last + 1, deadline):
                return range(first, last + 1)
        while True:
            try:
                with self._ending():
                    appended = await self._writer.append_at_upper(
                        [], not_before=_in_time(not_before), timeout=seconds(deadline)
                    )
            except OutcomeForgotten:
                continue  # a number may be lost, and is then given to no caller
            last = self.heard(appended.upper) - 1
            return range(last, last + 1)

    async def _moved(self, begin: int, end: int, deadline: Deadline) -> bool:
        """Whether this call moved it from ``begin`` to ``end``. If that is forgotten, it is what it is now."""
        try:
            with self._ending():
                outcome = await self._writer.compare_and_append([], begin, end, timeout=seconds(deadline))
        except OutcomeForgotten:
            await self.read(deadline)
            return False
        self.heard(outcome.upper)
        return isinstance(outcome, Appended)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        except LeaseExpired:
            self.over = True
            raise

    def heard(self, upper: Antichain) -> int:
        """Take over an upper that was returned, as a number. Raises ShardClosed."""
        value = _number(upper, self._writer.shard)
        self._known = max(self._known, value)
        return value


def seconds(deadline: Deadline) -> float:
    """What is left for a call, which may not be nothing. Raises NotYetAvailable when time is up."""
    left = deadline.remaining()
    if left <= 0:
        raise NotYetAvailable("time was up before this was done", hint="repeat it with a longer timeout")
    return left


def _number(upper: Antichain, shard: ShardId) -> int:
    if upper.time is None:
        raise ShardClosed("the shard of this register was closed", hint="it is over for good", shard=shard)
    return upper.time


def _in_time(last: int) -> int:
    if last >= TIME_MAX:
        raise InvalidBounds("no time is left on this timeline", hint="close what lives on it", time=last)
    return last
