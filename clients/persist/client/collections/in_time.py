"""Time limits of calls, for the parts of them that have none of their own."""

from contextlib import AbstractAsyncContextManager

from persist.retry.deadline import Deadline


def within(deadline: Deadline) -> AbstractAsyncContextManager[None]:
    """A block that only looks, and ends with the time of its call. Raises Determinate: that was up."""
    return deadline.within(
        "the location did not answer in time", hint="repeat it, with a longer timeout if the location is slow"
    )
