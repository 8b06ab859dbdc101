"""Finding the shard that somebody names, and helping who misspelled it.

A table is found by the hash of its name, so nobody has a list of names. But whoever mistypes one is rarely more than a
letter off, and all names that near are soon tried.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from persist import PersistError, ShardId, ShardNotFound, UsageError
from persist.typed import Fields
from persist_ingest.location import Target

if TYPE_CHECKING:
    import persist


_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789_-."
_NAME_MAX: Final = 64
"""Longer names are not guessed."""
_LIST_SECONDS: Final = 5.0


def current_schema(target: Target) -> "persist.Schema":
    """The shard's newest schema. Raises ShardNotFound, in the words of who asked."""
    try:
        return target.client().schema(target.shard_id, timeout=target.timeout)
    except ShardNotFound as missing:
        raise _explained(missing, target) from missing


def stored_schema(target: Target) -> "persist.Schema | None":
    """The shard's newest schema, None when there is no such shard, or none was registered there yet."""
    try:
        client = target.client()
    except ShardNotFound:
        return None
    try:
        return client.schema(target.shard_id, timeout=target.timeout)
    except ShardNotFound:
        return None
    except UsageError:
        # Whoever made it was stopped before it could say what it holds.
        if client.inspect(target.shard_id, timeout=target.timeout)["schemas"]:
            raise
        return None


def inspected(target: Target) -> Fields:
    """The shard's whole state. Raises ShardNotFound, in the words of who asked."""
    try:
        state: Fields = target.client().inspect(target.shard_id, timeout=target.timeout)
    except ShardNotFound as missing:
        raise _explained(missing, target) from missing
    return state


def _explained(missing: ShardNotFound, target: Target) -> ShardNotFound:
    if target.table is None:
        what, hint = "there is no such shard", "check the id and the location"
    else:
        near = near_names(target)
        meant = f"did you mean {' or '.join(near)}? " if near else "check the name and the location; "
        what, hint = "there is no such table", f"{meant}a table is made by its first write, with option keyColumns"
    return ShardNotFound(what, hint=hint, **target.described)


def near_names(target: Target) -> list[str]:
    """Names of tables at this location that are one letter, or the case, away from the one that was asked for."""
    if target.table is None or len(target.table) > _NAME_MAX:
        return []
    try:
        shards = set(target.client().list_shards(timeout=min(_LIST_SECONDS, target.timeout)))
    except PersistError:
        return []  # no help is given where it would take long
    return sorted({name for name in _near(target.table) if ShardId.named("table", name) in shards})


def _near(name: str) -> Iterator[str]:
    yield from (name.lower(), name.upper(), name.capitalize())
    letters = _LETTERS + _LETTERS[:26].upper()
    for at in range(len(name) + 1):
        before, after = name[:at], name[at:]
        yield from (before + letter + after for letter in letters)
        if after:
            yield before + after[1:]
            yield from (before + letter + after[1:] for letter in letters)
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]
