"""Which format brought which field of a state: the one table by which states are written and read.

A location has a write-version: the newest format that may be written there. What is written in a format holds no field
of a later one, and a field that is not in this table is written in none. To add one, give it the next number in its
message, a row in ``ADDED`` under a new ``STATE_FORMAT``, and set it only where ``Context.format`` reaches that.
Source: docs/adr/0013; docs/formats.md, State.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from persist.core.shard.state import FIRST_FORMAT
from persist.errors import check
from persist.v1 import state_pb2 as pb

FIRST: Final[Mapping[str, int]] = {
    "Antichain": 1,
    "Block": 6,
    "ColumnStats": 5,
    "Description": 3,
    "HollowBatch": 3,
    "Part": 20,
    "Run": 1,
    "SchemaEntry": 3,
    "StateCallOutcome": 4,
    "StateClaim": 3,
    "StateClaimChange": 2,
    "StateCriticalReader": 5,
    "StateDiff": 37,
    "StateFrontierChange": 2,
    "StateGoneBatch": 2,
    "StateLeasedReader": 7,
    "StateNumberChange": 2,
    "StateRollup": 25,
    "StateRollupRef": 4,
    "StateSession": 6,
    "StateSessionChange": 5,
    "StateSpineBatch": 6,
    "StateSplice": 4,
    "StateTextChange": 2,
    "StateToken": 5,
    "StateTokenOutcome": 3,
    "StateTransaction": 5,
    "StateWriter": 4,
    "StateWriterChange": 3,
}
"""The messages of ``FIRST_FORMAT``, and how many fields each has there."""

ADDED: Final[Mapping[int, tuple[str, ...]]] = {3: ("StateSplice.changed",)}
"""By format, the fields it brought: ``Message.field``. A message that comes with a field brings its fields along."""

NEVER: Final = 256
"""The format of fields that are not registered: frames have none so large."""

_ROOTS: Final = (pb.StateRollup.DESCRIPTOR, pb.StateDiff.DESCRIPTOR)
_FORMAT_OF: Final = {name: number for number, names in ADDED.items() for name in names}


def format_of_field(field: FieldDescriptor) -> int:
    """The format that brought a field; ``NEVER`` for one that none did."""
    assert field.containing_type is not None
    message = field.containing_type.name
    known = _FORMAT_OF.get(f"{message}.{field.name}")
    if known is not None:
        return known
    # A message that FIRST lacks came with a field that leads to it, whose format counts.
    return FIRST_FORMAT if field.number <= FIRST.get(message, field.number) else NEVER


def check_fields(message: Message, format: int) -> None:
    """Raise CorruptData when a state's message holds a field that its format does not have.

    Costs nothing for a message that cannot hold one, which is so in the newest format.
    """
    # Formats before the first one that is written are only read, and are not distinguished.
    allowed = max(format, FIRST_FORMAT)
    path = _paths(allowed).get(message.DESCRIPTOR.name)
    if path is not None:
        _check(message, path, allowed)


@dataclass(frozen=True, slots=True)
class _Path:
    """What a message may not hold, and which fields lead to messages that may not hold something."""

    barred: frozenset[int]
    onward: frozenset[int]


def _check(message: Message, path: _Path, format: int) -> None:
    for field, value in message.ListFields():
        check(
            field.number not in path.barred,
            "a state holds no field that its format does not have",
            field=f"{message.DESCRIPTOR.name}.{field.name}",
            format=format,
        )
        if field.number in path.onward:
            assert field.message_type is not None
            onward = _paths(format)[field.message_type.name]
            for each in (value,) if isinstance(value, Message) else value:
                _check(each, onward, format)


@lru_cache(maxsize=64)
def _paths(format: int) -> Mapping[str, _Path]:
    """The messages in which something is barred, or that lead there."""
    messages = _messages()
    barred = {
        name: frozenset(field.number for field in message.fields if format_of_field(field) > format)
        for name, message in messages.items()
    }
    found = {name for name in barred if barred[name]}
    while more := {name for name in messages.keys() - found if _leads(messages[name], found)}:
        found |= more
    return {
        name: _Path(
            barred[name],
            frozenset(f.number for f in messages[name].fields if f.message_type and f.message_type.name in found),
        )
        for name in found
    }


def _leads(message: Descriptor, to: set[str]) -> bool:
    return any(field.message_type is not None and field.message_type.name in to for field in message.fields)


@lru_cache(maxsize=1)
def _messages() -> Mapping[str, Descriptor]:
    messages: dict[str, Descriptor] = {}
    todo = list(_ROOTS)
    while todo:
        message = todo.pop()
        if message.name not in messages:
            messages[message.name] = message
            todo += [field.message_type for field in message.fields if field.message_type is not None]
    return messages
