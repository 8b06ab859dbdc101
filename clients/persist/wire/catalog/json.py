"""Objects of the catalog as JSON that people read and edit. Nothing is lost either way.

Made from the same messages as rows, so a field has one name everywhere. An id is its text (``"u12"``), a role too
(``"p"``: PUBLIC), an enum the name of its value, a choice an object of one field (``{"managed": {…}}``), and what is
not there null. Numbers up to 2^53 - 1 are numbers; larger ones, which many readers of JSON would round, are text. Bytes
are hexadecimal digits.

Read: every field must be there but those that may be null, and no other; every number may be text. Source:
catalog-semantics.md section 1.2.12.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from persist.core.catalog.kinds import KINDS, AnyKind
from persist.core.catalog.values import PUBLIC, Id, RoleRef, Space
from persist.errors import InvalidArgument, InvalidId
from persist.typed import AnyDescriptor, AnyKey, AnyMessage, AnyValue, Json, Record
from persist.wire.catalog.messages import reference
from persist.wire.catalog.rows import SIDES

SAFE: Final = 2**53 - 1
"""The largest number that every reader of JSON keeps as it is."""

Show = Callable[[Any], Any]
Fill = Callable[[Any, Any, str], None]
"""Fills a message from JSON that stands at a path. Raises InvalidArgument."""


class _Form(NamedTuple):
    show: Show
    fill: Fill


def parse(text: str) -> Json:
    """What a JSON text says. Raises InvalidArgument, also for a field that is there twice."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("this is no JSON", hint=str(error) or "it is nested too deeply", got=text[:80]) from error


def show_key(kind: AnyKind, key: AnyKey) -> Json:
    """A key as JSON (dicts, lists, text, numbers). Raises InvalidArgument for what cannot be stored."""
    return _show(kind, 0, key)


def show_value(kind: AnyKind, value: AnyValue) -> Json:
    """A value as JSON (dicts, lists, text, numbers). Raises InvalidArgument for what cannot be stored."""
    return _show(kind, 1, value)


def read_key(kind: AnyKind, data: Json) -> Json:
    """The key that parsed JSON says. Raises InvalidArgument; its details name the field and what is expected there."""
    return _read(kind, 0, data)


def read_value(kind: AnyKind, data: Json) -> Json:
    """The value that parsed JSON says. Raises as ``read_key``."""
    return _read(kind, 1, data)


def _show(kind: AnyKind, side: int, it: Json) -> Json:
    message = SIDES[kind.tag][side].message()
    try:
        SIDES[kind.tag][side].mapped.fill(message, it)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidArgument("this object cannot be stored", kind=kind, got=it, problem=error) from error
    return _FORMS[kind.tag][side].show(message)


def _read(kind: AnyKind, side: int, data: Json) -> Json:
    message = SIDES[kind.tag][side].message()
    _FORMS[kind.tag][side].fill(message, data, ("key", "value")[side])
    return SIDES[kind.tag][side].mapped.take(message)


def _message(descriptor: AnyDescriptor) -> _Form:
    if descriptor.name in _REFERENCES:
        return _reference(descriptor)
    choice = [each for each in descriptor.oneofs if each.name != f"_{each.fields[0].name}"]
    return _choice(choice[0]) if choice else _fields(descriptor)


def _fields(descriptor: AnyDescriptor) -> _Form:
    parts = {field.name: _field(field) for field in descriptor.fields}
    needed = [field.name for field in descriptor.fields if not _may_be_null(field)]

    def show(message: AnyMessage) -> Json:
        return {name: part.show(message) for name, part in parts.items()}

    def fill(message: AnyMessage, data: Json, path: str) -> None:
        data = _object(data, path, parts)
        for name in needed:
            if name not in data:
                raise _refusal("a field is missing", _below(path, name), f"the fields {', '.join(parts)}", data)
        for name, value in data.items():
            parts[name].fill(message, value, _below(path, name))

    return _Form(show, fill)


def _choice(choice: Any) -> _Form:
    parts = {field.name: _message(field.message_type) for field in choice.fields}

    def show(message: AnyMessage) -> Json:
        name = message.WhichOneof(choice.name)
        return {name: parts[name].show(getattr(message, name))}

    def fill(message: AnyMessage, data: Json, path: str) -> None:
        data = _object(data, path, parts)
        if len(data) != 1:
            raise _refusal("not one choice", path, f"an object with one of the fields {', '.join(parts)}", data)
        [(name, value)] = data.items()
        getattr(message, name).SetInParent()
        parts[name].fill(getattr(message, name), value, _below(path, name))

    return _Form(show, fill)


def _field(field: FieldDescriptor) -> _Form:
    name, one = field.name, _scalar(field) if field.message_type is None else _message(field.message_type)
    put = _putting(field, one)

    def show_all(message: AnyMessage) -> Json:
        return [one.show(each) for each in getattr(message, name)]

    def fill_all(message: AnyMessage, data: Json, path: str) -> None:
        if not isinstance(data, list):
            raise _refusal(_WRONG, path, "a list", data)
        for index, each in enumerate(data):
            put(message, each, f"{path}[{index}]")

    def show_some(message: AnyMessage) -> Json:
        return one.show(getattr(message, name)) if message.HasField(name) else None

    def fill_some(message: AnyMessage, data: Json, path: str) -> None:
        if data is not None:
            put(message, data, path)

    if field.is_repeated:
        return _Form(show_all, fill_all)
    if _may_be_null(field):
        return _Form(show_some, fill_some)
    return _Form(lambda message: one.show(getattr(message, name)), put)


