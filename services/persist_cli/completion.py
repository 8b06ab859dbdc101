"""What a shell is offered when a word is half typed: names that a location has, where one is at hand.

They come within a second, or not at all: at Tab one wants neither to wait nor to read errors. A process that
completes does nothing else, so that it can simply end.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from persist_cli.options import LocationTarget

SECONDS: Final = 0.7
"""For what is looked up, beside the start of the process."""


def sources(context: typer.Context, incomplete: str) -> list[str]:
    """Sources of the location."""
    return _offered(context, incomplete, source_names)


def tables(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of shards; from a dot on, names that sources gave their tables: ``SOURCE.EXPORT``."""
    return _offered(context, incomplete, table_names if "." in incomplete else shard_ids)


def kinds(incomplete: str) -> list[str]:
    """Kinds of objects in a catalog."""
    from persist.core.catalog.kinds import KINDS

    return sorted(kind.tag for kind in KINDS if kind.tag.startswith(incomplete))


def source_types(incomplete: str) -> list[str]:
    """Types of sources that come with persist."""
    from persist_ingest.sources.registry import BUILT_IN

    return [name for name in BUILT_IN if name.startswith(incomplete)]


def _offered(context: typer.Context, incomplete: str, look: Callable[["LocationTarget"], Iterable[str]]) -> list[str]:
    _limit()
    try:
        from persist_cli.options import PLACES, Where

        target = Where(context=context, **{name: context.params.get(name) for name in PLACES}).target()
        target.check_there()
        return sorted(name for name in set(look(target)) if name.startswith(incomplete))
    except Exception:
        return []  # whatever is wrong is reported when the command runs
    finally:
        if hasattr(signal, "setitimer"):
            # Python forgets its handlers while it ends: the alarm would kill the process then, and the shell say so.
            signal.setitimer(signal.ITIMER_REAL, 0)


def _limit() -> None:
    """End the process when time is up, and be silent until then, libraries too."""
    sys.stderr.flush()
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    if hasattr(signal, "setitimer"):
        # The default action of the signal would be reported by the shell.
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, SECONDS)


def shard_ids(target: "LocationTarget") -> list[str]:
    """Of the shards of a location."""
    import asyncio

    async def listed() -> list[str]:
        from persist.core.names import is_id
        from persist.runtime import system
        from persist.settings import Settings

        settings = Settings()
        if target.endpoint is not None:
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


def table_names(target: "LocationTarget") -> list[str]:
    """Of what its sources export."""
    return [f"{name}.{export}" for name, source in _records(target).items() for export in source.exports]


def _records(target: "LocationTarget") -> Any:
    import persist
    import persist_ingest

    settings = persist.Settings(timeout_ms=int(SECONDS * 1000))
    with target.open(settings) as client:
        return persist_ingest.Records(client).sources()
