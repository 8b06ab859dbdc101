"""Turning updates into the parts of a batch, in bounded memory.

Rows are gathered into chunks; one chunk is sorted while two before it are encoded and earlier ones are uploaded.
Each chunk becomes a run; chunks that follow each other in key order share one. A tiny batch stays inline.
Source: design 001, WriteHandle; persist-semantics.md feature rows 21, 24, 25, 26.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from persist.client.shard.write.bodies import Fingerprint
from persist.client.shard.write.inputs import Chunker, UpdatesLike, is_instant, tables, within
from persist.core.data.schema import Schema
from persist.core.data.update import check_bounds, check_declared, consolidate, normalise
from persist.core.frontier import Antichain
from persist.core.ids import ShardId, WriterId, part_key
from persist.core.shard.batch import Part, Run
from persist.errors import LocationError, RequestTooLarge
from persist.machine.parts.reading import PART_BYTES
from persist.machine.parts.threads import encode
from persist.retry.attempts import TIMEOUT_MAX, Attempts, certain
from persist.retry.deadline import Deadline
from persist.retry.tasks import Tasks
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Blob
from persist.threads import users
from persist.wire.columnar import Encoded, decode_inline, encode_inline, encode_parts

T = TypeVar("T")

WRITER_VERSION = 1
"""The release number in the keys of parts."""

_CHUNK_BYTES_MAX = 24 << 20
"""Arrow bytes of a chunk: an append takes about eight times as much at its peak."""

_ENCODED_AT_ONCE = 2
"""Encoding takes twice as long as sorting: one encoder would leave a second core idle."""

ON_LOOP_BYTES_MAX = 64 << 10
"""Work on less than this is done on the event loop: a thread hop would cost more."""

Bounds = tuple[Antichain, Antichain]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsTarget:
    """Where parts go and what their rows look like."""

    blob: Blob
    shard: ShardId
    writer_id: WriterId
    schema: Schema
    schema_id: int


class BatchBuilder:
    """Takes tables and makes runs of uploaded parts. Holds three chunks of at most 24 MiB, and what is being uploaded.

    Nothing names the parts until they are committed: a caller that gives up calls ``discard``.
    """

    def __init__(
        self,
        target: PartsTarget,
        *,
        settings: Settings,
        runtime: Runtime,
        bounds: Bounds | None = None,
        timeout: float | None = None,
        fingerprint: Fingerprint | None = None,
        room: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``fingerprint``: takes in what is added, too. ``room``: raises where an upload would be for nothing."""
        self._room = room
        self._fingerprint = fingerprint
        self._target = target
        self._settings = settings
        self._runtime = runtime
        self._bounds = bounds
        self._timeout = timeout
        self._deadline: Deadline | None = None
        self._attempts = Attempts(settings=settings, runtime=runtime)
        self._chunker = Chunker(rows_max=settings.sort_rows, bytes_max=_CHUNK_BYTES_MAX)
        self._chunks: list[list[Part]] = []
        self._keys: list[str] = []
        self._encoding = asyncio.Semaphore(_ENCODED_AT_ONCE)
        self._uploading = asyncio.Semaphore(max(1, settings.uploads_outstanding))
        self._tasks = Tasks()
        self._work: list[asyncio.Task[Any]] = []

    async def consume(self, updates: UpdatesLike) -> tuple[Run, ...]:
        """Take all updates, or tables of an async iterator, and finish. On any failure what was uploaded is deleted.

        Raises InvalidArgument, SchemaMismatch, InvalidBounds, EmptyInterval, LocationError.
        """
        try:
            source = updates if isinstance(updates, AsyncIterator) else tables(updates, self._target.schema)
            instant = is_instant(updates)
            while (table := await self._pull(source, instant)) is not None:
                await self.add(table if self._bounds is None else within(table, *self._bounds))
                table = None  # the builder alone decides how long rows are held
            return await self.finish()
        except BaseException:
            await self.discard()
            raise

    async def add(self, table: pa.Table) -> None:
        """Take a table in; waits while three chunks are under way."""
        for chunk in self._chunker.push(table):
            await self._has_room()
            await self._write(await self._sorted(chunk, sum(piece.nbytes for piece in chunk)))
        self._raise_failure()

    async def finish(self) -> tuple[Run, ...]:
        """The runs of everything added, all parts uploaded or inline. Raises what any of the work raised."""
        size = self._chunker.size
        rest = self._chunker.rest()
        if rest:
            table = await self._sorted(rest, size)
            size = table.nbytes
            inline = self._inline(table, size) if not self._chunks else None
            if inline is not None:
                return (Run(parts=(inline,)),)
            await self._has_room()
            await self._write(table, size)
        await self._settle()
        return runs_of(self._chunks)

    async def spill(
        self, runs: tuple[Run, ...], schema_of: Callable[[int], Awaitable[Schema]], deadline: Deadline
    ) -> tuple[Run, ...]:
        """The runs again without inline parts: their rows are uploaded together, 24 MiB of one schema as one run.

        For a state that holds too many inline bytes. ``schema_of`` is asked for schemas that are not the builder's.
        Raises what that does, CorruptData, InvalidArgument (a sum of diffs leaves i64), LocationError.
        """
        self._deadline = deadline
        done = list(_without_inline(runs))
        found = _inline_chunks(runs)
        # All of them before anything is uploaded: one may be unknown.
        targets = [await self._target_of(schema_id, schema_of) for schema_id in found]
        for target, chunks in zip(targets, found.values(), strict=True):
            before = len(self._chunks)
            for chunk in chunks:
                cost = sum(PART_BYTES + part.decoded_bytes for part in chunk)
                await self._write(await self._compute(cost, _decoded, chunk, target.schema), target=target)
            await self._settle()
            done += runs_of(self._chunks[before:])
        return tuple(done)

    async def _target_of(self, schema_id: int, schema_of: Callable[[int], Awaitable[Schema]]) -> PartsTarget:
        if schema_id == self._target.schema_id:
            return self._target
        return dataclasses.replace(self._target, schema_id=schema_id, schema=await schema_of(schema_id))

    async def _has_room(self) -> None:
        """Before the first upload."""
        room, self._room = self._room, None
        if room is not None:
            await room()

    async def _settle(self) -> None:
        while self._work:
            await self._work.pop(0)

    @property
    def keys(self) -> frozenset[str]:
        """Of all parts that were uploaded, or are being."""
        return frozenset(self._keys)

    async def discard(self, *, only: Collection[str] | None = None, seconds: float | None = None) -> None:
        """Stop all work and delete every uploaded part. Only for parts that no command named, or provably never will.

        ``only``: of these keys alone; others stay, for another ``discard``. ``seconds``: all of it takes no longer.
        What is not deleted then, or cannot be, is left to the sweeper.
        """
        await self._tasks.close()
        keys = [key for key in self._keys if only is None or key in only]
        self._keys = [key for key in self._keys if only is not None and key not in only]
        timeout = self._settings.store_timeout_ms / 1000
        ends = Deadline(self._runtime, TIMEOUT_MAX if seconds is None else seconds)
        for key in keys:
            if ends.passed:
                return
            with contextlib.suppress(LocationError):
                await self._target.blob.delete(key, timeout=min(timeout, ends.remaining()))

    async def _pull(self, source: Iterator[pa.Table] | AsyncIterator[pa.Table], instant: bool) -> pa.Table | None:
        if isinstance(source, AsyncIterator):
            return await anext(source, None)
        if instant:
            return next(source, None)
        return await users(self._runtime, next, source, None)

    async def _sorted(self, chunk: list[pa.Table], size: int) -> pa.Table:
        if self._fingerprint is not None:
            await self._compute(size, self._fingerprint.add, chunk)
        return await self._compute(size, sort_chunk, chunk, self._target.schema, self._bounds)

    def _inline(self, table: pa.Table, size: int) -> Part | None:
        limit = self._settings.inline_part_bytes_max
        # Compression rarely gains more than this: larger tables are not worth trying.
        if not table.num_rows or size > 16 * limit:
            return None
        part = encode_inline(table, self._target.schema, self._target.schema_id, size=size)
        if part.inline_bytes > limit:
            return None
        return part

    async def _write(self, table: pa.Table, size: int | None = None, target: PartsTarget | None = None) -> None:
        """``size``: the table's ``nbytes``, where it is known. ``target``: where its schema is not the builder's."""
        if not table.num_rows:
            return
        await self._encoding.acquire()
        parts: list[Part] = []
        self._chunks.append(parts)
        size = table.nbytes if size is None else size
        self._work.append(self._tasks.start(self._encode(table, size, parts, target or self._target)))

    async def _encode(self, table: pa.Table, size: int, parts: list[Part], target: PartsTarget) -> None:
        encoder = encode_parts(
            iter((table,)),
            target.schema,
            target.schema_id,
            part_bytes_max=self._settings.part_bytes_max,
            row_group_rows=self._settings.row_group_rows,
        )
        del table
        try:
            while (encoded := await self._compute(size, next, encoder, None)) is not None:
                check_count(len(self._keys) + 1, self._settings)
                key = self._new_key()
                parts.append(dataclasses.replace(encoded.part, key=key, inline=None))
                await self._uploading.acquire()
                self._work.append(self._tasks.start(self._upload(key, encoded)))
        finally:
            self._encoding.release()

    async def _upload(self, key: str, encoded: Encoded) -> None:
        # Nothing names the key yet: after a lost answer no reader can find what may be there.
        try:
            await certain(
                self._attempts.repeat(
                    self._deadline or self._attempts.deadline(self._timeout),
                    lambda seconds: self._target.blob.set(key, encoded.data, timeout=seconds),
                    limit_ms=self._settings.blob_timeout_ms,
                )
            )
        finally:
            self._uploading.release()

    def _new_key(self) -> str:
        target = self._target
        key = part_key(target.shard, target.writer_id, WRITER_VERSION, self._runtime.random_bytes(16))
        self._keys.append(key)
        return key

    async def _compute(self, size: int, function: Callable[..., T], *args: object) -> T:
        if size <= ON_LOOP_BYTES_MAX:
            return function(*args)
        return await encode(self._runtime, function, *args)

    def _raise_failure(self) -> None:
        for work in self._work:
            if work.done():
                work.result()
        self._work = [work for work in self._work if not work.done()]


