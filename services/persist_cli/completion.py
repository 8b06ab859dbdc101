"""What a shell is offered when a word is half typed: names that a location has, where one is at hand.

They come within a second, or not at all: at Tab one wants neither to wait nor to read errors. What was found by then is
offered, and a process that completes does nothing else, so that it can simply end.
"""

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Thread, Timer
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from persist.settings import Settings
    from persist_cli.options import LocationTarget
    from persist_ingest import Source

SECONDS: Final = 1.0
"""For what is looked up, beside the start of the process."""
_END_SECONDS: Final = 0.3
"""For what was looked up to be said, and for the process to end."""
_OPEN: Final = "persist.public."
"""The schema whose items go by their own name."""


def sources(context: typer.Context, incomplete: str) -> list[str]:
    """Sources of the location."""
    return _offered(context, incomplete, source_names)


def tables(context: typer.Context, incomplete: str) -> list[str]:
    """What can be read: ids of shards, items by name; from a dot on, also what sources export: ``SOURCE.EXPORT``."""
    return _offered(context, incomplete, shard_ids, item_names, *([export_names] if "." in incomplete else []))


def items(context: typer.Context, incomplete: str) -> list[str]:
    """Items of the environment."""
    return _offered(context, incomplete, item_names)


def kinds(incomplete: str) -> list[str]:
    """Kinds of objects in a catalog."""
    from persist.core.catalog.kinds import KINDS

    return sorted(kind.tag for kind in KINDS if kind.tag.startswith(incomplete))


def source_types(incomplete: str) -> list[str]:
    """Types of sources that come with persist."""
    from persist_ingest.sources.registry import BUILT_IN

    return [name for name in BUILT_IN if name.startswith(incomplete)]


def _offered(context: typer.Context, incomplete: str, *looks: Callable[["LocationTarget"], Iterable[str]]) -> list[str]:
    """What the looks find in time, the quickest first."""
    found: set[str] = set()

    def look() -> None:
        from persist_cli.options import PLACES, Where

        # Whatever is wrong is reported when the command runs.
        with contextlib.suppress(Exception):
            target = Where(context=context, **{name: context.params.get(name) for name in PLACES}).target()
            target.check_there()
            for each in looks:
                with contextlib.suppress(Exception):
                    found.update(each(target))

    _be_silent()
    looker = Thread(target=look, daemon=True)
    looker.start()
    looker.join(SECONDS)
    if looker.is_alive():
        # What it began may be waited for before a process ends; and what is torn down under a thread aborts.
        end = Timer(_END_SECONDS, os._exit, [0])
        end.daemon = True
        end.start()
        atexit.register(_end)
    return sorted(name for name in found.copy() if name.startswith(incomplete))


def _end() -> None:
    sys.stdout.flush()
    os._exit(0)


def _be_silent() -> None:
    """Libraries too."""
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def shard_ids(target: "LocationTarget") -> list[str]:
    """Of the shards of a location."""
    import asyncio

    async def listed() -> list[str]:
        from persist.core.names import is_id
        from persist.extras import extra
        from persist.runtime import system
        from persist.settings import Settings

        settings = Settings()
        if target.endpoint is not None:
            with extra("grpc"):
                from persist.client.remote.shards import RemoteShards

            remote = RemoteShards(target.endpoint, settings=settings)
            return [str(shard) async for shard in remote.list(timeout=SECONDS)]
        from persist.storage.open import open_consensus

        consensus = open_consensus(target.stores()[1], settings=settings, runtime=system())
        return [key async for key in consensus.list_keys(timeout=SECONDS) if is_id(key)]

    return asyncio.run(listed())


def source_names(target: "LocationTarget") -> list[str]:
    """Of the sources of a location."""
    return list(_records(target))


def item_names(target: "LocationTarget") -> Iterator[str]:
    """Of what its environment names and has a shard: in the schema that all begin with by the name alone, too."""
    with target.open(_hasty()) as client:
        for name in client.item_names().values():
            yield name
            if name.startswith(_OPEN):
                yield name.removeprefix(_OPEN)


def export_names(target: "LocationTarget") -> list[str]:
    """Of what its sources export."""
    return [f"{name}.{export}" for name, source in _records(target).items() for export in source.exports]


def _records(target: "LocationTarget") -> "Mapping[str, Source]":
    import persist_ingest

    with target.open(_hasty()) as client:
        return persist_ingest.Records(client).sources()


def _hasty() -> "Settings":
    from persist.settings import Settings

    return Settings(timeout_ms=int(SECONDS * 1000))
