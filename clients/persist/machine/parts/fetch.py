"""Fetching the byte ranges of parts ahead of the reader that decodes them.

Ranges are fetched in the order in which a merge will want them, many at once and within a budget of bytes. A range
the reader waits for is always fetched, so a tight budget slows reading down but never stops it.
Source: persist-semantics.md feature row 46; performance.md A1.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from persist.core.data.splits import KeyRange, blocks_in
from persist.core.shard.batch import Block, Part
from persist.errors import CorruptData
from persist.retry.across import across
from persist.retry.attempts import Attempts
from persist.retry.tasks import Tasks
from persist.settings import Settings
from persist.storage.ports import Blob
from persist.wire.columnar.decode import SMALL_BYTES

IN_FLIGHT_MAX = 16
WHOLE_BYTES_MAX = SMALL_BYTES
"""Parts up to this size are decoded whole, so they are fetched with one request."""
RANGE_BYTES_MAX = 4 << 20
"""Neighbouring blocks are fetched together up to this size."""

Verify = Callable[[], Awaitable[None]]


@dataclass(eq=False, slots=True)
class ByteRange:
    """Bytes ``[start, end)`` of a blob. ``wanted``: how many of them the reader will ask for."""

    key: str
    start: int
    end: int
    first_key: bytes
    whole: bool = False
    wanted: int = 0
    answer: "asyncio.Task[bytes] | None" = None
    data: bytes | None = field(default=None, repr=False)


def ranges(parts: Iterable[Part], key_range: KeyRange | None, bytes_max: int | None = None) -> list[ByteRange]:
    """What to fetch for these parts within ``key_range``, in key order; blocks are joined up to ``bytes_max``."""
    most = RANGE_BYTES_MAX if bytes_max is None else bytes_max
    found = [one for part in parts if part.key is not None for one in _of_part(part, part.key, key_range, most)]
    return sorted(found, key=lambda one: one.first_key)


def _of_part(part: Part, key: str, key_range: KeyRange | None, bytes_max: int) -> list[ByteRange]:
    if part.encoded_bytes <= WHOLE_BYTES_MAX:
        return [ByteRange(key, 0, part.encoded_bytes, part.key_lower, whole=True, wanted=part.encoded_bytes)]
    footer_start = part.encoded_bytes - part.footer_bytes
    wanted = [(block.offset, block.offset + block.length, block.first_key) for block in _overlapping(part, key_range)]
    pieces = sorted([*wanted, (footer_start, part.encoded_bytes, part.key_lower)])
    found: list[ByteRange] = []
    for start, end, first_key in pieces:
        last = found[-1] if found else None
        if last is not None and last.end == start and end - last.start <= bytes_max:
            last.end, last.first_key = end, min(last.first_key, first_key)
        else:
            found.append(ByteRange(key, start, end, first_key))
        found[-1].wanted += end - start
    return found


def _overlapping(part: Part, key_range: KeyRange | None) -> Sequence[Block]:
    if key_range is None:
        return part.blocks
    return [part.blocks[index] for index in blocks_in(part, key_range)]


class Fetcher:
    """Ranges of one read, fetched ahead. Made and closed on the event loop; ``read`` is for the decoding thread.

    ``verify`` is awaited when a blob is gone, to distinguish an expired lease (it raises) from corruption.
    """

    def __init__(
        self,
        blob: Blob,
        planned: Sequence[ByteRange],
        *,
        settings: Settings,
        attempts: Attempts,
        budget_bytes: int,
        timeout: float | None = None,
        verify: Verify | None = None,
    ) -> None:
        self._blob = blob
        self._settings = settings
        self._attempts = attempts
        self._timeout = timeout
        self._verify = verify
        self._budget = budget_bytes
        self._loop = asyncio.get_running_loop()
        self._pending = list(reversed(planned))
        self._of_key: dict[str, list[ByteRange]] = {}
        for one in planned:
            self._of_key.setdefault(one.key, []).append(one)
        self._in_flight = 0
        self._held = 0
        self._counting = threading.Lock()
        self._closed = False
        self._tasks = Tasks()
        self._pump()

    async def settle(self) -> None:
        """Wait until everything planned is here, whatever the budget: for reads small enough."""
        self._budget = 1 << 62
        self._pump()
        for planned in list(self._of_key.values()):
            for one in list(planned):
                self._start(one)
                assert one.answer is not None
                await one.answer

    def reader(self, key: str | None) -> Callable[[int, int], bytes | memoryview]:
        """What decodes a part reads its bytes with. Blocks; never call the result on the event loop unless settled."""

        def read(start: int, end: int) -> bytes | memoryview:
            assert key is not None, "inline parts read nothing"
            return self._read(key, start, end)

        return read

    async def close(self) -> None:
        """Stop fetching: a thread that still decodes is refused what it asks for from here on."""
        self._closed = True
        self._pending = []
        await self._tasks.close()
        self._of_key = {}

    def _read(self, key: str, start: int, end: int) -> bytes | memoryview:
        one = self._covering(key, start, end)
        data = one.data if one is not None else None
        if one is None or data is None:
            data, one = across(self._take(key, start, end), self._loop)
        if self._is_done(one, end - start):
            # Waking the loop costs more than to read a block: it is done for what can be dropped, and no oftener.
            self._loop.call_soon_threadsafe(self._consumed, one)
        if one.start == start and one.end == end:
            return data
        return memoryview(data)[start - one.start : end - one.start]

    def _covering(self, key: str, start: int, end: int) -> ByteRange | None:
        for one in self._of_key.get(key, ()):
            if one.start <= start and end <= one.end:
                return one
        return None

    async def _take(self, key: str, start: int, end: int) -> tuple[bytes, ByteRange]:
        if self._closed:
            raise asyncio.CancelledError
        one = self._covering(key, start, end)
        if one is None:
            one = ByteRange(key, start, end, b"", wanted=end - start)
            self._of_key.setdefault(key, []).append(one)
        self._start(one)
        assert one.answer is not None
        return await one.answer, one

    def _is_done(self, one: ByteRange, size: int) -> bool:
        """Whether this was the last of what is wanted of a range: said once."""
        with self._counting:
            before, one.wanted = one.wanted, one.wanted - size
            return before > 0 >= one.wanted

    def _consumed(self, one: ByteRange) -> None:
        if one in self._of_key.get(one.key, ()):
            self._of_key[one.key].remove(one)
            self._held -= one.end - one.start
            one.data = None
            one.answer = None
        self._pump()

    def _pump(self) -> None:
        while self._pending and self._in_flight < IN_FLIGHT_MAX:
            one = self._pending[-1]
            # What was asked for meanwhile has been fetched, and perhaps been read already.
            if one.answer is None and one.wanted > 0:
                if self._held + one.end - one.start > self._budget:
                    return
                self._start(one)
            self._pending.pop()

    def _start(self, one: ByteRange) -> None:
        if one.answer is None:
            self._held += one.end - one.start
            self._in_flight += 1
            one.answer = self._tasks.start(self._get(one))

    async def _get(self, one: ByteRange) -> bytes:
        byte_range = None if one.whole else (one.start, one.end)
        try:
            data = await self._attempts.repeat(
                self._attempts.deadline(self._timeout),
                lambda seconds: self._blob.get(one.key, byte_range=byte_range, timeout=seconds),
                limit_ms=self._settings.blob_timeout_ms,
            )
        finally:
            self._in_flight -= 1
        if data is None:
            if self._verify is not None:
                await self._verify()
            raise CorruptData("a part is missing", hint="persist fsck shows what else is missing", key=one.key)
        if len(data) != one.end - one.start:
            raise CorruptData(
                "a part is not as long as recorded",
                hint="it was cut or replaced",
                key=one.key,
                expected=one.end,
                got=len(data),
            )
        one.data = data
        self._pump()
        return data
