"""TimestampMinter as something a host hosts."""

from collections.abc import Mapping
from typing import Final, Protocol

import grpc.aio

from persist.client.binding.port import Minter
from persist.settings import Settings
from persist.v1.minter_pb2_grpc import add_TimestampMinterServicer_to_server
from persist_host import Telemetry
from persist_minter.servicer import MinterServicer

NAME: Final = "persist.v1.TimestampMinter"


class Counting(Minter, Protocol):
    """What a TimestampMinter serves: LocalMinter."""

    @property
    def counters(self) -> Mapping[str, int]:
        """``minted``: appends that bound something; ``mismatches``: appends that another minter was faster than."""
        ...


class Closable(Protocol):
    """What the minter works on."""

    async def close(self) -> None:
        """Release it."""
        ...


class MinterService:
    """Owns the minter and what it works on, and closes them.

    Services that share ``client`` are given to the host before this one, so that they are closed before.
    """

    name = NAME
    undated: frozenset[str] = frozenset()

    def __init__(self, minter: Counting, client: Closable, *, settings: Settings, telemetry: Telemetry) -> None:
        self._minter = minter
        self._client = client
        self._servicer = MinterServicer(
            minter, lambda: minter.counters, limit=settings.max_message_bytes, telemetry=telemetry
        )

    def register(self, server: grpc.aio.Server) -> None:
        """Add the servicer to a server."""
        add_TimestampMinterServicer_to_server(self._servicer, server)

    async def drain(self) -> None:
        """End watches."""
        self._servicer.drain()

    async def close(self) -> None:
        """Release the minter's leases, then the shards."""
        await self._minter.close()
        await self._client.close()
