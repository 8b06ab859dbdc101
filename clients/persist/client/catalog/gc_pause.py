"""Making very many objects at once without looking for garbage among them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_paused = 0


@contextmanager
def no_collection() -> Iterator[None]:
    """No search for cycles meanwhile: there are none, and looking through all objects again and again takes longer
    than making them. Others that load at the same time need the same."""
    global _paused
    _paused += gc.isenabled() or _paused > 0
    mine = _paused > 0
    gc.disable()
    try:
        yield
    finally:
        _paused -= mine
        if mine and not _paused:
            gc.enable()
