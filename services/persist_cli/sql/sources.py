"""CREATE and DROP SOURCE in ``persist sql``: what ``persist source create`` and ``drop`` do, by statements."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from persist.core.catalog.ddl.described import DATABASE, SCHEMA, Described
from persist.core.catalog.ddl.statements import CreateSource
from persist.errors import InvalidArgument
from persist.threads import users
from persist_cli.options import LocationTarget

if TYPE_CHECKING:
    from persist.client.collections.environment import Environment
    from persist_ingest import Location

_TYPES: Final = {"load-generator": "loadgen"}
"""Types by other names than the library's."""


class IngestedSources:
    """Sources of a location, in an environment of it. Each call takes a thread: upstreams are asked there."""

    def __init__(self, target: LocationTarget, environment: "Environment") -> None:
        self._target = target
        self._environment = environment

    async def create(self, statement: CreateSource, role: str) -> str:
        """See ``Sources``."""
        return await users(self._environment.access.client.location.runtime, self._created, statement, role)

    async def drop(self, source: Described, role: str, *, cascade: bool) -> None:
        """See ``Sources``."""
        await users(self._environment.access.client.location.runtime, self._dropped, source, role, cascade)

    async def alter(self, source: Described, options: Mapping[str, str]) -> None:
        """See ``Sources``."""
        await users(self._environment.access.client.location.runtime, self._altered, source, options)

    def _altered(self, source: Described, options: Mapping[str, str]) -> None:
        import persist_ingest as ingest

        ingest.alter(self._location(), self._recorded(source), options)

    def _created(self, statement: CreateSource, role: str) -> str:
        import persist_ingest as ingest
        from persist_ingest.sources.registry import going_on

        _check_plain(statement)
        options = dict(statement.options)
        if statement.timeline != "M":
            options["timeline"] = statement.timeline.removeprefix("U.")
        if statement.claims_epoch:
            options["epoch_ms_timeline"] = "true"
        name, kind = statement.name.item, _TYPES.get(statement.type, statement.type)
        finished: list[ingest.Source] = []
        ingest.create(
            self._location(),
            name,
            kind,
            options,
            environment=self._environment.name,
            role=role,
            begin=True,
            finished=finished.append,
        )
        begun = "an earlier creation, which was broken off, was finished; " if finished else ""
        return f"{begun}what it has already is there; to go on: {going_on(kind, name)}"

    def _dropped(self, source: Described, role: str, cascade: bool) -> None:
        import persist_ingest as ingest

        name = self._recorded(source)
        ingest.drop(self._location(), name, cascade=cascade, environment=self._environment.name, role=role)

    def _recorded(self, source: Described) -> str:
        """What a source is called that is ingested, whatever its item is called. Raises InvalidArgument."""
        import persist_ingest as ingest
        from persist_ingest.location import client

        for name, each in ingest.Records(client(self._location())).sources().items():
            if each.remap == str(source.remap):
                return name
        raise InvalidArgument(
            "nothing is recorded of what this source ingests",
            hint=f"persist catalog leave {source.name}",
            source=source.name,
        )

    def _location(self) -> "Location":
        from persist_ingest import Location

        it = self._target
        return Location(directory=it.location, endpoint=it.endpoint, blob=it.blob, consensus=it.consensus).resolved()


def _check_plain(statement: CreateSource) -> None:
    """Raises InvalidArgument: something that is not decided when a source is made."""
    name = statement.name
    if name.schema not in (None, SCHEMA) or name.database not in (None, DATABASE):
        raise InvalidArgument(
            "sources are made in persist.public", hint="ALTER SOURCE … RENAME, or name views of it elsewhere", name=name
        )
    if statement.exports:
        raise InvalidArgument("which tables a source has its upstream says", hint="leave TABLES out", name=name)
    if statement.retain is not None:
        raise InvalidArgument(
            "how much history a source keeps is said when it is run",
            hint="persist source run --retain-seconds",
            name=name,
        )
