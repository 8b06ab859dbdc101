"""Where the leader of a catalog listens, published beside the catalog: in a small shard (or stash), by its fence token.

Not in the catalog itself: what is there is what its users put there, so that dumps, uppers, conflicts and comparisons
are the same whether a server leads or a program does. Not in a register either, which holds a number only. A row
counts only as long as its token is the one in the catalog, so an address that is out of date means nothing, and the
catalog alone decides who leads. Source: architecture.md section 6, CatalogService.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import pyarrow as pa

from persist.client.catalog.port import RowLog
from persist.core.catalog.objects import FenceToken
from persist.core.catalog.rows import Row
from persist.core.data.schema import Schema
from persist.core.ids import ShardId
from persist.core.shard.commands import Appended
from persist.errors import ShardNotFound
from persist.runtime import Runtime

if TYPE_CHECKING:
    from persist.client.shard.client import ShardClient

SEED: Final = 1
KIND: Final = "leader"
"""Of the rows in a stash."""
UNTOLD_SECONDS: Final = 2.0
"""How long a leader that published no address is not looked for again: a program that leads never publishes one."""
EMBEDDED: Final = "-embedded"
"""Published instead of an address by a program that leads and cannot be reached."""
ENDED: Final = "-ended"
"""Published instead of an address by a leader that ended in order: no process leads."""
SOON: Final = "-soon "
"""Published before an address by who is about to lead: it may end before it can say that it does."""
SCHEMA: Final = Schema(
    key={"generation": pa.field("generation", pa.uint64(), nullable=False),
         "epoch": pa.field("epoch", pa.uint64(), nullable=False)},
    val={"address": pa.field("address", pa.string(), nullable=False)},
)  # fmt: skip

_Fence: TypeAlias = tuple[int, FenceToken]
"""The incarnation of a fence, and its token."""


def leader_shard(environment: str, incarnation: int = 0) -> ShardId:
    """The shard that says where the leader of an environment's catalog listens.

    Each incarnation of the fence has its own: in another one, a token of before is neither earlier nor later.
    """
    return ShardId.named("persist.catalog.leader", environment, SEED + incarnation)


class Addresses:
    """Where leaders of one environment listen, as ``kept`` in one place, which it closes. Raises LocationError."""

    def __init__(self, kept: "AddressRows", runtime: Runtime) -> None:
        self._kept = kept
        self._known: tuple[_Fence, str] | None = None
        self._runtime = runtime
        self._untold: tuple[_Fence, float] | None = None

    async def tell(self, token: FenceToken, address: str, incarnation: int) -> None:
        """Say where the one with ``token`` listens, unless a later one did. Keeps one row."""
        while True:
            upper, rows = await self._kept.read(incarnation)
            if any(each > token and not there.startswith(SOON) for each, there in rows.items()):
                return
            gone = {each: there for each, there in rows.items() if each <= token}
            if await self._kept.replace(incarnation, gone, token, address, upper):
                self._known = (incarnation, token), address
                return

    async def announce(self, token: FenceToken, address: str, incarnation: int) -> None:
        """Say where the one listens who is about to take ``token``, beside what is said of the one that leads.

        SUBTLE: who ends between taking it and saying so is known by this, or no process could lead any more without a
        person's word.
        """
        while True:
            upper, rows = await self._kept.read(incarnation)
            if any(each >= token and not there.startswith(SOON) for each, there in rows.items()):
                return
            gone = {each: there for each, there in rows.items() if there.startswith(SOON)}
            if await self._kept.replace(incarnation, gone, token, SOON + address, upper):
                return

    async def of(self, token: FenceToken, incarnation: int, *, fresh: bool = False) -> str:
        """Where the one with ``token`` listens; empty when it did not say, some seconds ago unless ``fresh``."""
        told = await self.told(token, incarnation, fresh=fresh)
        return "" if told in (EMBEDDED, ENDED) else told

    async def told(self, token: FenceToken, incarnation: int, *, fresh: bool = False) -> str:
        """As ``of``, and what was published instead of an address: EMBEDDED or ENDED."""
        fence = incarnation, token
        if not fresh and self._known is not None and self._known[0] == fence:
            return self._known[1]
        now = self._runtime.monotonic()
        if not fresh and self._untold is not None and self._untold[0] == fence and now < self._untold[1]:
            return ""
        _, rows = await self._kept.read(incarnation)
        self._known = (fence, rows[token].removeprefix(SOON)) if token in rows else None
        self._untold = None if self._known is not None else (fence, now + UNTOLD_SECONDS)
        return "" if self._known is None else self._known[1]

    async def close(self) -> None:
        """Release the place."""
        await self._kept.close()


class AddressRows(Protocol):
    """Where addresses are kept: rows of each incarnation of the fence, that change at once, or not at all."""

    async def read(self, incarnation: int) -> tuple[int, Mapping[FenceToken, str]]:
        """The addresses below an upper, and that."""
        ...

    async def replace(
        self, incarnation: int, gone: Mapping[FenceToken, str], token: FenceToken, address: str, upper: int
    ) -> bool:
        """One address instead of those that are there; False when the upper is another one by now."""
        ...

    async def close(self) -> None:
        """Release it."""
        ...


class KeptInShard:
    """In a small shard beside the catalog's. Borrows the client."""

    def __init__(self, client: "ShardClient", environment: str) -> None:
        self._client = client
        self._environment = environment

    async def read(self, incarnation: int) -> tuple[int, Mapping[FenceToken, str]]:
        """See AddressRows."""
        shard = leader_shard(self._environment, incarnation)
        try:
            reader = await self._client.open_reader(shard, schema=SCHEMA, purpose="catalog leader")
        except ShardNotFound:
            return 0, {}
        async with reader:
            upper = (await self._client.recent_upper(shard)).time or 0
            if upper == 0:
                return 0, {}
            rows = await (await reader.snapshot(upper - 1)).to_pylist()
        return upper, {FenceToken(int(row["generation"]), int(row["epoch"])): row["address"] for row in rows}

    async def replace(
        self, incarnation: int, gone: Mapping[FenceToken, str], token: FenceToken, address: str, upper: int
    ) -> bool:
        """See AddressRows."""
        writer = await self._client.open_writer(leader_shard(self._environment, incarnation), schema=SCHEMA)
        updates = [*((each, there, -1) for each, there in gone.items()), (token, address, 1)]
        rows = [
            {"generation": each.deploy_generation, "epoch": each.epoch, "address": at, "ts": upper, "diff": diff}
            for each, at, diff in updates
        ]
        outcome = await writer.compare_and_append(pa.Table.from_pylist(rows, SCHEMA.updates), upper, upper + 1)
        return isinstance(outcome, Appended)

    async def close(self) -> None:
        """See AddressRows."""


