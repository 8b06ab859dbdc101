"""One command line: it is run, and what fails is one line with the next step, and an exit code."""

import contextlib
import functools
import json
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TextIO, cast

import typer
import typer.main

from persist.typed import Fields, Record
from persist_cli.options import EXIT_FAILED, Invocation
from persist_cli.output import Closed, Effect, Output, OutputFailed
from persist_cli.partly import SAID_OF, PartlyDone, happened
from persist_cli.terminal import STYLED
from persist_cli.times import dated_details
from persist_cli.tree import tree, words

EXIT_USAGE: Final = 2
_EXTRA: Final = re.compile(r"unexpected extra argument.*\(([^\s)]+)")
EXIT_REFUSED: Final = 78


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command line and return its exit code. Never raises but for what ``os._exit`` and signals do.

    Nothing that was given as a secret, on the command line or in the environment, comes out on standard error.
    """
    invocation = Invocation(arguments=arguments, environ=environ, vocabulary=words)
    output = Output(sys.stdout or Closed())
    STYLED.set(not environ.get("NO_COLOR"))
    with contextlib.redirect_stderr(cast(TextIO, _Hushed(sys.stderr, invocation))):
        with contextlib.redirect_stdout(cast(TextIO, output)):
            code = _run(arguments, invocation, output)
        return output.end(code)


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
def _command(branch: str) -> Callable[..., object]:
    if not STYLED.get():
        from typer import rich_utils

        rich_utils.COLOR_SYSTEM = None
    return typer.main.get_command(tree(branch))


def _run(arguments: Sequence[str], invocation: Invocation, output: Output) -> int:
    try:
        # Not standalone: that would break lines, in which no secret could be found any more.
        code = _command(invocation.branch)(
            args=list(arguments), prog_name="persist", obj=invocation, standalone_mode=False
        )
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
        # Of Click: the command line is wrong, and what would have known that JSON is asked for was not reached.
        meant, words = _meant(error), invocation.arguments
        if "--json" in words[: words.index("--") if "--" in words else None]:
            hint = {"hint": meant} if meant else {}
            describe = getattr(error, "format_message", error.__str__)
            _tell_program({"error": "USAGE", "message": describe(), "details": {}, **hint})
            return int(error.exit_code)
        error.show()
        if meant:
            typer.echo(meant, err=True)
        return int(error.exit_code)
    if invocation.debug:
        traceback.print_exception(error)
    told: Record
    if isinstance(error, PersistError):
        code = EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
        code = EXIT_REFUSED if isinstance(error, UnsafeConfiguration) else code
        told = {"error": error.reason, "message": error.message, "details": error.details, "hint": error.hint}
        line = str(PersistError(error.message, hint=error.hint, **dated_details(error.details)))
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
        typer.secho(f"persist: {line}", err=True, fg=typer.colors.RED if sys.stderr.isatty() and STYLED.get() else None)
    return code


def _meant(error: object) -> str:
    """The option that a word of a wrong command line is to be the value of: a time stands behind one everywhere."""
    extra = _EXTRA.search(str(getattr(error, "message", "")))
    context = getattr(error, "ctx", None)
    if extra is None or context is None:
        return ""
    options = [each.opts[0] for each in context.command.params if each.metavar == "TIME"]
    return f"did you mean {' or '.join(f'{option} {extra[1]}' for option in options)}?" if options else ""


def _tell_program(told: Fields) -> None:
    """One JSON object on standard error. What is in it is scrubbed, not its names nor the kind of the error."""
    from persist.redaction import beneath, scrub

    stream = beneath(sys.stderr)
    details = {name: scrub(value) for name, value in told.get("details", {}).items()}
    texts = {name: scrub(value) for name, value in told.items() if name in ("message", "hint")}
    said = {**told, **texts, **({"details": details} if "details" in told else {})}
    typer.echo(json.dumps(said), file=stream)
