"""Where data lives, as plain values that travel to executors, and one client per process for each place.

Connections are made where they are used: a client never crosses a fork or a pickle. Source: spark.md section 2.3.
"""

import os
from dataclasses import dataclass, replace
from typing import Final

import persist
from persist import InvalidId, ShardId, ShardNotFound
from persist.settings import place_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """An embedded directory, or a server's endpoint, or shared stores without a server. Empty: the environment says."""

    directory: str | None = None
    endpoint: str | None = None
    blob: str | None = None
    consensus: str | None = None

    def resolved(self) -> "Location":
        """This location, or that of the environment, which the command line means as well.

        Raises InvalidArgument: none is named, or several are.
        """
        given = {
            "endpoint": self.endpoint, "location": self.directory, "blob": self.blob, "consensus": self.consensus
        }  # fmt: skip
        found = place_of(given, os.environ)
        return Location(
            directory=found.get("location"),
            endpoint=found.get("endpoint"),
            blob=found.get("blob"),
            consensus=found.get("consensus"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One shard at one location; ``timeout`` (seconds) bounds every call to it. ``table``: the name it was given by.

    ``shard`` is empty until the name was looked up.
    """

    location: Location
    shard: str
    timeout: float
    table: str | None = None

    @classmethod
    def of(cls, location: Location, name: str, *, kind: str, timeout: float) -> "Target":
        """The shard an option names: an id (``shard``), a table name (``table``), or either (``path``).

        Nothing is looked up yet. Raises InvalidId.
        """
        shard = _id_in(name, kind=kind)
        return cls(location=location.resolved(), shard=shard, timeout=timeout, table=None if shard else name)

    def found(self, *, create: bool = False, writes: bool = False) -> "Target":
        """This, with the shard that has the name. ``create``: the one it is going to have, where there is none.

        ``writes``: its rows are going to be changed; with ``create``, too. Raises ShardNotFound, AmbiguousName,
        InvalidArgument (what it is has its rows written otherwise, also where an id is given), LocationError.
        """
        if self.shard and (self.table is not None or not (create or writes)):
            return self
        given = self.table or self.shard
        try:
            shard = self.client().named(given, create=create, writes=writes, timeout=self.timeout)
        except ShardNotFound:
            if not create:
                raise
            # Nor is there a location.
            shard = ShardId.parse(self.shard) if self.shard else ShardId.for_name(given)
        return replace(self, shard=str(shard))

    @property
    def shard_id(self) -> ShardId:
        """The shard's id. Of a target whose name was looked up."""
        return ShardId.parse(self.shard)

    @property
    def described(self) -> dict[str, str]:
        """What it is called and where it is, for the details of an error."""
        named = {"shard": self.shard} if self.table is None else {"table": self.table}
        where = self.location.directory or self.location.endpoint
        return named if where is None else {**named, "location": where}

    def client(self, *, create: bool = False) -> "persist.Client":
        """This process's client for the location. Raises ShardNotFound for a directory that ``create`` may not make."""
        return client(self.location, create=create, patient=True)


def _id_in(name: str, *, kind: str) -> str:
    """The shard id that the user wrote; empty where it is a name. Raises InvalidId."""
    if kind == "table":
        return ""
    try:
        return str(ShardId.parse(name))
    except InvalidId:
        if kind == "path" and not name.startswith("/") and "://" not in name:
            return ""
        raise


def client(location: Location, *, create: bool = True, patient: bool = False) -> "persist.Client":
    """The client of this process for ``location``; opened at the first call, kept until it is released.

    ``create`` False: a directory without shards is not made, but ShardNotFound. ``patient``: a server that this process
    has not met is waited for like others, as other processes of the same job met it.
    """
    # SUBTLE: the pid is part of the key because a forked child inherits the clients but not their threads.
    key = location, os.getpid()
    if key not in _clients:
        opened = _opened(location, create=create, patient=patient)
        if _clients.setdefault(key, opened) is not opened:
            opened.close()  # another thread was first
    return _clients[key]


def release(location: Location) -> None:
    """Close this process's client for ``location``, if there is one. The next call opens another."""
    found = _clients.pop((location, os.getpid()), None)
    if found is not None:
        found.close()


_clients: Final[dict[tuple[Location, int], "persist.Client"]] = {}


def _opened(location: Location, *, create: bool, patient: bool) -> "persist.Client":
    # Jobs, their executors among them, and pipelines are set by the environment of their processes.
    settings = persist.Settings.from_env(os.environ)
    if location.endpoint is not None:
        settings = replace(settings, first_connection_ms=0) if patient else settings
        return persist.connect(location.endpoint, blob=location.blob, settings=settings)
    if location.directory is not None:
        return persist.embedded(location.directory, create=create, settings=settings)
    return persist.embedded(blob=location.blob, consensus=location.consensus, settings=settings)
