"""Where the leader of a catalog listens, told beside the catalog: in a small shard, by its fence token.

Not in the catalog itself: what is there is what its users put there, so that dumps, uppers, conflicts and comparisons
are the same whether a server leads or a program does. Not in a register either, which holds a number only. A row
counts only as long as its token is the one in the catalog, so an address that is out of date tells nothing, and the
catalog alone decides who leads. Source: architecture.md section 6, CatalogService.
"""

from typing import Final, TypeAlias

import pyarrow as pa

from persist.client.client import Client
from persist.core.catalog.objects import FenceToken
from persist.core.data.schema import Schema
from persist.core.ids import ShardId
from persist.core.shard.commands import Appended
from persist.errors import ShardNotFound

SEED: Final = 1
UNTOLD_SECONDS: Final = 2.0
"""How long a leader that told no address is not looked for again: a program that leads never tells one."""
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
    """Where leaders of one environment listen. Raises LocationError."""

    def __init__(self, client: Client, environment: str) -> None:
        self._client = client
        self._environment = environment
        self._known: tuple[_Fence, str] | None = None
        self._runtime = client.location.runtime
        self._untold: tuple[_Fence, float] | None = None

    async def tell(self, token: FenceToken, address: str, incarnation: int) -> None:
        """Say where the one with ``token`` listens, unless a later one did. Keeps one row."""
        shard = leader_shard(self._environment, incarnation)
        writer = await self._client.open_writer(shard, schema=SCHEMA)
        new = {"generation": token.deploy_generation, "epoch": token.epoch, "address": address}
        while True:
            upper, rows = await self._read(shard)
            if any(_token(row) > token for row in rows):
                return
            updates = [*({**row, "diff": -1} for row in rows), {**new, "diff": 1}]
            table = pa.Table.from_pylist([{**each, "ts": upper} for each in updates], SCHEMA.updates)
            outcome = await writer.compare_and_append(table, upper, upper + 1)
            if isinstance(outcome, Appended):
                self._known = (incarnation, token), address
                return

    async def of(self, token: FenceToken, incarnation: int, *, fresh: bool = False) -> str:
        """Where the one with ``token`` listens; empty when it did not say, some seconds ago unless ``fresh``."""
        fence = incarnation, token
        if self._known is not None and self._known[0] == fence:
            return self._known[1]
        now = self._runtime.monotonic()
        if not fresh and self._untold is not None and self._untold[0] == fence and now < self._untold[1]:
            return ""
        _, rows = await self._read(leader_shard(self._environment, incarnation))
        self._known = next(((fence, row["address"]) for row in rows if _token(row) == token), None)
        self._untold = None if self._known is not None else (fence, now + UNTOLD_SECONDS)
        return "" if self._known is None else self._known[1]

    async def _read(self, shard: ShardId) -> tuple[int, list[dict[str, str]]]:
        try:
            reader = await self._client.open_reader(shard, schema=SCHEMA, purpose="catalog leader")
        except ShardNotFound:
            return 0, []
        async with reader:
            upper = (await self._client.recent_upper(shard)).time or 0
            if upper == 0:
                return 0, []
            rows = await (await reader.snapshot(upper - 1)).to_pylist()
        return upper, [{name: row[name] for name in ("generation", "epoch", "address")} for row in rows]


def _token(row: dict[str, str]) -> FenceToken:
    return FenceToken(int(row["generation"]), int(row["epoch"]))
