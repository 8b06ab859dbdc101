"""The commands in one tree, of which a command line needs one branch.

To make the whole of it takes longer than many a command takes to run: a branch is imported when it is named, all of
them for ``persist --help``. Heavy imports (Arrow, gRPC, Spark) happen inside the commands that need them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from persist_cli.bundles import App
from persist_cli.options import Invocation
from persist_cli.output import Effect

BEGIN: Final = "Begin here"
DATA: Final = "Data"
RUN: Final = "Run it"
KEEP: Final = "Keep it well"


@dataclass(frozen=True, slots=True)
class Branch:
    """What stands in a panel of the help: a command, or a group of them, which ``says`` its own if nothing is given."""

    panel: str
    module: str
    member: str
    says: str | None = None
    effect: Effect = Effect.MANY_STEPS

    def load(self) -> App | Callable[..., None]:
        """The function of the command, or the App of the group."""
        found: App | Callable[..., None] = getattr(import_module(self.module), self.member)
        return found


BRANCHES: Final = {
    "dev": Branch(BEGIN, "persist_cli.serve.commands", "dev", "All services in one process, on this machine."),
    "doctor": Branch(
        BEGIN, "persist_cli.doctor.commands", "doctor", "What is wrong here, and what to do.", Effect.READS
    ),
    "sql": Branch(DATA, "persist_cli.sql.commands", "sql", "Query and change collections by name, at a time."),
    "hold": Branch(DATA, "persist_cli.hold.commands", "app", "Keep the history of collections readable."),
    "shard": Branch(DATA, "persist_cli.shard.commands", "app"),
    "source": Branch(DATA, "persist_cli.source.commands", "app"),
    "sink": Branch(DATA, "persist_cli.sink.commands", "app"),
    "view": Branch(DATA, "persist_cli.view.commands", "app"),
    "catalog": Branch(DATA, "persist_cli.catalog.commands", "app", "Look into catalogs, and repair them."),
    "serve": Branch(RUN, "persist_cli.serve.commands", "app"),
    "backup": Branch(KEEP, "persist_cli.backup.commands", "app"),
    "usage": Branch(
        KEEP, "persist_cli.admin.usage", "usage", "What shards keep in Blob, and what it costs.", Effect.READS
    ),
    "fsck": Branch(KEEP, "persist_cli.admin.fsck", "fsck", "Check that all that shards need is there.", Effect.READS),
    "admin": Branch(KEEP, "persist_cli.admin.commands", "app", "Clean up and mend, with --commit."),
}
"""In the order in which people come to need them."""


class _Root(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=[*BRANCHES].index)


def tree(only: str = "") -> typer.Typer:
    """All commands; or the one branch of that name, if there is one, for a command line that begins with it."""
    app = App(
        name="persist",
        cls=_Root,
        help="Durable, definite time-varying collections: run services, look into shards, mend. "
        "Exits with 0 done, 1 failed, 2 wrong usage, 3 done in part, 78 refused.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in [only] if only in BRANCHES else BRANCHES:
        branch = BRANCHES[name]
        loaded = branch.load()
        if isinstance(loaded, App):
            app.add_typer(loaded, name=name, rich_help_panel=branch.panel, short_help=branch.says)
        else:
            app.command(name, effect=branch.effect, rich_help_panel=branch.panel, short_help=branch.says)(loaded)
    return app


def words(of: typer.Typer | None = None) -> Iterator[str]:
    """The names of the commands, of groups and below them."""
    whole = tree() if of is None else of
    for command in whole.registered_commands:
        yield command.name or getattr(command.callback, "__name__", "").replace("_", "-")
    for group in whole.registered_groups:
        inside = group.typer_instance
        yield str(group.name or (inside.info.name if inside else ""))
        yield from words(inside) if inside else ()


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"persist {version('persist-tvc')}")
        raise typer.Exit


def _root(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="PERSIST_DEBUG", help="Show the traceback of a failure.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Options before the command apply to all of them."""
    invocation = context.ensure_object(Invocation)
    invocation.debug = debug
    invocation.hush()
