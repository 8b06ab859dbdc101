"""Asynchronous iterators and blocks as Python's plain ones, and as Arrow streams.

Source: architecture.md section 8; style.md rule 26; the Arrow PyCapsule interface.
"""

import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from html import escape
from typing import Any, Self, TypeVar, cast

import pyarrow as pa

from persist.client.blocking.bridge.held import H, Held
from persist.client.shard.loop_thread import LoopThread
from persist.client.shard.read.listen import Event
from persist.client.shard.read.whole import WholeIterator
from persist.errors import PersistError

T = TypeVar("T")

NOTEBOOK_ROWS = 20
"""Rows of a read that a notebook shows."""


class Events(Held):
    """A listen as a plain iterator. A step that was interrupted loses nothing, also if its event had come already."""

    def __init__(self, owner: object, loop: LoopThread, inner: Any) -> None:
        super().__init__(owner, loop, inner)
        self._interrupted: deque[list[Event | None]] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        came: list[Event | None] = []
        try:
            event = self._run(_step(self._inner, came, self._interrupted))
        except BaseException:
            # SUBTLE: an interrupt may meet an event on its way between the threads. Looked into by the next step, on
            # the loop, where this one has either ended by then or was cancelled.
            self._interrupted.append(came)
            raise
        if event is None:
            raise StopIteration
        return event


class ArrowStream(Held):
    """A read for consumers of Arrow streams: DuckDB, Polars, pyarrow, pandas."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """All rows, as they are decoded, for consumers of Arrow streams: DuckDB, Polars, pyarrow, pandas.

        Each asking reads anew. Raises LeaseExpired, UsageError (closed or expired); while it is read, what Arrow makes
        of CorruptData and LocationError. Source: the Arrow PyCapsule interface.
        """
        batches = record_batches(self, self._inner.output(), self._inner.to_batches())
        return batches.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]  # untyped in the stubs

    def _repr_html_(self) -> str:
        """What a notebook shows: what this is, and its first rows, unless they cannot be read."""
        about = f"<p><code>{escape(repr(self))}</code></p>"
        try:
            with contextlib.closing(iterated(self, self._inner.to_batches())) as batches:
                shown = next(batches, None)
        except PersistError:
            return about
        rows = [] if shown is None else shown.slice(0, NOTEBOOK_ROWS).to_pylist()
        names = self._inner.output().names
        head = _row("th", names)
        return f"{about}<table>{head}{''.join(_row('td', [row[name] for name in names]) for row in rows)}</table>"


def _row(cell: str, values: Iterable[object]) -> str:
    cells = (f"<{cell}>{'' if value is None else escape(str(value))}</{cell}>" for value in values)
    return f"<tr>{''.join(cells)}</tr>"


def record_batches(owner: Held, output: pa.Schema, found: AsyncGenerator[pa.RecordBatch, None]) -> pa.RecordBatchReader:
    """Batches as they come."""
    return pa.RecordBatchReader.from_batches(output, iterated(owner, found))


def iterated(owner: Held, found: AsyncIterator[T]) -> Generator[T, None, None]:
    """What an asynchronous iterator gives, which is closed when this one is closed or dropped.

    ``owner`` lives as long: what it holds, and its client, are needed until the end. Raises UsageError when it is asked
    on after an interruption or a failure.
    """
    return WholeIterator(_iterated(owner, found))


def _iterated(owner: Held, found: AsyncIterator[T]) -> Generator[T, None, None]:
    try:
        while (each := owner._run(_next(found))) is not None:
            yield each
    finally:
        # Not awaited: dropping it may happen in any thread, that of the loop too.
        owner._loop.spawn(_close(found))


async def collected(found: AsyncIterator[T]) -> list[T]:
    """All that an asynchronous iterator gives."""
    return [each async for each in found]


class _Left(Exception):
    """A block ended with an error."""


class _Entered(AbstractContextManager[H]):
    """An asynchronous block as a plain one.

    SUBTLE: a class, whose ``__exit__`` ends with the call that leaves the block: between that and the frame of the user
    there is nothing at which an interrupt could take the answer away.
    """

    def __init__(self, owner: Held, kind: type[H], block: AbstractAsyncContextManager[object]) -> None:
        self._owner, self._kind, self._block = owner, kind, block

    def __enter__(self) -> H:
        return self._owner._give(self._kind, self._owner._run(_enter(self._block)))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return self._owner._run(_leave(self._block, None))
        # SUBTLE: not the error itself. An interrupt raised on the loop would end the loop.
        with contextlib.suppress(_Left):
            self._owner._run(_leave(self._block, _Left()))
        return None


def entered(owner: Held, kind: type[H], block: AbstractAsyncContextManager[object]) -> AbstractContextManager[H]:
    """An asynchronous block as a plain one."""
    return _Entered(owner, kind, block)


async def _enter(block: AbstractAsyncContextManager[T]) -> T:
    return await block.__aenter__()


async def _leave(block: AbstractAsyncContextManager[object], error: _Left | None) -> None:
    await block.__aexit__(None if error is None else _Left, error, None)


async def _next(found: AsyncIterator[T]) -> T | None:
    return await anext(found, None)


async def _step(
    found: AsyncIterator[Event], came: list[Event | None], interrupted: deque[list[Event | None]]
) -> Event | None:
    while interrupted:
        before = interrupted.popleft()
        if before:
            came += before
            return before[0]
    came.append(await _next(found))
    return came[0]


async def _close(found: AsyncIterator[object]) -> None:
    await cast(AsyncGenerator[Any, None], found).aclose()
