"""The work behind ``persist catalog repair``: what is wrong with the rows of a catalog, told and mended."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from persist.client.catalog.port import Repair
from persist.core.catalog.rows import Row
from persist.typed import Record
from persist_cli.catalog.place import Place
from persist_cli.catalog.reads import line, show_row
from persist_cli.terminal import counted, note, print_json

if TYPE_CHECKING:
    from persist.settings import Settings


def repair(place: Place, settings: "Settings", *, commit: bool, json: bool) -> None:
    """Tell what is wrong and what changes, done if ``commit``. Raises Exit with 1 while something is wrong."""
    done = place.run(settings, lambda catalog: catalog.repair(commit=commit), begun=True)
    if json:
        _print_json(place, done)
    else:
        _print(done)
    if done.left:
        note(f"this keeps the catalog from being opened, and takes a person: {done.left}")
    if done.left or (done.damages and done.token is None):
        raise typer.Exit(1)


def _print(done: Repair) -> None:
    for damage in done.damages:
        print(f"damaged: {_text(damage.row)}: {damage.problem}")
    for row, diff in done.changes:
        print(f"{diff:+d} {_text(row)}")
    if not done.damages:
        note("all rows sum up: nothing was done, nobody was fenced")
    elif done.token is None:
        note(f"{counted(len(done.damages), 'row')} damaged. Nothing was done: --commit makes these changes")
    else:
        token = f"deploy generation {done.token.deploy_generation}, epoch {done.token.epoch}"
        note(f"{counted(len(done.changes), 'change')} made. Now {token}")


def _print_json(place: Place, done: Repair) -> None:
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
