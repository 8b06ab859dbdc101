"""Asking all servers of a catalog at once what they are: as quick as the first answer, even if others stand still.

Source: reliability.md section 5; protos/persist/v1/catalog.proto.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from persist.errors import LocationError
from persist.runtime import Runtime
from persist.typed import Fields, Record
from persist.wire.catalog.rpc import leads, optional_token

STATUS_SECONDS: Final = 2.0
"""How long a server may take to say what it is."""
LATE_SECONDS: Final = 1.0
"""How long others are waited for once one has answered."""
DOWN_SECONDS: Final = 0.25
"""The same where all of them failed lately."""

Enough = Callable[[Any], bool]


async def ask_all(
    ask: Callable[[str], Awaitable[object]],
    endpoints: Sequence[str],
    enough: Enough,
    runtime: Runtime,
    *,
    seconds: float = STATUS_SECONDS,
    silent: Callable[[str], bool] = lambda endpoint: False,
) -> tuple[Record, LocationError | None]:
    """What servers answered, in the order they did, until one is ``enough``; and why another one did not.

    Within ``seconds``. ``silent``: whether a server failed lately, so that it is not waited for where others answer.
    Raises what is no LocationError.
    """
    asking = {asyncio.ensure_future(ask(endpoint)): endpoint for endpoint in endpoints}
    found: Record = {}
    failure: LocationError | None = None
    left, until = set(asking), runtime.monotonic() + min(seconds, STATUS_SECONDS)
    try:
        while left and not any(map(enough, found.values())):
            wait = max(0.0, until - runtime.monotonic())
            done, left = await asyncio.wait(left, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            for task in done:
                try:
                    found[asking[task]] = task.result()
                except LocationError as error:
                    failure = error
            if found:
                more = DOWN_SECONDS if all(silent(asking[task]) for task in left) else LATE_SECONDS
                until = min(until, runtime.monotonic() + more)
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    return found, failure


def leader_of(found: Fields) -> str | None:
    """Where the leader is: the one with the highest token, if any says that it leads."""
    leading = [(optional_token(status, "own"), endpoint) for endpoint, status in found.items() if leads(status)]
    return max(leading)[1] if leading else None
