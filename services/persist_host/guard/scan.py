"""Counts what serialized messages hold before anything is made of them.

An empty element takes two bytes on the wire and hundreds in memory, so the size of a request says little about what
parsing it costs. A scan walks over the bytes, steps over what cannot multiply, and stops at the first bound that is
passed: its own work is bounded by the same table. What it counted says how much memory the message will take.

It is stricter than a parser: groups, and fields that are not repeated and come twice, are refused. No client sends
them, and merging them is how a bound would be evaded. Source: docs/runbook.md, limits; protobuf's encoding.
"""

from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from persist.errors import InvalidArgument, RequestTooLarge
from persist.settings import Settings
from persist_host.guard.bounds import COUNTS, UNKNOWN_MAX, count_of, total_of

MESSAGE_COST: Final = 1024
"""Bytes of memory that one element which is a message takes, parsed and as the objects made of it; generously."""
SINGLE_COST: Final = 256
"""The same for a message in a field that is not repeated: few kinds of them, and small."""
VALUE_COST: Final = 128
"""The same for one element of a repeated field that is no message."""

CALLS: Final = "SessionRequest.calls"
CALLS_MAX: Final = int(COUNTS[CALLS])

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES: Final = 10
_CONTINUED: Final = bytes(range(128, 256))
_FIXED: Final = {
    FieldDescriptor.TYPE_FIXED64: 8, FieldDescriptor.TYPE_SFIXED64: 8, FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED32: 4, FieldDescriptor.TYPE_SFIXED32: 4, FieldDescriptor.TYPE_FLOAT: 4,
}  # fmt: skip
_TEXTS: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


class _Field:
    """One field of a message: how often it may come and what is inside. ``packed``: bytes per element, 0: varints."""

    __slots__ = ("bound", "calls", "inside", "message", "name", "packed", "repeated", "total")

    def __init__(self, field: FieldDescriptor, bound: int, total: int | None, inside: "_Shape | None") -> None:
        self.name = _name(field)
        self.bound = bound
        self.total = total
        self.calls = self.name == CALLS
        self.repeated = field.is_repeated
        self.message = field.message_type is not None
        self.inside = inside
        scalars = self.repeated and not self.message and field.type not in _TEXTS
        self.packed: int | None = _FIXED.get(field.type, 0) if scalars else None


_Shape = dict[int, _Field]


class Scan:
    """What messages of one type may hold. Raises ValueError when a repeated field has no bound."""

    def __init__(self, message: Descriptor, settings: Settings) -> None:
        self._name = message.name
        self._shape = _shape(message, settings, {}, ()) or {}
        self._memory = settings.request_memory_bytes

    def __call__(self, data: bytes) -> int:
        """The memory, in bytes, that parsing the message and working with it takes beside ``data``.

        Raises RequestTooLarge (a bound was passed), InvalidArgument (no such message can be in these bytes).
        """
        return self._weigh(data, _Room(self._memory))

    def _weigh(self, data: bytes, room: "_Room") -> int:
        try:
            _walk(data, 0, len(data), self._shape, room)
            return room.used
        except IndexError:
            raise undecodable(self._name) from None

    def __repr__(self) -> str:
        return f"Scan({self._name})"


class FrameScan(Scan):
    """A scan of frames of calls: what one call of a frame may not hold refuses that call, and not those beside it."""

    def __init__(self, message: Descriptor, settings: Settings) -> None:
        super().__init__(message, settings)
        field = message.fields_by_name[CALLS.partition(".")[2]]
        self._calls = field.number << 3 | _BYTES
        assert field.message_type is not None
        self._id = field.message_type.fields_by_name["id"].number << 3 | _VARINT
        self._call = Scan(field.message_type, settings)

    def frame(self, data: bytes) -> "ScannedFrame":
        """What the frame holds, and which call of it is refused. Its cost is that of three scans at most.

        Raises as a call of this does, also where more than one of its calls would be refused.
        """
        room = _Room(self._memory)
        try:
            return ScannedFrame(data, self._weigh(data, room), None)
        except RequestTooLarge:
            calls = self._apart(data)
            if not 0 < room.begun <= len(calls):
                raise
            refused = calls.pop(room.begun - 1)
            try:
                self._call(refused)
            except RequestTooLarge as error:
                rest = b"".join([_tagged(self._calls, call) for call in calls])
                return ScannedFrame(rest, self(rest), (self._id_of(refused), error.with_traceback(None)))
            # It is what all of them hold together.
            raise

    def _apart(self, data: bytes) -> list[bytes]:
        """The calls of a frame that holds nothing else; none for another one."""
        found: list[bytes] = []
        at = 0
        try:
            while at < len(data):
                tag, at = _varint(data, at)
                size, at = _varint(data, at)
                if tag != self._calls or at + size > len(data) or len(found) == CALLS_MAX:
                    return []
                found.append(data[at : at + size])
                at += size
        except IndexError:
            return []
        return found

    def _id_of(self, call: bytes) -> int:
        """Its id, which its sender puts first; 0: elsewhere, or none."""
        tag, at = _varint(call, 0)
        return _varint(call, at)[0] if tag == self._id else 0


class ScannedFrame(NamedTuple):
    """``data``: the frame without the call that is refused, if any, by its id and why. ``memory``: what it takes."""

    data: bytes
    memory: int
    refused: tuple[int, RequestTooLarge] | None


