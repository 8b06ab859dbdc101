"""Makes rows of every data version at random, and stores them: ``python -m golden.catalog.sample`` for a new version.

What is stored stays as it is: a new data version adds a file.
"""

import dataclasses
import json
import random
import string
import types
import typing
from enum import StrEnum
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from persist.core.catalog.kinds import CONFIG, CURSOR, FENCE_TOKEN, KINDS, AnyKind
from persist.core.catalog.objects import Config
from persist.core.catalog.open_rules import DATA_VERSION
from persist.core.catalog.rows import Row
from persist.core.catalog.values import PUBLIC, Id, RoleRef, Space
from persist.v1 import catalog_objects_v1_pb2 as v1
from persist.v1 import catalog_objects_v2_pb2 as v2
from persist.v1 import catalog_objects_v3_pb2 as v3
from persist.wire.catalog.migrations import MIGRATIONS
from persist.wire.catalog.rows import CODEC

FOLDER = Path(__file__).parent
PER_KIND = 20
SMALL_INTS = {"oid", "replication_factor", "workers", "column"}
OF_3: dict[str, type[Message]] = {"item": v3.CatalogItemValueV3, "hold": v3.CatalogHoldValueV3}
OF_2: dict[str, type[Message]] = {**OF_3, "cluster_replica": v2.CatalogClusterReplicaValueV2}
OF_1: dict[str, type[Message]] = {**OF_2, "timestamp": v1.CatalogTimestampValueV1}
OLDER: dict[int, dict[str, type[Message]]] = {1: OF_1, 2: OF_2, 3: OF_3, 4: {}, 5: {}}
"""Values that a data version had in another form."""
YOUNGER = {CURSOR: 4}
"""Kinds that came with a data version."""


def kinds_of(version: int) -> list[AnyKind]:
    """The kinds that a data version has."""
    return [kind for kind in KINDS if YOUNGER.get(kind, 1) <= version]


def rows_of_version(version: int) -> list[Row]:
    """A catalog of this data version with about twenty objects of every kind."""
    dice = random.Random(f"catalog {version}")
    rows = {}
    for kind in kinds_of(version):
        for _ in range(1 if kind is FENCE_TOKEN else PER_KIND):
            row = CODEC.encode(kind.tag, thing(dice, kind.key), thing(dice, kind.value))
            if kind.tag in OLDER[version]:
                row = row._replace(value=message(dice, OLDER[version][kind.tag]()))
            rows[row.kind, row.key] = row
    row = CODEC.encode(CONFIG.tag, DATA_VERSION, Config(version))
    return [*rows.values(), row]


def thing(dice: random.Random, hint: Any, name: str = "") -> Any:
    """A value of a type."""
    if isinstance(hint, types.UnionType):
        return thing(dice, dice.choice(typing.get_args(hint)), name)
    if typing.get_origin(hint) is tuple:
        return tuple(thing(dice, typing.get_args(hint)[0]) for _ in range(dice.randrange(3)))
    if hint in (Id, RoleRef):
        spaces = [Space.USER, Space.SYSTEM, Space.INTROSPECTION if hint is Id else Space.PUBLIC]
        space = dice.choice(spaces)
        return PUBLIC if space is Space.PUBLIC else hint(space, dice.getrandbits(dice.choice([3, 64])))
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        values = {each.name: thing(dice, hints[each.name], each.name) for each in dataclasses.fields(hint)}
        return typing.cast(Any, hint)(**values)
    if issubclass(hint, StrEnum):
        return dice.choice(list(hint))
    plain = {int: number, str: text, bytes: octets, bool: lambda *_: dice.random() < 0.5, type(None): lambda *_: None}
    return plain[hint](dice, name)


def number(dice: random.Random, name: str) -> int:
    return dice.getrandbits(dice.choice([1, 8, 32 if name in SMALL_INTS else 64]))


def text(dice: random.Random, name: str) -> str:
    return "".join(dice.choices(string.printable + "äß漢🙂", k=dice.randrange(9)))


def octets(dice: random.Random, name: str) -> bytes:
    return dice.randbytes(dice.choice([0, 16]))


def message(dice: random.Random, it: Message) -> bytes:
    """A frozen message with every field set at random."""
    fill(dice, it)
    return it.SerializeToString(deterministic=True)


def fill(dice: random.Random, it: Any) -> None:
    choice = [dice.choice(list(each.fields)).name for each in it.DESCRIPTOR.oneofs]
    for field in it.DESCRIPTOR.fields:
        if field.containing_oneof is not None and field.name not in choice:
            continue
        if field.message_type is not None:
            getattr(it, field.name).SetInParent()
            fill(dice, getattr(it, field.name))
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(it, field.name, text(dice, ""))
        else:
            setattr(it, field.name, field.type == FieldDescriptor.TYPE_BOOL or number(dice, ""))


def store(version: int) -> None:
    """Write the file of a version: [kind, key, value] as hexadecimal digits, one row a line."""
    lines = [json.dumps([row.kind, row.key.hex(), row.value.hex()]) for row in rows_of_version(version)]
    (FOLDER / f"v{version}.jsonl").write_text("\n".join(lines) + "\n")


def stored(version: int) -> list[Row]:
    """The rows in the file of a version."""
    lines = map(json.loads, (FOLDER / f"v{version}.jsonl").read_text().splitlines())
    return [Row(kind, bytes.fromhex(key), bytes.fromhex(value)) for kind, key, value in lines]


if __name__ == "__main__":
    for each in range(MIGRATIONS.min, MIGRATIONS.current + 1):
        if not (FOLDER / f"v{each}.jsonl").exists():
            store(each)
