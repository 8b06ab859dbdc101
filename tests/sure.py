"""What a test is sure of: what types cannot say, checked."""

import asyncio
from typing import Any, TypeVar

import pytest
from google.protobuf.message import Message

T = TypeVar("T")


def sure(value: T | None) -> T:
    """The value, which is there."""
    assert value is not None
    return value


def as_a(kind: type[T], value: object) -> T:
    """The value, which is of this kind and not another that there may be in its place."""
    assert isinstance(value, kind), value
    return value


def put(place: object, name: str, value: object) -> None:
    """Have a method, or what a module imported, be another one."""
    assert hasattr(place, name), name
    setattr(place, name, value)


async def heard(call: Any) -> Any:
    """The next message of a stream, which has not ended."""
    message = await call.read()
    assert isinstance(message, Message), message
    return message


async def reached(event: asyncio.Event, task: asyncio.Future[Any]) -> None:
    """Wait until the task has come there. One that ends before fails the test with what it ended with, and at once."""
    coming = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({coming, task}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        coming.cancel()
    if not event.is_set():
        pytest.fail(f"it ended before it came there, with {await task!r}")
