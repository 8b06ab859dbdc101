"""Columns of objects that a JSON Schema describes.

Source: JSON Schema, draft 2020-12, validation: types and formats.
"""

import functools
import json
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from persist import InvalidArgument
from persist.arrow import ArrowField
from persist.typed import Fields

_PLAIN: Final[Mapping[str, pa.DataType]] = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
}
_FORMATS: Final[Mapping[str, pa.DataType]] = {"date": pa.date32(), "date-time": pa.timestamp("us", tz="UTC")}


@functools.lru_cache(maxsize=256)
def json_fields(text: str) -> pa.Schema:
    """The columns of an object's properties, in their order. Raises InvalidArgument for what is no such object."""
    try:
        declared = json.loads(text)
    except ValueError as cause:
        raise InvalidArgument("this is no JSON Schema", hint="register its JSON text", cause=cause) from cause
    if not isinstance(declared, dict) or not isinstance(declared.get("properties"), dict) or not declared["properties"]:
        raise InvalidArgument("the JSON Schema must be of an object with properties", got=text[:80])
    required = set(declared.get("required", ()))
    return pa.schema([_field(name, each, name in required) for name, each in declared["properties"].items()])


def _field(name: str, declared: object, is_required: bool) -> ArrowField:
    if not isinstance(declared, dict):
        raise InvalidArgument("a property must be described by an object", hint="give its type", column=name)
    kinds = declared.get("type")
    if kinds is None:
        # Generators write what may be null so.
        arms = [each for each in (declared.get("oneOf") or declared.get("anyOf") or ()) if isinstance(each, dict)]
        real = [each for each in arms if each.get("type") != "null"]
        if len(real) == 1 and len(arms) == 2:
            return _field(name, real[0], False)
    several = kinds if isinstance(kinds, list) else [kinds]
    named = [each for each in several if isinstance(each, str) and each != "null"]
    if len(named) != 1:
        raise InvalidArgument("a property must be of one type, which may be null", hint="split it", column=name)
    is_nullable = not is_required or "null" in several
    return pa.field(name, _type(name, named[0], declared), nullable=is_nullable)


def _type(name: str, kind: str, declared: Fields) -> pa.DataType:
    if kind == "string" and declared.get("format") in _FORMATS:
        return _FORMATS[declared["format"]]
    if kind == "array" and isinstance(declared.get("items"), dict):
        return pa.list_(_field("element", declared["items"], False).type)
    if kind == "object" and declared.get("properties"):
        return pa.struct([_field(inner, each, False) for inner, each in declared["properties"].items()])
    if kind not in _PLAIN:
        raise InvalidArgument("a type of a JSON Schema has no column type", hint="describe what is in it", column=name)
    return _PLAIN[kind]
