"""The work behind ``persist sink``: a sink's cursor, delivered into the target that its definition names."""

import asyncio
import signal
from typing import TYPE_CHECKING

from persist.client.collections.naming import name_of
from persist.client.collections.reading.live import states_of_holds
from persist.core.catalog.values import ObjectType
from persist.errors import InvalidArgument
from persist.sinks import target_of
from persist_cli.catalog.place import CatalogPlace
from persist_cli.terminal import note, print_json, print_list

if TYPE_CHECKING:
    from persist.client.collections.environment import Environment
    from persist.settings import Settings


def run_sink(
    place: CatalogPlace, settings: "Settings", name: str, idle: float | None, *, role: str, json: bool
) -> None:
    """Deliver until interrupted, or nothing came for ``idle`` seconds. Raises what ``Cursor.deliver`` raises."""

    async def work(environment: "Environment") -> int | None:
        item = await environment.resolve(name_of(name))
        if item.kind is not ObjectType.SINK:
            raise InvalidArgument("this is no sink", hint="CREATE SINK makes one", name=item.name, kind=item.kind)
        target = target_of(dict(item.options))
        async with await environment.cursor(item.name) as cursor:
            note(f"{cursor.collection} into {_target(dict(item.options))}; Ctrl-C ends it")
            delivering = asyncio.ensure_future(cursor.deliver(target, idle=idle))
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, delivering.cancel)
            try:
                return await delivering
            except asyncio.CancelledError:
                # What was under way is there whole or not at all; the target knows how far it is.
                return cursor.position
            finally:
                target.close()

    position = place.in_environment(settings, work, role=role)
    if json:
        print_json({"sink": name, "position": position})
    else:
        note(f"delivered up to {position}")


def list_sinks(place: CatalogPlace, settings: "Settings", *, json: bool) -> None:
    """Print all sinks. Raises Uninitialized."""

    async def work(environment: "Environment") -> list[dict[str, str | int | None]]:
        view = await environment.strict_view()
        states = await states_of_holds(environment.access.client, view)
        return [
            {
                "name": str(each.name),
                "from": str(view.name_of(each.depends_on[0])),
                "into": _target(dict(each.options)),
                "acknowledged": view.acknowledged(each.id),
                "state": states.get(str(each.id), "ok"),
            }
            for each in view.items(ObjectType.SINK)
        ]

    rows = place.in_environment(settings, work)
    if json:
        print_json(rows)
        return
    first = "persist sql \"CREATE SINK … FROM … INTO sqlite (path = 'copy.db', table = '…')\" makes one"
    print_list(tuple(rows[0]) if rows else (), [tuple(row.values()) for row in rows], "sink", first)


def _target(options: dict[str, str]) -> str:
    kind = options.pop("type", "")
    return f"{kind} ({', '.join(f'{name} = {value}' for name, value in sorted(options.items()))})"
