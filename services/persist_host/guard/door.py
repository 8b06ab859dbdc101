"""From the bytes of a request to its message: size, elements and memory are checked before anything is parsed.

Source: reliability.md section 5, sizes and back-pressure; docs/runbook.md, limits.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Self, TypeVar

import grpc.aio
from google.protobuf.message import DecodeError

from persist.errors import PersistError, RequestTooLarge
from persist.runtime import Runtime
from persist.settings import Settings
from persist.typed import AnyMessage
from persist_host.calls import Context
from persist_host.guard.admission import FRAME_SECONDS, Admission
from persist_host.guard.bounds import bytes_of
from persist_host.guard.scan import FrameScan, Scan, input_of, is_frame, undecodable

T = TypeVar("T")

OFFLOADED_BYTES: Final = 128 << 10
"""Requests from here on are scanned and parsed beside the event loop: they may take tens of milliseconds."""


class Door:
    """The requests of one method. ``name``: ``/package.Service/Method``."""

    def __init__(self, name: str, admission: Admission, *, settings: Settings, runtime: Runtime) -> None:
        self._type = input_of(name)
        descriptor = self._type.DESCRIPTOR
        self._frames = FrameScan(descriptor, settings) if is_frame(descriptor) else None
        self._scan: Scan = self._frames or Scan(descriptor, settings)
        self._limit = bytes_of(name.rpartition(".")[2], settings)
        self._memory = admission.memory
        self._large = admission.large
        self._runtime = runtime

    async def enter(self, data: bytes) -> tuple[AnyMessage, int]:
        """The message and the memory taken for it, which the caller gives back.

        Raises RequestTooLarge, InvalidArgument, Overloaded; nothing is taken then.
        """
        size = self._size(data)
        self._memory.take(size)
        more = await self._weighed(data, self._scan)
        try:
            self._memory.take(more, of=size + more)
        except BaseException:
            self._memory.give(size)
            raise
        return await self._parsed(data, size + more), size + more

    def leave(self, memory: int) -> None:
        """Give back what a request took."""
        if memory:
            self._memory.give(memory)

    async def enter_frame(self, data: bytes) -> "Frame":
        """As ``enter``, after waiting a while for memory. What refuses one call of a frame is beside it."""
        assert self._frames is not None, "the method's messages are frames"
        size = self._size(data)
        if size < OFFLOADED_BYTES:
            found = self._frames.frame(data)
        else:
            await self._memory.wait(size, FRAME_SECONDS)
            found = await self._weighed(data, self._frames.frame)
            # SUBTLE: all at once, or those who hold a part and wait for the rest would wait for each other.
            self._memory.give(size)
        memory = size + found.memory
        await self._memory.wait(memory, FRAME_SECONDS)
        return Frame(await self._parsed(found.data, memory), memory, found.refused)

    def _size(self, data: bytes) -> int:
        size = len(data)
        if size > self._limit:
            raise RequestTooLarge("the request is too large for its method", bytes=size, limit=self._limit)
        return size

    async def _weighed(self, data: bytes, scan: Callable[[bytes], T]) -> T:
        """What a scan says of the bytes, whose memory was taken and is given back when that fails."""
        try:
            if len(data) < OFFLOADED_BYTES:
                return scan(data)
            async with self._large:
                return await self._runtime.offload(scan, data)
        except BaseException:
            self._memory.give(len(data))
            raise

    async def _parsed(self, data: bytes, memory: int) -> AnyMessage:
        try:
            if len(data) < OFFLOADED_BYTES:
                return self._type.FromString(data)
            async with self._large:
                return await self._runtime.offload(self._type.FromString, data)
        except BaseException as error:
            self._memory.give(memory)
            if isinstance(error, DecodeError):
                raise undecodable(self._type.DESCRIPTOR.name) from None
            raise


class Frame(NamedTuple):
    """A message of a stream, and the memory taken for it. ``refused``: the id of a call that it held, and why."""

    message: AnyMessage
    memory: int
    refused: tuple[int, PersistError] | None


class Frames:
    """The messages of a stream, one after the other, each with the memory taken for it until ``leave``.

    Nothing more of the stream is read while a frame waits for memory. Raises as ``Door.enter``.
    """

    def __init__(self, context: Context, door: Door) -> None:
        """``context``: the call's, which nothing else reads."""
        self._context = context
        self._door = door

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frame:
        # SUBTLE: not through the iterator that gRPC gives to handlers: a generator of its own stands still at its last
        # message. It holds the bytes of that until the next one comes, and for ever when no other is asked for.
        data = await self._context.read()
        if data is grpc.aio.EOF:
            raise StopAsyncIteration
        return await self._door.enter_frame(data)

    def leave(self, memory: int) -> None:
        """Give back what a frame took, or a share of it."""
        self._door.leave(memory)
