"""What an environment calls a source and its exports, and the statement by which it comes to know them.

An item is known by its source's progress shard, whatever it is called. What a source gets while it is ingested, columns
and exports, its item gets after it: the shard first, then the name. Source: collections: names; docs/catalog.md.
"""

import contextlib
import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from persist import InvalidArgument, Schema, ShardId, ShardNotFound
from persist.runtime import system
from persist_ingest.location import Location, client
from persist_ingest.pipeline.records import Source

if TYPE_CHECKING:
    import persist
    from persist.catalog import CreateSource, ObjectType, QualifiedName

_log = logging.getLogger(__name__)

DEFAULT: Final = "default"
ROLE: Final = "persist"
NONE_KNOWN: Final[Mapping[str, Schema]] = {}
AGAIN_SECONDS: Final = 30.0
"""From the end of a failure to bring an environment up to date with a source."""
TIMEOUT_SECONDS: Final = 10.0
"""For the statement that does it."""
CLOSE_SECONDS: Final = 10.0
"""That the end of a pipeline waits for it."""


class Item(Protocol):
    """What is looked at of an item."""

    @property
    def name(self) -> "QualifiedName": ...
    @property
    def remap(self) -> str | None:
        """The shard of a source's bindings."""
        ...

    @property
    def data(self) -> object | None:
        """The shard of its rows."""
        ...

    @property
    def schema(self) -> Schema | None: ...


class Names(Protocol):
    """What is asked of an environment."""

    def items(self, kind: "ObjectType | None" = None) -> "Sequence[Item]": ...
    def execute(self, *statements: "CreateSource", timeout: float | None = None) -> "Sequence[Named]": ...
    def leave(self, name: str, *, cascade: bool = False) -> object: ...
    def exists(self) -> bool: ...


class Named(Protocol):
    """What became of a statement."""

    @property
    def name(self) -> str: ...


def statement_of(
    the_client: "persist.Client", source: Source, taken: Collection[str], schemas: Mapping[str, Schema] = NONE_KNOWN
) -> "CreateSource":
    """What makes the item of a source, or brings it up to date. ``taken``: names of the schema that it comes into.
    ``schemas``: of exports, where they are known; others are asked for, an RPC each.

    An export that is no item yet is called as upstream, without a schema of there; where that name is another's, or the
    source's own, by all its names.
    """
    from persist.catalog import CreateSource, Export, QualifiedName, Retain

    used = {*taken, source.name}
    exports = []
    for export, shard in source.shards.items():
        name = export.rpartition(".")[2]
        if name in used:
            name = f"{source.name}_{export.replace('.', '_')}"
        used.add(name)
        exports.append(Export(name, schemas.get(export) or the_client.schema(shard), shard))
    return CreateSource(
        QualifiedName(source.name),
        source.type,
        exports=tuple(exports),
        timeline=source.timeline,
        claims_epoch=source.claims_epoch,
        remap=ShardId.parse(source.remap),
        retain=Retain(),
    )


def adopted(
    the_client: "persist.Client",
    names: Names,
    source: Source,
    schemas: Mapping[str, Schema] = NONE_KNOWN,
    *,
    timeout: float | None = None,
) -> str:
    """The full name of a source's item, which is made, or gets what it lacks: exports, and columns of exports.

    Raises UniquenessViolation, PrivilegeMissing, LocationError.
    """
    there = item_of(names, source.remap)
    statement = statement_of(the_client, source, taken_in(names), schemas)
    if there is not None and not _lacks(names, statement):
        return str(there.name)
    try:
        (done,) = names.execute(statement, timeout=timeout)
    except InvalidArgument:
        # Another process was faster, whose item has these shards.
        there = item_of(names, source.remap)
        if there is None:
            raise
        return str(there.name)
    return str(done.name)


def _lacks(names: Names, statement: "CreateSource") -> bool:
    """Whether exports of a source, or columns of them, are not in the environment."""
    known = {str(each.data): each.schema for each in items_of(names) if each.data is not None}
    for export in statement.exports:
        schema = known.get(str(export.shard))
        if schema is None or not {*export.schema.val.names} <= {*schema.val.names, *schema.key.names}:
            return True
    return False


class Following:
    """Has the item of a source that is ingested follow what that gets, in a thread: who leads may not answer, and no
    step waits for it. Where there is none, or no environment, none is made. Close it.
    """

    def __init__(self, location: Location, environment: str = DEFAULT) -> None:
        self._location, self._environment = location, environment
        self._told: Mapping[str, Schema] = {}
        self._wanted: tuple[Source, Mapping[str, Schema]] | None = None
        self._again_at = float("-inf")
        self._thread: threading.Thread | None = None

    def look(self, source: Source, schemas: Mapping[str, Schema]) -> None:
        """After each step, with the schemas of the exports that run: begins something where these are other ones.

        A few RPCs then, and a statement to the environment's leader, or as that. Raises nothing: who ingests goes on,
        and it is tried again.
        """
        self._wanted = (source, schemas)
        self._begin()

    def wait(self, seconds: float | None = None) -> None:
        """Until what is under way is done, or for so long."""
        if self._thread is not None:
            self._thread.join(seconds)

    def close(self) -> None:
        """Have it follow what came last, unless who leads does not answer."""
        ends = system().monotonic() + CLOSE_SECONDS
        while self._begin() or self.is_under_way:
            self.wait(max(ends - system().monotonic(), 0))
            if self.is_under_way:
                return

    @property
    def is_under_way(self) -> bool:
        """Whether the environment is being asked, or waited for."""
        return self._thread is not None and self._thread.is_alive()

    def _begin(self) -> bool:
        """Whether it began with what there is to be done: nothing where that is under way, or failed a moment ago."""
        wanted = self._wanted
        if wanted is None or wanted[1] == self._told or self.is_under_way or system().monotonic() < self._again_at:
            return False
        self._thread = threading.Thread(
            target=self._follow, args=wanted, name=f"names of {wanted[0].name}", daemon=True
        )
        self._thread.start()
        return True

    def _follow(self, source: Source, schemas: Mapping[str, Schema]) -> None:
        try:
            the_client = client(self._location)
            with environment_of(the_client, self._location, self._environment) as names:
                if names is not None and item_of(names, source.remap) is not None:
                    adopted(the_client, names, source, schemas, timeout=TIMEOUT_SECONDS)
            self._told = schemas
        except Exception as untold:
            # From here on: an attempt may take as long as the pause.
            self._again_at = system().monotonic() + AGAIN_SECONDS
            _log.warning("names of source %s are not up to date, and are tried again: %s", source.name, untold)


def item_of(names: Names, remap: str) -> Item | None:
    """The item of the source with this progress shard, if it has one."""
    from persist.catalog import ObjectType

    found = [each for each in items_of(names, ObjectType.SOURCE) if str(each.remap) == remap]
    return found[0] if found else None


def taken_in(names: Names) -> set[str]:
    """Names that sources and their exports cannot have any more."""
    return {each.name.item for each in items_of(names) if each.name[1:] == ("public", "persist")}


def items_of(names: Names, kind: "ObjectType | None" = None) -> "Sequence[Item]":
    """The items of an environment, of which there may be none yet."""
    return names.items(kind) if names.exists() else ()


@contextlib.contextmanager
def environment_of(
    the_client: "persist.Client", location: Location, name: str, *, role: str = ROLE, begin: bool = False
) -> Iterator[Names | None]:
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
