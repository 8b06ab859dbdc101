"""Work in proportion to a shard, in pieces between which its thread may give way.

Python runs one thread at a time: while a worker decodes a state of 100,000 batches, an event loop beside it gets every
other turn at best. What loops over such a state loops over ``paced(...)`` of it, and what runs it says, by
``pausing``, what is done between the pieces; without that nothing is. Source: docs/scaling.md, one shard among many.
"""

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Final, ParamSpec, TypeVar

__all__ = ["PIECE", "paced", "pausing"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

PIECE: Final = 32
"""Items of a piece: well below a millisecond of work."""

_pause: ContextVar[Callable[[], None] | None] = ContextVar("pause", default=None)


def paced(items: Iterable[T]) -> Iterable[T]:
    """The same items; between pieces of them, what the running thread does to give way."""
    pause = _pause.get()
    return items if pause is None else _pieces(items, pause)


def _pieces(items: Iterable[T], pause: Callable[[], None]) -> Iterator[T]:
    left = PIECE
    for item in items:
        if not left:
            pause()
            left = PIECE
        left -= 1
        yield item


def pausing(pause: Callable[[], None], function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What the function returns; ``pause`` is called between the pieces of what it does."""
    token = _pause.set(pause)
    try:
        return function(*args, **kwargs)
    finally:
        _pause.reset(token)