def _tagged(tag: int, inside: bytes) -> bytes:
    out, size = bytearray([tag]), len(inside)
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes((*out, size)) + inside


def undecodable(name: str) -> InvalidArgument:
    """The error of bytes that are no such message."""
    return InvalidArgument(f"the bytes are no {name}", hint="is the caller's release known to work with this one?")


def beyond_memory(needs: int, limit: int) -> RequestTooLarge:
    """The error of a message that takes more bytes of memory than all messages together may."""
    return RequestTooLarge(
        "the request takes more memory than this server gives to all requests",
        hint="send less at once, or raise PERSIST_REQUEST_MEMORY_BYTES",
        needs=needs,
        limit=limit,
    )


def _shape(message: Descriptor, settings: Settings, known: dict[str, "_Shape"], above: tuple[str, ...]) -> _Shape:
    if message.full_name in above:
        raise ValueError(f"{message.full_name} holds itself: nothing bounds how deep")
    if message.full_name not in known:
        fields: _Shape = known.setdefault(message.full_name, {})
        for field in message.fields:
            inside = None
            if field.message_type is not None:
                below = _shape(field.message_type, settings, known, (*above, message.full_name))
                inside = below if _multiplies(field.message_type) else None
            bound = count_of(_name(field), settings) if field.is_repeated else 1
            if bound is None:
                raise ValueError(f"no bound for {_name(field)}: add it to persist_host/guard/bounds.py")
            fields[field.number] = _Field(field, bound, total_of(_name(field), settings), inside)
    return known[message.full_name]


def _name(field: FieldDescriptor) -> str:
    """``Message.field``, as the table has it."""
    return ".".join(field.full_name.split(".")[-2:])


def _multiplies(message: Descriptor) -> bool:
    """Whether its bytes may become more than one object: the rest is stepped over."""
    return any(field.is_repeated or field.message_type is not None for field in message.fields)


class _Room:
    """What is left to one whole message, whatever holds what: memory, and elements of fields with a total."""

    __slots__ = ("begun", "memory", "seen", "used")

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.used = MESSAGE_COST
        self.seen: dict[str, int] = {}
        self.begun = 0
        """Elements so far of the field whose elements are calls of their own."""

    def take(self, field: _Field, total: int) -> None:
        """Count an element of a field with a total. Raises RequestTooLarge."""
        self.seen[field.name] = count = self.seen.get(field.name, 0) + 1
        if count > total:
            raise _too_many(field, total)


def _walk(data: bytes, at: int, end: int, shape: _Shape, room: _Room) -> None:
    """Take the memory of what lies in ``data[at:end]``."""
    unknown = 0
    seen: dict[int, int] = {}
    while at < end:
        tag = data[at]
        at += 1
        if tag > 127:
            tag, at = _varint(data, at - 1)
        wire, number = tag & 7, tag >> 3
        start = at
        if wire == _BYTES:
            size = data[at]
            at += 1
            if size > 127:
                size, at = _varint(data, at - 1)
            start, at = at, at + size
        elif wire == _VARINT:
            while data[at] > 127:
                at += 1
            at += 1
            if at - start > _VARINT_BYTES:
                raise IndexError
        elif wire == _FIXED32:
            at += 4
        elif wire == _FIXED64:
            at += 8
        else:
            raise IndexError
        if at > end:
            raise IndexError
        field = shape.get(number)
        if field is None:
            unknown += 1
            if unknown > UNKNOWN_MAX:
                raise RequestTooLarge("too many fields that this release does not know", limit=UNKNOWN_MAX)
            continue
        count = 1 if field.packed is None or wire != _BYTES else _packed(data, start, at, field.packed)
        seen[number] = count = seen.get(number, 0) + count
        if count > field.bound:
            raise _over(field)
        if field.total is not None:
            room.take(field, field.total)
        if field.message:
            room.used += MESSAGE_COST if field.repeated else SINGLE_COST
            if field.inside is not None and wire == _BYTES:
                room.begun += field.calls
                _walk(data, start, at, field.inside, room)
        elif field.repeated:
            room.used += VALUE_COST
        if room.used > room.memory:
            # It can never be let in: the rest of it need not be looked at.
            raise beyond_memory(room.used, room.memory)


def _over(field: _Field) -> Exception:
    if not field.repeated:
        return InvalidArgument(f"{field.name} comes twice in one message", hint="send each field once")
    return _too_many(field, field.bound)


def _too_many(field: _Field, limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"more than {limit} elements in {field.name}", hint="send less at once", limit=limit)


def _packed(data: bytes, at: int, end: int, width: int) -> int:
    """Elements of a packed field."""
    return (end - at) // width if width else len(data[at:end].translate(None, _CONTINUED))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and where it ends. Raises IndexError."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError


def is_frame(message: Descriptor) -> bool:
    """Whether its elements are calls of their own."""
    return any(_name(field) == CALLS for field in message.fields)


def input_of(method: str) -> Any:
    """The type of the requests of ``/package.Service/Method``, as a message class. Raises KeyError."""
    service, _, name = method.strip("/").rpartition("/")
    found = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
    return message_factory.GetMessageClass(found.input_type)


def check_bounds(service: str, settings: Settings) -> None:
    """Nothing, when every repeated field of every request of ``package.Service`` has a bound. Raises ValueError."""
    for method in descriptor_pool.Default().FindServiceByName(service).methods:
        Scan(method.input_type, settings)
