"""A client that takes nothing of what it is answered, whatever it asks: its HTTP/2 windows stay at zero."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, ResponseReceived, TrailersReceived
from h2.settings import SettingCodes


class NeverReading:
    """One connection of such a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        self.events: list[Event] = []

    @classmethod
    async def to(cls, endpoint: str) -> Self:
        """A connection to a server that knows its windows."""
        host, _, port = endpoint.rpartition(":")
        it = cls(*await asyncio.open_connection(host, int(port)))
        await it._flush()
        while not it.events:
            await it.hear()
        return it

    async def call(self, method: str, request: bytes, *, seconds: int = 3600) -> int:
        """Begin a call; its stream."""
        stream = self._h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "x"), ("te", "trailers"),
            ("content-type", "application/grpc"), ("grpc-timeout", f"{seconds}S"),
        ]  # fmt: skip
        self._h2.send_headers(stream, headers)
        self._h2.send_data(stream, b"\0" + struct.pack(">I", len(request)) + request, end_stream=True)
        await self._flush()
        return stream

    async def take(self, stream: int, size: int) -> None:
        """Take some bytes of an answer after all."""
        self._h2.increment_flow_control_window(size, stream)
        self._h2.increment_flow_control_window(size)
        await self._flush()

    async def status(self, stream: int) -> str:
        """How a call ended, once it did."""
        while True:
            for event in self.events:
                # A refusal is all in one: it comes as headers.
                if isinstance(event, ResponseReceived | TrailersReceived) and event.stream_id == stream:
                    told = dict[Any, Any](event.headers or ()).get("grpc-status")
                    if told is not None:
                        return str(told)
            await self.hear()

    async def hear(self) -> None:
        """Wait for anything the server says."""
        data = await self._reader.read(1 << 16)
        if not data:
            raise ConnectionResetError
        self.events += self._h2.receive_data(data)
        await self._flush()

    async def close(self) -> None:
        """Leave."""
        self._writer.close()
        await self._writer.wait_closed()

    async def _flush(self) -> None:
        self._writer.write(self._h2.data_to_send())
        await self._writer.drain()


@asynccontextmanager
async def never_reading(endpoint: str) -> AsyncIterator[NeverReading]:
    """A connection for the length of a block."""
    connection = await NeverReading.to(endpoint)
    try:
        yield connection
    finally:
        await connection.close()
