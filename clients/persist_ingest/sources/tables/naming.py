"""What columns of an upstream are called in an export, where they cannot be called as there."""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from persist import InvalidArgument, Schema

AS_THERE: Final[Mapping[str, str]] = {}


def called(names: Sequence[str], renames: Mapping[str, str] = AS_THERE) -> list[str]:
    """By column a name that no other one has, nor a shard's own columns, in whatever case.

    ``renames``: what some are called, by name, whatever others are.
    """
    mine = {name: renames[name] for name in names if name in renames}
    used = {name.lower() for name in mine.values()}
    found = []
    for place, name in enumerate(names):
        if name in mine:
            found.append(mine[name])
            continue
        field = free_name(name)
        own = {other.lower() for at, other in enumerate(names) if at != place and other not in mine}
        while field.lower() in used or (field != name and field.lower() in own):
            field = f"_{field}"
        used.add(field.lower())
        found.append(field)
    return found


def free_name(name: str) -> str:
    """The name, or another one where shards have a column of that name themselves."""
    try:
        Schema({name: pa.int64()})
    except InvalidArgument:
        return f"_{name}"
    return name
