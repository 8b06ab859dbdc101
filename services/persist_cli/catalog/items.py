"""The work behind ``persist catalog items``, ``adopt`` and ``leave``: names of an environment, and their shards."""

from typing import TYPE_CHECKING

from persist.core.catalog.ddl.described import ROLE, Described
from persist.core.catalog.kinds import COMMENT
from persist.core.catalog.objects import CommentKey
from persist.core.catalog.values import ObjectType, Space
from persist.core.ids import ShardId
from persist.errors import ShardNotFound
from persist_cli.catalog.place import CatalogPlace
from persist_cli.terminal import note, print_json, print_list

if TYPE_CHECKING:
    from persist.client.collections.environment import Environment
    from persist.settings import Settings
    from persist_ingest import Location

COLUMNS = ("name", "kind", "id", "shard", "timeline", "mode", "comment")


def items(place: CatalogPlace, settings: "Settings", *, system: bool, json: bool) -> None:
    """Print the items of an environment; those of the ``system``, too, if asked. Raises Uninitialized."""

    async def work(environment: "Environment") -> list[dict[str, str]]:
        found = await environment.items()
        return [_row(item, environment) for item in found if system or item.id.space is Space.USER]

    rows = place.in_environment(settings, work)
    if json:
        print_json(rows)
        return
    first = "persist sql 'CREATE TABLE …' makes one, persist catalog adopt NAME takes a shard or source that is there"
    print_list(COLUMNS, [[row[name] for name in COLUMNS] for row in rows], "item", first)


def adopt(
    place: CatalogPlace, settings: "Settings", name: str, *, shard: str | None, timeline: str, role: str, json: bool
) -> None:
    """Make an item of a shard, or of a source and its exports, and print it.

    Raises ShardNotFound, AmbiguousName, UniquenessViolation.
    """
    given = None if shard is None else ShardId.parse(shard)

    async def work(environment: "Environment") -> Described:
        executed = await environment.adopt(name, shard=given, timeline=timeline)
        assert executed.id is not None
        return environment.view.get(executed.id)

    async def look(environment: "Environment") -> Described:
        return await environment.resolve(full or name, strict=True)

    full: str | None = None
    try:
        item = place.in_environment(settings, work, role=role)
    except ShardNotFound:
        full = None if given is not None else _adopt_source(place, name, role)
        if full is None:
            raise
        item = place.in_environment(settings, look, role=role)
    if json:
        print_json(_row(item))
    elif item.kind is ObjectType.SOURCE:
        note(f"{item.name} is the source {name} now, and its exports are subsources: SHOW SOURCES lists them")
        for table in _tables_of(place, name):
            note(f"{table} is a table of it")
    else:
        note(f"{item.name} is the shard {item.data} now; persist catalog leave {item.name} gives it back")


def _adopt_source(place: CatalogPlace, name: str, role: str) -> str | None:
    """Make the items of a source, or bring them up to date; its full name there, None if no source has this name."""
    import persist_ingest as ingest

    try:
        return ingest.adopt(_location(place), name, environment=place.environment, role=role or ROLE, begin=True)
    except ingest.SourceNotFound:
        return None


def _location(place: CatalogPlace) -> "Location":
    from persist_ingest import Location

    target = place.target
    assert target is not None
    return Location(
        directory=target.location, endpoint=target.endpoint, blob=target.blob, consensus=target.consensus
    ).resolved()


def _tables_of(place: CatalogPlace, name: str) -> list[str]:
    """What the exports of a source are called in its environment."""
    import persist_ingest as ingest
    from persist_ingest.items import item_names
    from persist_ingest.location import client

    location = _location(place)
    return sorted(
        item_names(location, ingest.Records(client(location)).source(name), environment=place.environment).values()
    )


def leave(place: CatalogPlace, settings: "Settings", name: str, *, cascade: bool, role: str, json: bool) -> None:
    """Forget an item, whose shard stays. Raises UnknownObject, DependentObjects."""

    async def work(environment: "Environment") -> Described:
        item = await environment.resolve(name, strict=True)
        await environment.leave(name, cascade=cascade)
        return item

    item = place.in_environment(settings, work, role=role)
    if json:
        print_json(_row(item))
    else:
        note(f"{item.name} is no item any more; its shard {item.data or '(none)'} stays as it is")


def _row(item: Described, environment: "Environment | None" = None) -> dict[str, str]:
    comments = {} if environment is None else environment.view.objects(COMMENT)
    comment = comments.get(CommentKey(item.kind, item.id))
    return {
        "name": str(item.name),
        "kind": item.kind.words,
        "id": str(item.id),
        "shard": "" if item.data is None else str(item.data),
        "timeline": "" if item.timeline is None else str(item.timeline),
        "mode": item.mode,
        "comment": "" if comment is None else comment.text,
    }
