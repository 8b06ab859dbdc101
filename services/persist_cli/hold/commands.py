"""``persist hold``: create, list, advance, drop and rename what keeps history readable.

Source: design document 5.
"""

from typing import Annotated

import typer

from persist_cli import completion
from persist_cli.bundles import App
from persist_cli.catalog.place import Whose
from persist_cli.options import Run
from persist_cli.output import Effect
from persist_cli.times import TIMES_HELP

app = App(help="Keep the history of collections readable, from a time on.", no_args_is_help=True)

Hold = Annotated[str, typer.Argument(metavar="HOLD", help="Its name: h, public.h or persist.public.h.")]
Role = Annotated[
    str, typer.Option("--role", metavar="NAME", envvar="PERSIST_ROLE", help="In whose name.", show_default="persist")
]


@app.command(effect=Effect.ONE_COMMIT)
def create(
    name: Hold,
    objects: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME…", help="Tables, sources, indexes and views it keeps.", autocompletion=completion.items
        ),
    ],
    time: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help=f"Readable from here on; else as early as can be. {TIMES_HELP}"),
    ] = None,
    max_lag: Annotated[
        str | None, typer.Option("--max-lag", metavar="LAG", help="How far it may fall behind: 3h, or times.")
    ] = None,
    on_lag: Annotated[
        str, typer.Option("--on-lag", metavar="WHAT", help="Then it moves on (advance), or ends (error).")
    ] = "advance",
    role: Role = "",
    *,
    at: Whose,
    run: Run,
) -> None:
    """Make a hold: from its time on, what it names stays readable, until it is advanced or dropped."""
    place, settings = at.place(), run.settings()
    from persist_cli.hold import work

    work.create(place, settings, name, objects, time, max_lag, on_lag, role=role, json=run.json)


@app.command("list", effect=Effect.READS)
def list_holds(*, at: Whose, run: Run) -> None:
    """List holds and cursors: what each keeps, from when on, and whether it still does."""
    place, settings = at.place(), run.settings()
    from persist_cli.hold import work

    work.list_holds(place, settings, json=run.json)


@app.command(effect=Effect.ONE_COMMIT)
def advance(
    name: Hold,
    time: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help=f"Where it moves to; else as far as can be. {TIMES_HELP}"),
    ] = None,
    role: Role = "",
    *,
    at: Whose,
    run: Run,
) -> None:
    """Move a hold: what is before its new time may be given up."""
    place, settings = at.place(), run.settings()
    from persist_cli.hold import work

    work.advance(place, settings, name, time, role=role, json=run.json)


@app.command(effect=Effect.ONE_COMMIT)
def drop(
    name: Hold,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="None of this name is no error.")] = False,
    role: Role = "",
    *,
    at: Whose,
    run: Run,
) -> None:
    """Release what a hold keeps. Readers that have begun are not disturbed."""
    place, settings = at.place(), run.settings()
    from persist_cli.hold import work

    work.drop(place, settings, name, if_exists=if_exists, role=role, json=run.json)


@app.command(effect=Effect.ONE_COMMIT)
def rename(
    name: Hold,
    to: Annotated[str, typer.Argument(metavar="TO", help="Its new name, in the same schema.")],
    swap: Annotated[bool, typer.Option("--swap", help="The hold that is called so has the former name then.")] = False,
    role: Role = "",
    *,
    at: Whose,
    run: Run,
) -> None:
    """Call a hold differently. With --swap another hold takes its place, with nothing in between."""
    place, settings = at.place(), run.settings()
    from persist_cli.hold import work

    work.rename(place, settings, name, to, swap=swap, role=role, json=run.json)