def _putting(field: FieldDescriptor, one: "_Form | _Scalar") -> Fill:
    """What puts one value into a field, or at the end of it."""
    name = field.name

    def put(message: AnyMessage, data: Json, path: str) -> None:
        if isinstance(one, _Form):
            inner = getattr(message, name).add() if field.is_repeated else getattr(message, name)
            inner.SetInParent()
            one.fill(inner, data, path)
        elif field.is_repeated:
            getattr(message, name).append(one.read(data, path))
        else:
            setattr(message, name, one.read(data, path))

    return put


def _may_be_null(field: FieldDescriptor) -> bool:
    return bool(field.containing_oneof is not None and field.containing_oneof.name == f"_{field.name}")


class _Scalar(NamedTuple):
    show: Show
    read: Callable[[Any, str], Any]


def _scalar(field: FieldDescriptor) -> _Scalar:
    if field.enum_type is not None:
        return _enum(field.enum_type)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return _BOOL
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _BYTES
    return _TEXT if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else _NUMBERS[field.cpp_type]


def _number(most: int) -> _Scalar:
    def read(data: Json, path: str) -> int:
        number: object = data
        if isinstance(data, str) and len(data) <= len(str(most)) and data.isascii() and data.isdecimal():
            number = int(data)
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= most:
            raise _refusal(_WRONG, path, f"a whole number from 0 to {most}", data)
        return number

    return _Scalar(lambda value: value if value <= SAFE else str(value), read)


def _enum(enum: EnumDescriptor) -> _Scalar:
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    numbers = {value.name.removeprefix(prefix).lower(): value.number for value in enum.values if value.number}
    names = {number: name for name, number in numbers.items()}

    def read(data: Json, path: str) -> int:
        if not isinstance(data, str) or data not in numbers:
            raise _refusal(_WRONG, path, f"one of {', '.join(numbers)}", data, numbers)
        return int(numbers[data])

    return _Scalar(names.__getitem__, read)


def _bool(data: Json, path: str) -> bool:
    if not isinstance(data, bool):
        raise _refusal(_WRONG, path, "true or false", data)
    return data


def _text(data: Json, path: str) -> str:
    if not isinstance(data, str):
        raise _refusal(_WRONG, path, "text", data)
    if any("\ud800" <= char <= "\udfff" for char in data):
        raise _refusal(_WRONG, path, "text without half a surrogate pair", data)
    return data


def _bytes(data: Json, path: str) -> bytes:
    if not isinstance(data, str) or not _HEX.fullmatch(data):
        raise _refusal(_WRONG, path, "bytes as hexadecimal digits", data)
    return bytes.fromhex(data)


_BOOL: Final = _Scalar(bool, _bool)
_HEX: Final = re.compile("(?:[0-9a-f]{2})*")
_BYTES: Final = _Scalar(bytes.hex, _bytes)
_TEXT: Final = _Scalar(str, _text)
_NUMBERS: Final = {
    FieldDescriptor.CPPTYPE_UINT32: _number(2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: _number(2**64 - 1),
}
_WRONG: Final = "a wrong value"

_REFERENCES: Final[dict[str, tuple[type[Id] | type[RoleRef], str]]] = {
    "CatalogId": (Id, 'an id: "u12", "s3" or "si4"'),
    "CatalogRoleRef": (RoleRef, 'a role: "u12", "s3" or "p" (PUBLIC)'),
}


def _reference(descriptor: AnyDescriptor) -> _Form:
    cls, expected = _REFERENCES[descriptor.name]
    part = reference(cls, descriptor)

    def fill(message: AnyMessage, data: Json, path: str) -> None:
        public = cls is RoleRef and data == "p"
        try:
            # No id is as long as that, and Python would rather not make a number of what is longer.
            named = PUBLIC if public else Id.parse(data[:30] if isinstance(data, str) else "")
        except InvalidId as error:
            raise _refusal(_WRONG, path, expected, data) from error
        if cls is RoleRef and named.space is Space.INTROSPECTION:
            raise _refusal(_WRONG, path, expected, data)
        part.fill(message, named)

    return _Form(lambda message: str(part.take(message)), fill)


def _object(data: Json, path: str, names: Iterable[str]) -> Record:
    expected = f"an object with the fields {', '.join(names)}" if names else "an empty object"
    if not isinstance(data, dict):
        raise _refusal(_WRONG, path, expected, data)
    for name in data:
        if name not in names:
            raise _refusal("an unknown field", _below(path, name), expected, data[name], names, name)
    return data


def _refusal(
    problem: str, path: str, expected: str, got: Json, known: Iterable[str] = (), name: str | None = None
) -> InvalidArgument:
    near = difflib.get_close_matches(str(got if name is None else name), list(known), 1)
    hint = f"did you mean {near[0]}?" if near else ""
    shown = json.dumps(got, ensure_ascii=False).encode(errors="backslashreplace").decode()
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return InvalidArgument(problem, hint=hint, field=path, expected=expected, got=shown)


_SHOWN: Final = 80


def _below(path: str, name: str) -> str:
    return f"{path}.{name}"


def _once(pairs: list[tuple[str, object]]) -> Record:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {next(name for name in names if names.count(name) > 1)} is there twice")
    return found


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is no number")


_FORMS: Final = {kind.tag: tuple(_message(side.message.DESCRIPTOR) for side in SIDES[kind.tag]) for kind in KINDS}
