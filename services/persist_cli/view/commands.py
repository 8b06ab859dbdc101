"""``persist view``: compute, on Spark, the materialized views that were made for it.

Source: collections: the controller (views).
"""

from typing import Annotated

import typer

from persist_cli.bundles import App
from persist_cli.catalog.place import Whose
from persist_cli.options import Run

app = App(help="Compute materialized views on Spark.", no_args_is_help=True)

Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's master; else Spark in this process.")
]


@app.command("run")
def run_views(
    master: Master = None,
    once: Annotated[bool, typer.Option("--once", help="Bring each up to what there is now, and end.")] = False,
    *,
    at: Whose,
    run: Run,
) -> None:
    """Refresh views made WITH (RUNNER = 'spark') until SIGTERM or Ctrl-C: each result once, whatever dies meanwhile.

    Any number of processes may do so for the same views. The process that leads leaves these views to them.

    persist sql "CREATE MATERIALIZED VIEW v WITH (RUNNER = 'spark') AS SELECT …"
    """
    place, settings = at.place(), run.settings()
    from persist_cli.view import work

    work.run_views(place, settings, master, once=once, json=run.json)


@app.command("list")
def list_views(*, at: Whose, run: Run) -> None:
    """List materialized views: whose engine computes each, how far it is complete, and why one does not go on."""
    place, settings = at.place(), run.settings()
    from persist_cli.view import work

    work.list_views(place, settings, json=run.json)
