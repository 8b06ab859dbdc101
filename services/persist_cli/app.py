"""The commands in one tree, and what a failure looks like: one line with the next step, and an exit code.

Heavy imports (Arrow, gRPC, Spark) happen inside the commands that need them, so that ``--help`` is quick.
"""

import contextlib
import functools
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, TextIO, cast

import typer
import typer.main
from typer.core import TyperGroup

from persist.typed import Fields, Record
from persist_cli.admin import commands as admin
from persist_cli.admin import fsck, usage
from persist_cli.backup import commands as backup
from persist_cli.bundles import App
from persist_cli.catalog import commands as catalog
from persist_cli.doctor import commands as doctor
from persist_cli.hold import commands as holds
from persist_cli.options import EXIT_FAILED, Invocation
from persist_cli.output import Effect, Output, OutputFailed
from persist_cli.partly import SAID_OF, PartlyDone, happened
from persist_cli.serve import commands as serve
from persist_cli.shard import commands as shards
from persist_cli.sink import commands as sinks
from persist_cli.source import commands as sources
from persist_cli.sql import commands as sql

EXIT_USAGE: Final = 2
EXIT_REFUSED: Final = 78

ORDER: Final = (
    "dev",
    "doctor",
    "sql",
    "hold",
    "shard",
    "source",
    "sink",
    "catalog",
    "serve",
    "backup",
    "usage",
    "fsck",
    "admin",
)


class _Root(TyperGroup):
    """All commands, in the order in which people come to need them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)


app = App(
    name="persist",
    cls=_Root,
    help="Durable, definite time-varying collections: run services, look into shards, mend. "
    "Exits with 0 done, 1 failed, 2 wrong usage, 3 done in part, 78 refused.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
BEGIN: Final = "Begin here"
DATA: Final = "Data"
RUN: Final = "Run it"
KEEP: Final = "Keep it well"

app.command("dev", rich_help_panel=BEGIN, short_help="All services in one process, on this machine.")(serve.dev)
app.command("doctor", effect=Effect.READS, rich_help_panel=BEGIN, short_help="What is wrong here, and what to do.")(
    doctor.doctor
)
app.command("sql", rich_help_panel=DATA, short_help="Query and change collections by name, at a time.")(sql.sql)
app.add_typer(holds.app, name="hold", rich_help_panel=DATA, short_help="Keep the history of collections readable.")
app.add_typer(shards.app, name="shard", rich_help_panel=DATA)
app.add_typer(sources.app, name="source", rich_help_panel=DATA)
app.add_typer(sinks.app, name="sink", rich_help_panel=DATA)
app.add_typer(catalog.app, name="catalog", rich_help_panel=DATA, short_help="Look into catalogs, and repair them.")
app.add_typer(serve.app, name="serve", rich_help_panel=RUN)
app.add_typer(backup.app, name="backup", rich_help_panel=KEEP)
app.command(
    "usage", effect=Effect.READS, rich_help_panel=KEEP, short_help="What shards keep in Blob, and what it costs."
)(usage.usage)
app.command("fsck", effect=Effect.READS, rich_help_panel=KEEP, short_help="Check that all that shards need is there.")(
    fsck.fsck
)
app.add_typer(admin.app, name="admin", rich_help_panel=KEEP, short_help="Clean up and mend, with --commit.")
shards.app.command("finalize")(admin.finalize)


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
    invocation = context.ensure_object(Invocation)
    invocation.debug = debug
    invocation.hush()


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command line and return its exit code. Never raises but for what ``os._exit`` and signals do.

    Nothing that was given as a secret, on the command line or in the environment, comes out on standard error.
    """
    invocation = Invocation(arguments=arguments, environ=environ, vocabulary=frozenset(_words(app)))
    output = Output(sys.stdout)
    with contextlib.redirect_stderr(cast(TextIO, _Hushed(sys.stderr, invocation))):
        with contextlib.redirect_stdout(cast(TextIO, output)):
            code = _run(arguments, invocation, output)
        return output.end(code)


