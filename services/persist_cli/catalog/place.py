"""Which catalog a command is about: an environment in a shard of a location, or in a stash."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from persist_cli.options import LOCATION, LocationTarget, Where, sqlite_file

if TYPE_CHECKING:
    from persist.client.catalog.addresses import AddressRows
    from persist.client.catalog.port import OpenableCatalog, RowLog
    from persist.client.client import Client
    from persist.client.collections.environment import Environment
    from persist.core.catalog.objects import FenceToken
    from persist.settings import Settings

T = TypeVar("T")

ANSWER_SECONDS = 5.0
"""How long a server that is said to lead has to answer."""


@dataclass(kw_only=True)
class Whose(Where):
    """The options that name a catalog."""

    environment: Annotated[
        str, typer.Option("--environment", "-e", metavar="NAME", help="Whose catalog.", rich_help_panel=LOCATION)
    ] = "default"
    stash: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="A catalog outside of any location: sqlite:PATH or postgres://user@host/database.",
            rich_help_panel=LOCATION,
        ),
    ] = None

    def place(self) -> "CatalogPlace":
        """The place that the options name. Raises BadParameter unless it is one."""
        if not self.environment:
            raise typer.BadParameter("--environment needs a name")
        if self.stash is None and not self.given:
            raise typer.BadParameter(
                "name one place: --location DIR, or --blob with --consensus, or --endpoint HOST:PORT, or --stash URI"
            )
        if self.stash is None:
            return CatalogPlace(self.environment, self.target())
        for name in self.typed:
            raise typer.BadParameter(f"name one place: --stash URI or --{name}, not both")
        return CatalogPlace(self.environment, stash=self.stash)


@dataclass(frozen=True, slots=True)
class CatalogPlace:
    """Just one of a target and the URI of a stash, and the environment there."""

    environment: str
    target: LocationTarget | None = None
    stash: str | None = None

    def run(self, settings: "Settings", work: Callable[["OpenableCatalog"], Awaitable[T]], *, begun: bool = False) -> T:
        """Open the catalog, work with it, close it. Raises Uninitialized: a look begins no catalog.

        ``begun``: one will do that a process began to make, and died.
        """

        async def main() -> T:
            async with self._opened(settings) as catalog:
                there = await catalog.is_initialized()
                if not there and not (begun and await catalog.fence_token()):
                    self._refuse()
                return await work(catalog)

        self._check_there(settings)
        return asyncio.run(main())

    def in_environment(
        self, settings: "Settings", work: Callable[["Environment"], Awaitable[T]], *, role: str = "", new: bool = False
    ) -> T:
        """Open the environment, work with it, close it. Raises InvalidArgument: a stash has no collections.

        ``new``: what is not there yet is made.
        """
        from persist.core.catalog.ddl.described import ROLE
        from persist.errors import InvalidArgument

        target = self.target
        if target is None:
            raise InvalidArgument("a catalog in a stash has no collections", hint="name a location")

        async def main() -> T:
            # `persist dev` serves the catalog where it serves the shards.
            endpoints = settings.catalog_endpoints or target.endpoint or ""
            async with await _client(target, settings) as client:
                environment = await client.environment(self.environment, role=role or ROLE, endpoints=endpoints)
                return await work(environment)

        self._check_there(settings, new=new)
        return asyncio.run(main())

    async def live_leader(self, settings: "Settings", token: "FenceToken", incarnation: int) -> str:
        """Where the server listens that leads with this token; empty when none answers that it does.

        A program that leads publishes no address: it cannot be seen whether it lives.
        """
        from persist.client.catalog.addresses import Addresses
        from persist.errors import PersistError
        from persist.extras import extra
        from persist.runtime import system

        with extra("grpc"):
            from persist.client.catalog.remote import RemoteCatalog

        async with contextlib.AsyncExitStack() as stack:
            addresses = Addresses(await self._kept(settings, stack), system())
            stack.push_async_callback(addresses.close)
            address = await addresses.of(token, incarnation)
            if not address:
                return ""
            server = RemoteCatalog(address, environment=self.environment, settings=settings)
            stack.push_async_callback(server.close)
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    status = await server.status()
            except (PersistError, TimeoutError):
                return ""
            return address if (status.role, status.own) == ("leader", token) else ""

    async def _kept(self, settings: "Settings", stack: contextlib.AsyncExitStack) -> "AddressRows":
        from persist.client.catalog.addresses import KeptInShard, KeptInStash
        from persist.client.catalog.log.stash_log import open_stash_log
        from persist.runtime import system

        if self.stash is not None:
            stash = self.stash
            return KeptInStash(
                self.environment, lambda name: open_stash_log(stash, name, settings=settings, runtime=system())
            )
        client = await _client(self.target, settings)
        stack.push_async_callback(client.close)
        return KeptInShard(client, self.environment)

    def _refuse(self) -> None:
        from persist.core.catalog.errors import Uninitialized

        raise Uninitialized(
            "there is no catalog here",
            hint="are place and --environment right? A catalog begins when it is first opened for writing",
            environment=self.environment,
            place=str(self),
        )

    @contextlib.asynccontextmanager
    async def _opened(self, settings: "Settings") -> AsyncIterator["OpenableCatalog"]:
        from persist.client.catalog.durable import DurableCatalog

        async with contextlib.AsyncExitStack() as stack:
            catalog = DurableCatalog(await self._log(settings, stack))
            stack.push_async_callback(catalog.close)
            yield catalog

    async def _log(self, settings: "Settings", stack: contextlib.AsyncExitStack) -> "RowLog":
        if self.stash is not None:
            from persist.client.catalog.log.stash_log import open_stash_log

            return await open_stash_log(self.stash, self.environment, settings=settings)
        from persist.client.catalog.log.shard_log import open_shard_log
        from persist.core.names import catalog_shard
        from persist.errors import ShardNotFound

        client = await _client(self.target, settings)
        stack.push_async_callback(client.close)
        try:
            await client.recent_upper(catalog_shard(self.environment))
        except ShardNotFound:
            self._refuse()
        return await open_shard_log(client, self.environment)

    def _check_there(self, settings: "Settings", *, new: bool = False) -> None:
        """Opening makes the files that are not there: a misspelt name would leave empty ones behind, unless ``new``."""
        from persist.errors import InvalidArgument

        if self.stash is not None and self.stash.startswith("sqlite:"):
            path = sqlite_file(self.stash)
            if not path.is_file():
                raise InvalidArgument(
                    "there is no such file", hint="the first process that writes makes a stash", path=path
                )
        elif self.target is not None:
            self.target.check_not_lost(settings)
            if not new:
                self.target.check_there()

    def __str__(self) -> str:
        """Without passwords."""
        from persist.redaction import without_password

        text = self.stash if self.stash is not None else str(self.target)
        return without_password(text)


async def _client(target: LocationTarget | None, settings: "Settings") -> "Client":
    from persist import aio

    assert target is not None
    if target.endpoint is not None:
        return await aio.connect(target.endpoint, settings=settings)
    if target.location is not None:
        return await aio.embedded(target.location, read_only=target.is_only_read(), settings=settings)
    return await aio.embedded(blob=target.blob, consensus=target.consensus, settings=settings)
