"""What a test is sure of: what types cannot say, checked."""

from typing import Any, TypeVar

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
