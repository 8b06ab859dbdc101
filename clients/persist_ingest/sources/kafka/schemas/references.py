"""Schemas that refer to others, made whole: Avro's names and JSON Schema's ``$ref``.

What comes out says everything itself, so that it is read as any other. Bounded, whatever a registry holds.
Source: Confluent, Schema Registry, schema references; Avro specification, names; JSON Schema, ``$ref``.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from persist import InvalidArgument
from persist_ingest.sources.kafka.schemas.rest import Referred

NODES_MAX: Final = 20_000
"""Parts of a schema that was made whole."""
_DEPTH_MAX: Final = 64
_DEFINED: Final = ("$defs", "definitions")
_NAMED: Final = ("record", "enum", "fixed", "error")


@functools.lru_cache(maxsize=256)
def whole_avro(text: str, parts: tuple[Referred, ...]) -> str:
    """The schema with each named type of the parts in place of where it is first named. Raises InvalidArgument."""
    if not parts:
        return text
    pending: dict[str, object] = {}
    for part in parts:
        declared = _json(part.text)
        for each in declared if isinstance(declared, list) else [declared]:
            if isinstance(each, dict) and each.get("type") in _NAMED:
                pending[_full(each, "")] = each
    return json.dumps(_Inlined(pending).of(_json(text), "", 0))


class _Inlined:
    """``pending``: types of other schemas, by full names, that were not written yet."""

    def __init__(self, pending: dict[str, object]) -> None:
        self._known = frozenset(pending)
        self._pending = pending
        self._left = NODES_MAX

    def of(self, declared: object, space: str, depth: int) -> object:
        """``declared``, in this namespace."""
        self._left -= 1
        if self._left < 0 or depth > _DEPTH_MAX:
            raise InvalidArgument("the schema is too large with those that it refers to", hint="register a smaller one")
        if isinstance(declared, str):
            return self._named(declared, space, depth)
        if isinstance(declared, list):
            return [self.of(each, space, depth + 1) for each in declared]
        if not isinstance(declared, dict):
            return declared
        kind = declared.get("type")
        if kind not in _NAMED:
            inner = {
                name: self.of(declared[name], space, depth + 1) for name in ("items", "values") if name in declared
            }
            return {**declared, **inner, "type": self.of(kind, space, depth + 1)}
        full = _full(declared, space)
        self._pending.pop(full, None)
        mine = full.rpartition(".")[0]
        made: dict[str, Any] = {**declared, "name": full}
        made.pop("namespace", None)
        if "fields" in declared:
            made["fields"] = [
                {**field, "type": self.of(field["type"], mine, depth + 1)} for field in declared["fields"]
            ]
        return made

    def _named(self, name: str, space: str, depth: int) -> object:
        for full in (name, f"{space}.{name}") if "." not in name and space else (name,):
            if full in self._pending:
                return self.of(self._pending.pop(full), full.rpartition(".")[0], depth + 1)
            if full in self._known:
                return full
        return name


@functools.lru_cache(maxsize=256)
def whole_json(text: str, parts: tuple[Referred, ...]) -> str:
    """The JSON Schema with what it refers to in place of each reference. Raises InvalidArgument, also for recursion."""
    if '"$ref"' not in text:
        return text
    root = _json(text)
    files = {part.name: _json(part.text) for part in parts}
    # By what they say they are called, too.
    files |= {str(each["$id"]): each for each in files.values() if isinstance(each, dict) and "$id" in each}
    left = [NODES_MAX]

    def inside(name: str, declared: object, file: object, open_: tuple[str, ...]) -> object:
        """Only what columns are made of: elsewhere what looks like a reference may be a value."""
        if name == "properties" and isinstance(declared, dict):
            return {each: whole(declared[each], file, open_) for each in declared}
        return whole(declared, file, open_) if name in ("items", "oneOf", "anyOf") else declared

    def whole(declared: object, file: object, open_: tuple[str, ...]) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise InvalidArgument("the schema is too large with those that it refers to", hint="register a smaller one")
        if isinstance(declared, list):
            return [whole(each, file, open_) for each in declared]
        if not isinstance(declared, dict):
            return declared
        reference = declared.get("$ref")
        if not isinstance(reference, str):
            return {name: inside(name, each, file, open_) for name, each in declared.items() if name not in _DEFINED}
        name, _, pointer = reference.partition("#")
        base = files.get(name, files.get(name.removeprefix("./"))) if name else file
        place = f"{id(base)}#{pointer}"
        if base is None or place in open_:
            what = "refers to itself" if base is not None else "refers to what it has no reference for"
            raise InvalidArgument(f"the JSON Schema {what}", hint="register it otherwise", ref=reference)
        others = {name: each for name, each in declared.items() if name != "$ref"}
        found = whole(_pointed(base, pointer, reference), base, (*open_, place))
        return {**found, **others} if isinstance(found, dict) else found

    return json.dumps(whole(root, root, (f"{id(root)}#",)))


def _pointed(file: object, pointer: str, reference: str) -> object:
    """What a JSON pointer names. Raises InvalidArgument."""
    found = file
    for step in filter(None, pointer.split("/")):
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            raise InvalidArgument("the JSON Schema refers to what is not there", hint="correct it", ref=reference)
        found = found[name]
    return found


def _full(declared: Mapping[str, object], space: str) -> str:
    """The full name of a named type."""
    name = str(declared.get("name", ""))
    if "." in name:
        return name
    own = declared.get("namespace", space)
    return f"{own}.{name}" if own else name


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise InvalidArgument("this is no JSON", hint="register the JSON text of the schema", cause=cause) from cause
