"""``persist sink``: carry out what ``CREATE SINK`` names, in a process that may reach the target.

Source: collections: cursors.
"""

from typing import Annotated

import typer

from persist_cli.bundles import App
from persist_cli.catalog.place import Whose
from persist_cli.options import Run, finite

app = App(help="Deliver changes into SQLite, PostgreSQL or files, each once.", no_args_is_help=True)

Sink = Annotated[str, typer.Argument(metavar="SINK", help="Its name: k, public.k or persist.public.k.")]
Role = Annotated[
    str, typer.Option("--role", metavar="NAME", envvar="PERSIST_ROLE", help="In whose name.", show_default="persist")
]


@app.command("run")
def run_sink(
    name: Sink,
    idle: Annotated[
        float | None,
        typer.Option(
            callback=finite, min=0.0, metavar="SECONDS", help="End after so long without changes; else never."
        ),
    ] = None,
    role: Role = "",
    *,
    at: Whose,
    run: Run,
) -> None:
    """Deliver a sink until SIGTERM or Ctrl-C: each change once, whatever dies meanwhile. One process for each sink.

    persist sql "CREATE SINK k FROM orders INTO sqlite (path = 'orders.db', table = 'orders')"
    """
    place, settings = at.place(), run.settings()
    from persist_cli.sink import work

    work.run_sink(place, settings, name, idle, role=role, json=run.json)


@app.command("list")
def list_sinks(*, at: Whose, run: Run) -> None:
    """List sinks: what each delivers, into what, and up to which time that is there."""
    place, settings = at.place(), run.settings()
    from persist_cli.sink import work

    work.list_sinks(place, settings, json=run.json)
