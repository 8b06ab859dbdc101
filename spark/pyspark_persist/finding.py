"""Finding the shard of a name, and suggesting similar names for a misspelled one."""

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from persist import ShardNotFound, UsageError
from persist.catalog import Uninitialized, UnknownObject
from persist.typed import Fields
from persist_ingest.location import Target
from pyspark_persist.options.options import ReadOptions, WriteOptions

Options = TypeVar("Options", ReadOptions, WriteOptions)

if TYPE_CHECKING:
    import persist


def current_schema(target: Target) -> "persist.Schema":
    """The shard's newest schema. Raises ShardNotFound, with the name as it was asked for."""
    try:
        return target.client().schema(target.found().shard_id, timeout=target.timeout)
    except ShardNotFound as missing:
        raise _explained(missing, target) from missing


def stored_schema(target: Target) -> "persist.Schema | None":
    """The shard's newest schema, None when there is no such shard, or none was registered there yet.

    Of a target whose name was looked up.
    """
    try:
        client = target.client()
    except ShardNotFound:
        return None
    try:
        return client.schema(target.shard_id, timeout=target.timeout)
    except ShardNotFound:
        return None
    except UsageError:
        # Its creator was stopped before it could say what it holds.
        if client.inspect(target.shard_id, timeout=target.timeout)["schemas"]:
            raise
        return None


def inspected(target: Target) -> Fields:
    """The shard's whole state. Raises ShardNotFound, with the name as it was asked for."""
    try:
        state: Fields = target.client().inspect(target.found().shard_id, timeout=target.timeout)
    except ShardNotFound as missing:
        raise _explained(missing, target) from missing
    return state


def found(options: Options, *, create: bool = False, writes: bool = False) -> Options:
    """The options with the id of the named shard. ``create``: of a missing shard the id it will have.

    ``writes``: its rows are going to be changed. Raises ShardNotFound, in the words of who asked, AmbiguousName, and
    InvalidArgument (its rows are not written so).
    """
    try:
        return replace(options, target=options.target.found(create=create, writes=writes))
    except ShardNotFound as missing:
        raise _explained(missing, options.target) from missing


def check_written(target: Target) -> None:
    """Raise InvalidArgument for a name, or an id, whose rows are not Spark's to write: they come through a log, or
    persist itself computes or ingests them. As an append finds it.
    """
    target.client().named(target.table or target.shard, create=True, timeout=target.timeout)


def completed(target: Target, as_of: int | None, timeout: float) -> int | None:
    """The time to read an item at whose rows come through a log, once all of them are in its shard.

    None: it is no such item, and its shard alone says how far it is. Raises as ``Environment.read``.
    """
    if target.table is None:
        return None
    with target.client().environment() as environment:
        try:
            item = environment.resolve(target.table)
        except (Uninitialized, UnknownObject):
            return None
        if item.mode != "wal" or str(item.data) != target.shard:
            return None
        with environment.read(target.table, as_of=as_of, timeout=timeout) as contents:
            return contents.ts


def _explained(missing: ShardNotFound, target: Target) -> ShardNotFound:
    if target.table is None:
        what, hint = "there is no such shard", "check the id and the location"
    else:
        near = missing.details.get("near")
        meant = f"did you mean {near}? " if near else "check the name and the location; "
        what, hint = "there is no such table", f"{meant}a table is made by its first write, with option keyColumns"
    return ShardNotFound(what, hint=hint, **target.described)