def check_count(parts: int, settings: Settings) -> None:
    """Raise RequestTooLarge: no server takes so many parts in one append."""
    if parts > settings.parts_per_append_max:
        raise RequestTooLarge(
            "too many parts in one append",
            hint="nothing happened: append fewer and larger ones",
            parts=parts,
            limit=settings.parts_per_append_max,
        )


def sort_chunk(chunk: list[pa.Table], schema: Schema, bounds: Bounds | None) -> pa.Table:
    """The rows of a chunk normalised, checked, sorted and consolidated. Empties the list, to free its rows early.

    Raises SchemaMismatch, InvalidArgument, InvalidBounds, EmptyInterval.
    """
    table = pa.concat_tables([check_declared(normalise(piece, schema), schema) for piece in chunk]).combine_chunks()
    chunk.clear()
    if bounds is not None:
        check_bounds(table, *bounds)
    size = table.nbytes
    ordered = consolidate(table, schema, size=size)
    if size > ON_LOOP_BYTES_MAX:
        # Temporaries of this size would otherwise stay with the allocator while the next chunk takes its own.
        del table
        pa.default_memory_pool().release_unused()
    return ordered


def _without_inline(runs: Iterable[Run]) -> Iterator[Run]:
    for run in runs:
        parts = tuple(part for part in run.parts if part.inline is None)
        if parts:
            yield Run(parts=parts)