def _words(tree: typer.Typer) -> Iterator[str]:
    """The names of the commands, of groups and below them."""
    for command in tree.registered_commands:
        yield command.name or getattr(command.callback, "__name__", "").replace("_", "-")
    for group in tree.registered_groups:
        inside = group.typer_instance
        yield str(group.name or (inside.info.name if inside else ""))
        yield from _words(inside) if inside else ()


class _Hushed:
    """Standard error without secrets. What finds them is imported with the first word said."""

    def __init__(self, stream: TextIO, invocation: Invocation) -> None:
        self._stream = stream
        self._invocation = invocation

    def write(self, text: str) -> int:
        from persist.redaction import Scrubbed

        self._invocation.hush()
        return Scrubbed(self._stream).write(text)

    @property
    def beneath(self) -> TextIO:
        """Standard error itself, for what was scrubbed in pieces."""
        self._invocation.hush()
        return self._stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@functools.cache
def _command() -> Callable[..., object]:
    """The tree of all commands, which takes longer to make than many a command takes to run."""
    return typer.main.get_command(app)


def _run(arguments: Sequence[str], invocation: Invocation, output: Output) -> int:
    try:
        # Not standalone: that would break lines, in which no secret could be found any more.
        code = _command()(args=list(arguments), prog_name="persist", obj=invocation, standalone_mode=False)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    except (KeyboardInterrupt, typer.Abort):
        if output.effect is Effect.ONE_COMMIT:
            typer.echo("persist: interrupted: it may have happened; look before it is repeated", err=True)
        return EXIT_FAILED
    except OutputFailed as error:
        return output.said(error)
    except PartlyDone as error:
        return error.code_of(_explain(error.error, invocation, error.happened, error.done))
    except Exception as error:
        return _explain(error, invocation, happened(error) if output.effect is Effect.ONE_COMMIT else "")
    return code if isinstance(code, int) else 0


def _explain(error: Exception, invocation: Invocation, happened: str = "", done: Sequence[str] = ()) -> int:
    """Print it: in one line for people, in one JSON object for a program that asked for JSON. Returns the exit code.

    ``happened``: whether what failed did, as far as that is known; ``done``: what had taken effect before it.
    """
    from persist.errors import PersistError, UnsafeConfiguration, UsageError

    if hasattr(error, "show") and hasattr(error, "exit_code"):
        error.show()  # of Click: the command line is wrong
        return int(error.exit_code)
    if invocation.debug:
        traceback.print_exception(error)
    told: Record
    if isinstance(error, PersistError):
        code = EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
        code = EXIT_REFUSED if isinstance(error, UnsafeConfiguration) else code
        told = {"error": error.reason, "message": error.message, "details": error.details, "hint": error.hint}
        line = str(error)
    elif isinstance(error, OutputFailed):
        code = EXIT_FAILED
        told = {"error": "OUTPUT_FAILED", "message": f"standard output: {error}"}
        line = told["message"]
    else:
        code = EXIT_FAILED
        told = {"error": type(error).__name__, "message": str(error)}
        line = f"{type(error).__name__}: {error}"
        line = line if invocation.debug else f"{line} (persist --debug … shows where)"
    if happened:
        told["happened"] = happened
        line += f"; {SAID_OF[happened]}"
    if done:
        told["took_effect"] = list(done)
        line += f"; before it took effect: {', '.join(done)}"
    if invocation.json:
        _tell_program(told)
    else:
        typer.secho(f"persist: {line}", err=True, fg=typer.colors.RED if sys.stderr.isatty() else None)
    return code


def _tell_program(told: Fields) -> None:
    """One JSON object on standard error. What is in it is scrubbed, not its names nor the kind of the error."""
    from persist.redaction import beneath, scrub

    stream = beneath(sys.stderr)
    details = {name: scrub(value) for name, value in told.get("details", {}).items()}
    texts = {name: scrub(value) for name, value in told.items() if name in ("message", "hint")}
    said = {**told, **texts, **({"details": details} if "details" in told else {})}
    typer.echo(json.dumps(said), file=stream)
