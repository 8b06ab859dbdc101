"""Sources as items of an environment: what is recorded of a source has a name there, too, and so have its exports.

The record comes first, and the item follows from it alone: a source without an item is ingested as ever, and to create,
run or adopt it again finishes it. (An item first would name shards that are never made, for good if its maker
died.) The item goes first: what depends on it refuses while nothing is lost yet, and until the record is gone dropping
is repeated. An item is known by its source's progress shard, so there is one, whatever it is called.
Source: collections: names; docs/catalog.md.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from persist import InvalidArgument, PersistError, ShardId, ShardNotFound, UsageError
from persist_ingest.location import Location, client
from persist_ingest.pipeline import creation
from persist_ingest.pipeline.anew import joining
from persist_ingest.pipeline.completing import completed, is_incomplete
from persist_ingest.pipeline.records import Records, Source, SourceExists

if TYPE_CHECKING:
    import persist
    from persist.catalog import CreateSource, ObjectType, QualifiedName

DEFAULT = "default"
ROLE = "persist"


class _Item(Protocol):
    """What is looked at of an item."""

    @property
    def name(self) -> "QualifiedName": ...
    @property
    def remap(self) -> str | None: ...
    @property
    def data(self) -> object | None: ...


class _Names(Protocol):
    """What is asked of an environment."""

    def items(self, kind: "ObjectType | None" = None) -> "Sequence[_Item]": ...
    def execute(self, *statements: "CreateSource") -> "Sequence[_Named]": ...
    def leave(self, name: str, *, cascade: bool = False) -> object: ...
    def exists(self) -> bool: ...


class _Named(Protocol):
    """What became of a statement."""

    @property
    def name(self) -> str: ...


def create(
    location: Location,
    name: str,
    type_name: str,
    options: Mapping[str, str],
    *,
    environment: str = DEFAULT,
    role: str = ROLE,
    finished: Callable[[Source], None] = lambda source: None,
    **how: Any,
) -> Source:
    """Set a source up, as ``pipeline.creation.create`` does, and make its item where there is an environment.

    Fails whole: a source whose item is refused is dropped again. One of this name that has no item yet, as a creation
    left it that was broken off, gets its item and nothing else if it was asked for with the same type, options and
    interval, else SourceExists is raised; ``finished`` is called then. ``role``: in whose name its item is made.
    ``how``: further options of ``pipeline.creation.create``. Raises UniquenessViolation (an item has this name),
    PrivilegeMissing, and as ``pipeline.creation.create``.
    """
    the_client = client(location.resolved())
    with _environment(the_client, location, environment, role=role) as names:
        if names is None:
            return creation.create(location, name, type_name, options, **how)
        there = Records(the_client).sources().get(name)
        if there is not None:
            if _item(names, there.remap) is not None:
                raise SourceExists("this source exists already", hint="choose another name, or drop it", source=name)
            _check_same(Records(the_client), there, type_name, options, how.get("interval_ms", creation.INTERVAL_MS))
            if is_incomplete(the_client, there):
                how = {key: each for key, each in how.items() if key in {"minter", "pace", "report"}}
                there = completed(location.resolved(), there, **how)
            _adopted(the_client, names, there)
            finished(there)
            return there
        _check_free(names, name)
        source = creation.create(location, name, type_name, options, **how)
        try:
            _adopted(the_client, names, source)
        except UsageError:
            # It was refused, and is not to be found half made.
            creation.drop(location, name, environment=environment)
            raise
        return source


def adopt(
    location: Location, name: str, *, environment: str = DEFAULT, role: str = ROLE, begin: bool = False
) -> str | None:
    """Make the item of a source that exists; its full name. Once, however often it is asked.

    ``role``: in whose name. ``begin``: the environment, too, if there is none; else None is returned there. Raises
    SourceNotFound, UniquenessViolation, PrivilegeMissing, LocationError.
    """
    the_client = client(location.resolved())
    with _environment(the_client, location, environment, role=role, begin=begin) as names:
        if names is None:
            return None
        return _adopted(the_client, names, Records(the_client).source(name))


def item_names(location: Location, source: Source, *, environment: str = DEFAULT) -> dict[str, str]:
    """What SQL calls the exports of a source, in full, by export. Empty: it is no item of an environment."""
    the_client = client(location.resolved())
    with _environment(the_client, location, environment) as names:
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
    with _environment(the_client, location, environment, role=role) as names:
        item = None if names is None else _item(names, source.remap)
        if names is not None and item is not None:
            for shard in source.shards.values():
                _check_no_other(the_client, shard, environment)
            names.leave(str(item.name), cascade=cascade)
        return creation.drop(location, name, environment=environment, force=force, left=left)


def drop_export(location: Location, name: str, export: str, *, environment: str = DEFAULT) -> Source:
    """Have a source go on without an export, as ``pipeline.anew.joining.drop_export`` does.

    Raises InvalidArgument where it is an item of the environment, which views may be made of; and as that.
    """
    the_client = client(location.resolved())
    source = Records(the_client).source(name)
    with _environment(the_client, location, environment) as names:
        shard = source.exports.get(export)
        found = [each for each in names.items() if str(each.data) == shard] if names is not None else []
        if found:
            raise InvalidArgument(
                "this export is an item of the environment, and an item of a source stays as long as that",
                hint="drop the source, and create it again without this table (excludeTables)",
                source=name,
                item=str(found[0].name),
            )
        return joining.drop_export(location, name, export, environment=environment)


def statement_of(the_client: "persist.Client", source: Source, taken: Collection[str]) -> "CreateSource":
    """What makes the item of a source. ``taken``: names of the schema that it comes into.

    An export is called as upstream, without a schema of there; where that
    name is another's, or the source's own, by all its names.
    """
    from persist.catalog import CreateSource, Export, QualifiedName, Retain

    used = {*taken, source.name}
    exports = []
    for export, shard in source.shards.items():
        name = export.rpartition(".")[2]
        if name in used:
            name = f"{source.name}_{export.replace('.', '_')}"
        used.add(name)
        exports.append(Export(name, the_client.schema(shard), shard))
    return CreateSource(
        QualifiedName(source.name),
        source.type,
        exports=tuple(exports),
        timeline=source.timeline,
        claims_epoch=source.claims_epoch,
        remap=ShardId.parse(source.remap),
        retain=Retain(),
    )


def _adopted(the_client: "persist.Client", names: _Names, source: Source) -> str:
    there = _item(names, source.remap)
    if there is not None:
        return str(there.name)
    try:
        (done,) = names.execute(statement_of(the_client, source, _taken(names)))
    except InvalidArgument:
        # Another process was faster, whose item has these shards.
        there = _item(names, source.remap)
        if there is None:
            raise
        return str(there.name)
    return str(done.name)


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


def _item(names: _Names, remap: str) -> _Item | None:
    from persist.catalog import ObjectType

    found = [each for each in _items(names, ObjectType.SOURCE) if str(each.remap) == remap]
    return found[0] if found else None


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


def _taken(names: _Names) -> set[str]:
    return {each.name.item for each in _items(names) if each.name[1:] == ("public", "persist")}


def _items(names: _Names, kind: "ObjectType | None" = None) -> "Sequence[_Item]":
    return names.items(kind) if names.exists() else ()


def _check_free(names: _Names, name: str) -> None:
    from persist.catalog import UniquenessViolation

    if name in _taken(names):
        raise UniquenessViolation(
            "another object has this name", hint="choose another name for the source, or rename that", name=name
        )


@contextlib.contextmanager
def _environment(
    the_client: "persist.Client", location: Location, name: str, *, role: str = ROLE, begin: bool = False
) -> Iterator[_Names | None]:
    """The environment, or None where there is none: nothing is made by looking. ``begin``: a statement will make it."""
    from persist.catalog import catalog_shard

    if not begin:
        try:
            the_client.recent_upper(catalog_shard(name))
        except ShardNotFound:
            yield None
            return
    with the_client.environment(name, role=role, endpoints=location.resolved().endpoint or "") as names:
        yield names if begin or names.exists() else None