def _inline_chunks(runs: Iterable[Run]) -> dict[int, list[list[Part]]]:
    """The inline parts by their schema, in pieces of what is sorted at once."""
    found: dict[int, list[list[Part]]] = {}
    held: dict[int, int] = {}
    for part in (part for run in runs for part in run.parts if part.inline is not None):
        chunks = found.setdefault(part.schema_id, [])
        size = held.get(part.schema_id, 0) + part.decoded_bytes
        if not chunks or size > _CHUNK_BYTES_MAX:
            chunks.append([])
            size = part.decoded_bytes
        chunks[-1].append(part)
        held[part.schema_id] = size
    return found


def _decoded(parts: list[Part], schema: Schema) -> pa.Table:
    """The rows of inline parts at the times they are read at, sorted and consolidated."""
    return sort_chunk([decode_inline(part, schema) for part in parts], schema, None)


def runs_of(chunks: Iterable[Iterable[Part]]) -> tuple[Run, ...]:
    """Runs from sorted chunks: a chunk whose keys all lie beyond the run before it continues that run."""
    runs: list[list[Part]] = []
    for chunk in chunks:
        parts = list(chunk)
        if not parts:
            continue
        if runs and _precedes(runs[-1][-1], parts[0]):
            runs[-1].extend(parts)
        else:
            runs.append(parts)
    return tuple(Run(parts=tuple(parts)) for parts in runs)


def _precedes(before: Part, after: Part) -> bool:
    return before.key_upper is not None and before.key_upper < after.key_lower
