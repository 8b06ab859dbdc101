"""What columns of an upstream are called in an export, where they cannot be called as there."""

from collections.abc import Collection, Sequence

import pyarrow as pa

from persist import InvalidArgument, Schema


def called(names: Sequence[str], taken: Collection[str] = ()) -> list[str]:
    """By column a name that no other one has, nor a shard's own columns, in whatever case. ``taken``: names besides."""
    used = {name.lower() for name in taken}
    found = []
    for place, name in enumerate(names):
        field = free_name(name)
        own = {other.lower() for at, other in enumerate(names) if at != place}
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
