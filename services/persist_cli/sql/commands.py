"""``persist sql``: run SQL over the collections of an environment.

Source: collections: queries.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from persist_cli.catalog.place import Whose
from persist_cli.options import RUN, Run

Statement = Annotated[
    str | None,
    typer.Argument(
        metavar="STATEMENT", help="One statement or several, with ; between. None: a shell, or standard input."
    ),
]
Command = Annotated[
    str | None, typer.Option("--command", "-c", metavar="STATEMENT", help="The same, as other shells take it.")
]
File = Annotated[
    Path | None, typer.Option("--file", "-f", metavar="FILE", help="Statements in a file; - for standard input.")
]
Csv = Annotated[bool, typer.Option("--csv", help="Print rows as CSV.", rich_help_panel=RUN)]
Arrow = Annotated[bool, typer.Option("--arrow", help="Print rows as an Arrow stream.", rich_help_panel=RUN)]
Role = Annotated[
    str, typer.Option("--role", metavar="NAME", envvar="PERSIST_ROLE", help="In whose name.", show_default="persist")
]
Runner = Annotated[
    str,
    typer.Option("--runner", metavar="ENGINE", help="What runs queries: duckdb or spark.", show_default="duckdb"),
]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's master; else Spark in this process.")
]


def sql(
    statement: Statement = None,
    command: Command = None,
    file: File = None,
    csv: Csv = False,
    arrow: Arrow = False,
    role: Role = "",
    runner: Runner = "",
    master: Master = None,
    *,
    at: Whose,
    run: Run,
) -> None:
    """Query tables, sources and views at a time, change tables, and make what has a name.

    Statements end with a semicolon; the first that fails ends the run. Rows are a table for people, JSON lines with
    --json. COPY reads and writes files of this machine. Without a statement, on a terminal, a shell begins: \\? helps.
    """
    if csv + arrow + run.json > 1:
        raise typer.BadParameter("rows have one format: --json, --csv or --arrow")
    if len([each for each in (statement, command, file) if each is not None]) > 1:
        raise typer.BadParameter("give a statement, or a file with some")
    if runner not in ("", "duckdb", "spark"):
        raise typer.BadParameter("--runner is duckdb or spark")
    if master is not None and runner != "spark":
        raise typer.BadParameter("--master needs --runner spark")
    statement = command if statement is None else statement
    place, settings = at.place(), run.settings()
    from persist_cli.sql import running

    form = (
        running.Printed.JSON if run.json else running.Printed.CSV if csv else running.Printed.ARROW if arrow else None
    )
    text = statement if statement is not None else running.text_of(file)
    if text is None and not sys.stdin.isatty():
        text = sys.stdin.read()
    parsed = None if text is None else running.parsed(text)
    with running.engine(runner, master) as engine:
        if parsed is not None:
            place.in_environment(
                settings,
                lambda env: running.run_all(env, parsed, form or running.Printed.TABLE, place.target, engine),
                role=role,
                new=running.creates(parsed),
            )
            return
        from persist_cli.sql import shell

        environ = run.invocation.environ
        place.in_environment(
            settings,
            lambda env: shell.interact(env, form or running.Printed.TABLE, environ, place.target, engine),
            role=role,
            new=True,
        )
