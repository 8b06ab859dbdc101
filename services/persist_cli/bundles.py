"""Options that come together: a command names a bundle, and its command line has every option of it.

A bundle is a dataclass whose fields are annotated as Typer's parameters are. A new field is a new option of every
command that names the bundle. Several bundles of a command may ask for its ``context``.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

import typer

from persist.typed import Record
from persist_cli.output import Effect, Output

Command = TypeVar("Command", bound=Callable[..., None])


class App(typer.Typer):
    """A group of commands whose parameters may be bundles."""

    def command(
        self, name: str | None = None, *, effect: Effect = Effect.MANY_STEPS, **options: Any
    ) -> Callable[[Command], Command]:
        """Registers a command and returns it as it is. ``effect``: what it changes."""
        register = super().command(name, **options)

        def registered(command: Command) -> Command:
            made = unfolded(command, effect)
            made.__doc__ = flowing(inspect.getdoc(command) or "")
            register(made)
            return command

        return registered


def flowing(text: str) -> str:
    """A docstring whose paragraphs are a line each: a screen breaks them where it ends, not where the source did."""
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in text.split("\n\n"))


def unfolded(command: Callable[..., None], effect: Effect = Effect.MANY_STEPS) -> Callable[..., None]:
    """The command with the fields of its bundles for parameters, each where its bundle stands."""
    own = inspect.signature(command).parameters.values()
    bundles: Record = {each.name: each.annotation for each in own if is_dataclass(each.annotation)}
    flat: dict[str, inspect.Parameter] = {}
    for each in own:
        for parameter in _fields(bundles[each.name]) if each.name in bundles else (each,):
            if parameter.name in flat and parameter.annotation is not typer.Context:
                raise TypeError(f"{command.__name__} has two options {parameter.name}")
            flat[parameter.name] = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)

    @functools.wraps(command)
    def folded(**given: object) -> None:
        if isinstance(sys.stdout, Output):
            sys.stdout.effect = effect
        made = {
            name: bundle(**{each.name: given[each.name] for each in fields(bundle)}) for name, bundle in bundles.items()
        }
        command(**{each.name: made[each.name] if each.name in made else given[each.name] for each in own})

    folded.__signature__ = inspect.Signature(list(flat.values()))  # type: ignore[attr-defined]  # Typer reads it
    return folded


def _fields(bundle: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(bundle, include_extras=True)
    for each in fields(bundle):
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        yield inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[each.name])
