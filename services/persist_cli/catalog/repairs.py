"""The work behind ``persist catalog repair``: what is wrong with the rows of a catalog, shown and mended."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from persist.client.catalog.port import OpenableCatalog, Repair
from persist.core.catalog.errors import NotWritable
from persist.core.catalog.kinds import CONFIG, FENCE_TOKEN
from persist.core.catalog.leadership.repair import Tally
from persist.core.catalog.objects import FenceToken
from persist.core.catalog.rows import Row
from persist.errors import InvalidArgument
from persist.typed import Record
from persist.wire.catalog.rows import CODEC
from persist_cli.catalog.place import CatalogPlace
from persist_cli.catalog.reads import line, show_row
from persist_cli.terminal import counted, note, print_json

if TYPE_CHECKING:
    from persist.settings import Settings


def repair(
    place: CatalogPlace,
    settings: "Settings",
    *,
    commit: bool,
    json: bool,
    back: tuple[int | None, int | None] = (None, None),
) -> None:
    """Print what is wrong and what changes, done if ``commit``. Raises Exit with 1 while something is wrong.

    ``back``: a generation and an epoch to set the fence token back to; None leaves that one. Raises NotWritable while
    a server leads.
    """

    async def work(catalog: OpenableCatalog) -> Repair:
        token = await _set_back(place, settings, catalog, *back) if back != (None, None) else None
        return await catalog.repair(commit=commit, token=token)

    done = place.run(settings, work, begun=True)
    if back != (None, None) and done.token is None:
        note("the fence token is set back by these changes. Nothing was done: --commit makes them")
    if json:
        _print_json(place, done)
    else:
        _print(done)
    if done.left:
        note(f"this keeps the catalog from being opened, and takes a person: {done.left}")
    if done.left or (done.damages and done.token is None):
        raise typer.Exit(1)


async def _set_back(
    place: CatalogPlace, settings: "Settings", catalog: OpenableCatalog, generation: int | None, epoch: int | None
) -> FenceToken:
    """The token that is wanted, while no server leads. Raises NotWritable."""
    there = await catalog.fence_token()
    if there is None:
        raise InvalidArgument("there is no fence token to set back", hint="this catalog was never opened")
    found = await catalog.dump(kinds={CONFIG.tag, FENCE_TOKEN.tag})
    leader = await place.live_leader(settings, there, Tally(CODEC, found.updates).incarnation)
    if leader:
        raise NotWritable("a server leads this catalog", hint="stop it first; nothing was changed", leader=leader)
    return FenceToken(
        there.deploy_generation if generation is None else generation, there.epoch if epoch is None else epoch
    )


def _print(done: Repair) -> None:
    for damage in done.damages:
        print(f"damaged: {_text(damage.row)}: {damage.problem}")
    for row, diff in done.changes:
        print(f"{diff:+d} {_text(row)}")
    if not done.changes:
        note("all rows sum up: nothing was done, no process was fenced")
    elif done.token is None and done.damages:
        note(f"{counted(len(done.damages), 'row')} damaged. Nothing was done: --commit makes these changes")
    elif done.token is not None:
        token = f"deploy generation {done.token.deploy_generation}, epoch {done.token.epoch}"
        note(f"{counted(len(done.changes), 'change')} made. Now {token}")


def _print_json(place: CatalogPlace, done: Repair) -> None:
    token = None
    if done.token is not None:
        token = {"deploy_generation": done.token.deploy_generation, "epoch": done.token.epoch}
    print_json(
        {
            "environment": place.environment,
            "damaged": [_fields(it.row) | {"problem": it.problem, "times": it.times} for it in done.damages],
            "changes": _changes(done.changes),
            "token": token,
            "left": done.left,
        }
    )


def _changes(changes: Iterable[tuple[Row, int]]) -> list[Record]:
    return [_fields(row) | {"diff": diff} for row, diff in changes]


def _fields(row: Row) -> Record:
    shown = show_row(row)
    if shown is None:
        return {"kind": row.kind, "key_hex": row.key.hex(), "value_hex": row.value.hex()}
    return {"kind": row.kind, "key": shown[0], "value": shown[1]}


def _text(row: Row) -> str:
    fields = _fields(row)
    return f"{fields.pop('kind')} {' '.join(line(value) for value in fields.values())}"