class KeptInStash:
    """In a stash beside the catalog's rows, as an environment of its own: its name is that shard's.

    ``open_log``: the rows of an environment in the stash.
    """

    def __init__(self, environment: str, open_log: Callable[[str], Awaitable[RowLog]]) -> None:
        self._environment = environment
        self._open_log = open_log
        self._logs: dict[int, RowLog] = {}

    async def read(self, incarnation: int) -> tuple[int, Mapping[FenceToken, str]]:
        """See AddressRows."""
        found = await (await self._log(incarnation)).snapshot()
        return found.upper, {_token(update.row.key): update.row.value.decode() for update in found.updates}

    async def replace(
        self, incarnation: int, gone: Mapping[FenceToken, str], token: FenceToken, address: str, upper: int
    ) -> bool:
        """See AddressRows."""
        changes = [*((_row(each, there), -1) for each, there in gone.items()), (_row(token, address), 1)]
        return await (await self._log(incarnation)).append(changes, upper, expected_upper=upper) is None

    async def close(self) -> None:
        """See AddressRows."""
        while self._logs:
            await self._logs.popitem()[1].close()

    async def _log(self, incarnation: int) -> RowLog:
        if incarnation not in self._logs:
            opened = await self._open_log(str(leader_shard(self._environment, incarnation)))
            if self._logs.setdefault(incarnation, opened) is not opened:
                await opened.close()
        return self._logs[incarnation]


def _row(token: FenceToken, address: str) -> Row:
    return Row(KIND, f"{token.deploy_generation} {token.epoch}".encode(), address.encode())


def _token(key: bytes) -> FenceToken:
    generation, epoch = key.split()
    return FenceToken(int(generation), int(epoch))
