"""The work behind ``persist hold``: typed statements to the leader, and what became of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from persist.client.collections.naming import name_of
from persist.client.collections.reading.live import states_of_holds
from persist.core.catalog.ddl import statements as ddl
from persist.core.catalog.ddl.effects import Executed
from persist.core.catalog.values import ObjectType
from persist.core.time.hold import Interval, MaxLag, OnLag, lag_text
from persist.core.time.timeline import timeline_of
from persist.dates import dated
from persist.digits import whole_number
from persist.errors import InvalidArgument
from persist.runtime import system
from persist.typed import Record
from persist_cli.catalog.place import CatalogPlace
from persist_cli.terminal import note, print_json, print_list
from persist_cli.times import time_of

if TYPE_CHECKING:
    from persist.client.collections.environment import Environment
    from persist.settings import Settings

COLUMNS = ("name", "kind", "at", "on", "timeline", "max_lag", "state")


def create(
    place: CatalogPlace,
    settings: "Settings",
    name: str,
    objects: Sequence[str],
    at: str | None,
    max_lag: str | None,
    on_lag: str,
    *,
    role: str,
    json: bool,
) -> None:
    """Make a hold, and say what became of it. Raises what CREATE HOLD raises."""
    if on_lag not in list(OnLag):
        raise InvalidArgument("this is no ON LAG", hint=" or ".join(OnLag), got=on_lag)
    statement = ddl.CreateHold(
        name_of(name),
        tuple(name_of(each) for each in objects),
        at=None if at is None else time_of(at, system().now_ms()),
        max_lag=_lag(max_lag),
        on_lag=OnLag(on_lag),
    )
    _execute(place, settings, statement, name, role=role, json=json)


def advance(place: CatalogPlace, settings: "Settings", name: str, to: str | None, *, role: str, json: bool) -> None:
    """Move a hold. Raises what ALTER HOLD raises."""
    time = None if to is None else time_of(to, system().now_ms())
    _execute(place, settings, ddl.AdvanceHold(name_of(name), time), name, role=role, json=json)


def drop(place: CatalogPlace, settings: "Settings", name: str, *, if_exists: bool, role: str, json: bool) -> None:
    """Drop a hold. Raises what DROP HOLD raises."""
    statement = ddl.Drop(ObjectType.HOLD, (name_of(name),), if_exists=if_exists)
    _execute(place, settings, statement, name, role=role, json=json)


def rename(place: CatalogPlace, settings: "Settings", name: str, to: str, *, swap: bool, role: str, json: bool) -> None:
    """Call a hold differently. Raises what ALTER HOLD raises."""
    statement = ddl.Rename(ObjectType.HOLD, name_of(name), to, swap)
    _execute(place, settings, statement, to, role=role, json=json)


def list_holds(place: CatalogPlace, settings: "Settings", *, json: bool) -> None:
    """Print all holds and cursors. Raises Uninitialized."""

    async def work(environment: "Environment") -> list[Record]:
        view = await environment.strict_view()
        states = await states_of_holds(environment.access.client, view)
        items = [*view.items(ObjectType.HOLD), *view.items(ObjectType.CURSOR)]
        names = {str(each.id): str(each.name) for each in view.items()}
        rows: list[Record] = []
        for each in items:
            hold = view.hold(each.id)
            rows.append(
                {
                    "name": str(each.name),
                    "kind": each.kind.value,
                    "at": hold.at,
                    "on": [names.get(id, id) for id in hold.objects],
                    "timeline": str(hold.timeline),
                    "max_lag": hold.max_lag,
                    "state": states.get(str(each.id), "ok"),
                }
            )
        return rows

    rows = place.in_environment(settings, work)
    if json:
        print_json(rows)
        return
    shown = [
        {
            **row,
            "at": dated(row["at"]),
            "on": ", ".join(row["on"]),
            "max_lag": lag_text(timeline_of(row["timeline"]), row["max_lag"]),
        }
        for row in rows
    ]
    first = "persist hold create NAME TABLE makes one"
    print_list(COLUMNS, [[row[name] for name in COLUMNS] for row in shown], "hold", first)


def _lag(text: str | None) -> MaxLag | None:
    if text is None:
        return None
    number = whole_number(text)
    return Interval.parse(text) if number is None else number


def _execute(
    place: CatalogPlace, settings: "Settings", statement: ddl.Statement, name: str, *, role: str, json: bool
) -> None:
    async def work(environment: "Environment") -> tuple[Executed, int | None]:
        (done,) = await environment.execute(statement)
        view = await environment.strict_view()
        # By its id: other schemas may have a hold of this name.
        return done, next((view.hold(each.id).at for each in view.items(ObjectType.HOLD) if each.id == done.id), None)

    done, at = place.in_environment(settings, work, role=role)
    if json:
        print_json({"done": done.tag, "name": done.name or name, "at": at, "notice": done.notice})
        return
    note(f"{done.tag} {done.name or name}" + (f" at {dated(at)}" if at is not None else ""))
    if done.notice:
        note(done.notice)
