"""The work behind ``persist view``: upkeep of views on a Spark session of this process."""

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

from persist.core.catalog.ddl.system_tables import going
from persist.core.catalog.values import ObjectType
from persist.errors import LocationError
from persist_cli.catalog.place import CatalogPlace
from persist_cli.terminal import counted, note, print_json, print_list, print_rows

if TYPE_CHECKING:
    from persist.client.collections.environment import Environment
    from persist.client.sql.views.upkeep import ViewUpkeep
    from persist.runtime import Runtime
    from persist.settings import Settings

POLL_SECONDS = 1.0
"""Between two looks at what the inputs have."""


def run_views(place: CatalogPlace, settings: "Settings", master: str | None, *, once: bool, json: bool) -> None:
    """Refresh until interrupted, or once. Raises Uninitialized, LocationError (``once``), UsageError without Java."""
    from persist.extras import extra
    from persist_cli.admin.spark import session

    with extra("sql"):
        from persist.client.sql.views.upkeep import ViewUpkeep

    with session(master, "persist view run") as spark:
        from pyspark_persist import SparkRunner

        runner = SparkRunner(spark)

        async def work(environment: "Environment") -> list[dict[str, str | int | None]]:
            async with contextlib.AsyncExitStack() as stack:
                upkeep = ViewUpkeep(environment, runner, patience=None if once else POLL_SECONDS)
                stack.push_async_callback(upkeep.close)
                refreshing = asyncio.ensure_future(
                    _refreshed(upkeep, environment.access.client.location.runtime, once=once)
                )
                for number in (signal.SIGTERM, signal.SIGINT):
                    asyncio.get_running_loop().add_signal_handler(number, refreshing.cancel)
                # What was under way is there whole or not at all.
                with contextlib.suppress(asyncio.CancelledError):
                    await refreshing
                return [
                    {"name": each.name, "upper": each.upper.time, "stalled": each.stalled or None}
                    for each in upkeep.states()
                ]
            raise AssertionError

        rows = place.in_environment(settings, work)
    if json:
        print_json(rows)
    else:
        print_rows(rows, caption=counted(len(rows), "view"))


async def _refreshed(upkeep: "ViewUpkeep", runtime: "Runtime", *, once: bool) -> None:
    while once:
        if not await upkeep.work():
            return
    note("refreshing the views of Spark; Ctrl-C ends it")
    said: dict[str, str] = {}
    while True:
        try:
            await upkeep.work()
        except LocationError as error:
            note(f"persist: {error}; tried again")
        for each in upkeep.states():
            if each.stalled != said.setdefault(each.name, ""):
                said[each.name] = each.stalled
                note(f"{each.name} {f'does not go on: {each.stalled}' if each.stalled else 'goes on'}")
        await runtime.sleep(POLL_SECONDS)


def list_views(place: CatalogPlace, settings: "Settings", *, json: bool) -> None:
    """Print all materialized views. Raises Uninitialized."""

    async def work(environment: "Environment") -> list[dict[str, str | int | None]]:
        view = await environment.strict_view()
        found = []
        for each in view.items(ObjectType.MATERIALIZED_VIEW):
            assert each.data is not None
            upper = await environment.access.client.recent_upper(each.data)
            state, reason, _ = going(view, each, view.role(environment.session.role))
            found.append(
                {
                    "name": str(each.name),
                    "runner": each.runner or "duckdb",
                    "upper": upper.time,
                    "state": state,
                    "reason": reason or None,
                }
            )
        return found

    rows = place.in_environment(settings, work)
    if json:
        print_json(rows)
        return
    first = "persist sql 'CREATE MATERIALIZED VIEW … AS SELECT …' makes one"
    print_list(tuple(rows[0]) if rows else (), [tuple(row.values()) for row in rows], "view", first)
