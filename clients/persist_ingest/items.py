"""Sources as items of an environment: what is recorded of a source has a name there, too, and so have its exports.

The record comes first, and the item follows from it alone: a source without an item is ingested as ever, and to create,
run or adopt it again finishes it. (An item first would name shards that are never made, for good if its maker
died.) The item goes first: what depends on it refuses while nothing is lost yet, and until the record is gone dropping
is repeated. An item is known by its source's progress shard, so there is one, whatever it is called.
Source: collections: names; docs/catalog.md.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from persist import InvalidArgument, PersistError, ShardNotFound, UsageError
from persist_ingest.location import Location, client
from persist_ingest.pipeline import creation
from persist_ingest.pipeline.anew import joining
from persist_ingest.pipeline.completing import completed, is_incomplete
from persist_ingest.pipeline.named import DEFAULT, ROLE, Names, adopted, environment_of, item_of, items_of, taken_in
from persist_ingest.pipeline.records import Records, Source, SourceExists

if TYPE_CHECKING:
    import persist


def create(
    location: Location,
    name: str,
    type_name: str,
    options: Mapping[str, str],
    *,
    environment: str = DEFAULT,
    role: str = ROLE,
    begin: bool = False,
    finished: Callable[[Source], None] = lambda source: None,
    **how: Any,
) -> Source:
    """Set a source up, as ``pipeline.creation.create`` does, and make its item where there is an environment.

    Fails whole: a source whose item is refused is dropped again. One of this name that has no item yet, as a creation
    left it that was broken off, gets its item and nothing else if it was asked for with the same type, options and
    interval, else SourceExists is raised; ``finished`` is called then. ``role``: in whose name its item is made.
    ``begin``: the environment is made with it, if there is none.
    ``how``: further options of ``pipeline.creation.create``. Raises UniquenessViolation (an item has this name),
    PrivilegeMissing, and as ``pipeline.creation.create``.
    """
    the_client = client(location.resolved())
    with environment_of(the_client, location, environment, role=role, begin=begin) as names:
        if names is None:
            return creation.create(location, name, type_name, options, **how)
        there = Records(the_client).sources().get(name)
        if there is not None:
            if item_of(names, there.remap) is not None:
                raise SourceExists("this source exists already", hint="choose another name, or drop it", source=name)
            _check_same(Records(the_client), there, type_name, options, how.get("interval_ms", creation.INTERVAL_MS))
            if is_incomplete(the_client, there):
                how = {key: each for key, each in how.items() if key in {"minter", "pace", "report"}}
                there = completed(location.resolved(), there, **how)
            adopted(the_client, names, there)
            finished(there)
            return there
        _check_free(names, name)
        source = creation.create(location, name, type_name, options, **how)
        try:
            adopted(the_client, names, source)
        except UsageError:
            # It was refused, and is not to be found half made.
            creation.drop(location, name, environment=environment)
            raise
        return source


def adopt(
    location: Location, name: str, *, environment: str = DEFAULT, role: str = ROLE, begin: bool = False
) -> str | None:
    """Make the item of a source that exists, or bring it up to date; its full name. However often it is asked.

    An item that lacks exports that its source has by now, or columns that these got since, gets them.

    ``role``: in whose name. ``begin``: the environment, too, if there is none; else None is returned there. Raises
    SourceNotFound, UniquenessViolation, PrivilegeMissing, LocationError.
    """
    the_client = client(location.resolved())
    with environment_of(the_client, location, environment, role=role, begin=begin) as names:
        if names is None:
            return None
        return adopted(the_client, names, Records(the_client).source(name))


def item_names(location: Location, source: Source, *, environment: str = DEFAULT) -> dict[str, str]:
    """What SQL calls the exports of a source, in full, by export. Empty: it is no item of an environment."""
    the_client = client(location.resolved())
    with environment_of(the_client, location, environment) as names:
        if names is None:
            return {}
        by_shard = {str(each.data): str(each.name) for each in names.items()}
    return {export: by_shard[shard] for export, shard in source.exports.items() if shard in by_shard}


def drop(
    location: Location,
    name: str,
    *,
    cascade: bool = False,
    environment: str = DEFAULT,
    role: str = ROLE,
    force: bool = False,
    left: Callable[[PersistError], None] = lambda error: None,
) -> Source:
    """End a source as ``pipeline.creation.drop`` does, its item first. Broken off, it is to be repeated.

    ``cascade``: with all that depends on the item. ``role``: in whose name. Raises PrivilegeMissing,
    DependentObjects, InvalidArgument (it is another environment's, too), where nothing happened, and as
    ``pipeline.creation.drop``.
    """
    the_client = client(location.resolved())
    source = Records(the_client).source(name)
    with environment_of(the_client, location, environment, role=role) as names:
        item = None if names is None else item_of(names, source.remap)
        if names is not None and item is not None:
            for shard in source.shards.values():
                _check_no_other(the_client, shard, environment)
            names.leave(str(item.name), cascade=cascade)
        return creation.drop(location, name, environment=environment, force=force, left=left)


def drop_export(location: Location, name: str, export: str, *, environment: str = DEFAULT, role: str = ROLE) -> Source:
    """Have a source go on without an export, as ``pipeline.anew.joining.drop_export`` does, its item first.

    ``role``: in whose name. Broken off, it is to be repeated. Raises DependentObjects (views, holds and others need it:
    drop them first), PrivilegeMissing, InvalidArgument (it is another environment's, too), where nothing happened; and
    as that.
    """
    the_client = client(location.resolved())
    source = Records(the_client).source(name)
    with environment_of(the_client, location, environment, role=role) as names:
        shard = source.exports.get(export)
        if names is None or shard is None or len(source.exports) == 1:
            return joining.drop_export(location, name, export, environment=environment)
        _check_no_other(the_client, shard, environment)
        try:
            _leave(names, shard)
            after = joining.drop_export(location, name, export, environment=environment)
        except InvalidArgument:
            if item_of(names, source.remap) is not None:
                adopted(the_client, names, Records(the_client).source(name))
            raise
        # Who ingested may have adopted it again between the two.
        _leave(names, shard)
        return after


def _leave(names: Names, shard: str) -> None:
    for each in items_of(names):
        if str(each.data) == shard:
            names.leave(str(each.name))


def _check_same(records: Records, there: Source, type_name: str, options: Mapping[str, str], interval_ms: int) -> None:
    """What is asked for is what is there, not finished yet. Raises SourceExists."""
    asked = creation.asked_for(options, interval_ms)
    if there.type != type_name or records.asked(there) != asked:
        raise SourceExists(
            "a source of this name exists without an item, and was asked for with another type or other options",
            hint="repeat exactly what created it, or persist catalog adopt NAME as it is; or drop it",
            source=there.name,
            type=there.type,
        )


def _check_no_other(the_client: "persist.Client", shard: str, environment: str) -> None:
    """Raise InvalidArgument where another environment holds a shard that this one is going to give up."""
    try:
        the_client.finalize(shard, force=True, dry_run=True, environment=environment)
    except ShardNotFound:
        pass
    except InvalidArgument as refused:
        # An item of this one has it, as it should be; holds of others were looked for before that.
        if "hold" in refused.details:
            raise


def _check_free(names: Names, name: str) -> None:
    from persist.catalog import UniquenessViolation

    if name in taken_in(names):
        raise UniquenessViolation(
            "another object has this name", hint="choose another name for the source, or rename that", name=name
        )
