"""Methods given to what their object owns, without a cycle of references: the object goes with the last one to it."""

import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def weakly(method: Callable[P, T]) -> Callable[P, T]:
    """A bound method that keeps nothing in memory. Its object must be there whenever it is called."""
    reference = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        found = reference()
        assert found is not None, "its object is there while it is called"
        result: T = found(*args, **kwargs)
        return result

    return call


def while_there(method: Callable[P, object]) -> Callable[P, None]:
    """As ``weakly``, of an object that may be gone by then: nothing happens."""
    reference = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        found = reference()
        if found is not None:
            found(*args, **kwargs)

    return call
