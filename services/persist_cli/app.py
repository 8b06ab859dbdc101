"""The commands in one tree, and what a failure looks like: one line with the next step, and an exit code.

Heavy imports (Arrow, gRPC, Spark) happen inside the commands that need them, so that ``--help`` is quick.
"""

import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from persist_cli import admin, catalog, doctor, fsck, serve, shards, sources, usage
from persist_cli.options import Invocation

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_REFUSED: Final = 78

app = typer.Typer(
    name="persist",
    help="Durable, definite time-varying collections: run the services, look into shards, find out what is wrong.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("dev")(serve.dev)
app.add_typer(serve.app, name="serve")
app.add_typer(shards.app, name="shard")
app.add_typer(admin.app, name="admin")
app.add_typer(sources.app, name="source")
app.add_typer(catalog.app, name="catalog")
shards.app.command("finalize")(admin.finalize)
app.command("usage")(usage.usage)
app.command("fsck")(fsck.fsck)
app.command("doctor")(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"persist {version('persist-tvc')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="PERSIST_DEBUG", help="Show the traceback of a failure.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Options before the command apply to all of them."""
    context.ensure_object(Invocation).debug = debug


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command line and return its exit code. Never raises but for what ``os._exit`` and signals do."""
    invocation = Invocation(environ=environ)
    try:
        app(args=list(arguments), prog_name="persist", obj=invocation)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_FAILED
    except Exception as error:
        return _explain(error, invocation)
    return 0


def _explain(error: Exception, invocation: Invocation) -> int:
    """Tell the person in one line, and a program in one JSON object if it asked for JSON. Returns the exit code."""
    from persist.errors import PersistError, UnsafeConfiguration, UsageError

    if invocation.debug:
        traceback.print_exception(error)
    if isinstance(error, PersistError):
        code = EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
        code = EXIT_REFUSED if isinstance(error, UnsafeConfiguration) else code
        told = {"error": error.reason, "message": error.message, "details": error.details, "hint": error.hint}
        line = str(error)
    else:
        code = EXIT_FAILED
        told = {"error": type(error).__name__, "message": str(error)}
        line = f"{type(error).__name__}: {error}"
        line = line if invocation.debug else f"{line} (persist --debug … shows where)"
    if invocation.json:
        typer.echo(json.dumps(told), err=True)
    else:
        typer.secho(f"persist: {line}", err=True, fg=typer.colors.RED if sys.stderr.isatty() else None)
    return code
