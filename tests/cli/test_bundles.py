"""Bundles of options: one place for an option of many commands."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from sure import sure
from typer.testing import CliRunner

from persist_cli.bundles import App, unfolded


@dataclass(kw_only=True)
class Near:
    context: typer.Context
    where: Annotated[str, typer.Option(envvar="BUNDLED_WHERE")] = "here"


@dataclass(kw_only=True)
class Farther(Near):
    context: typer.Context
    how: Annotated[str, typer.Option("--how", "-h")] = "slowly"


def test_command_has_every_option_of_its_bundles_and_gets_them_back_as_bundles():
    app, seen = App(), []

    @app.command()
    def go(name: str, *, far: Farther, loud: bool = False) -> None:
        seen.append((name, far.where, far.how, sure(far.context.get_parameter_source("where")).name, loud))

    run = CliRunner().invoke
    assert run(app, ["ada", "-h", "fast", "--where", "there", "--loud"]).exit_code == 0
    assert run(app, ["bob"], env={"BUNDLED_WHERE": "elsewhere"}).exit_code == 0
    assert seen == [("ada", "there", "fast", "COMMANDLINE", True), ("bob", "elsewhere", "slowly", "ENVIRONMENT", False)]


def test_two_bundles_share_the_context_and_no_option():
    def alike(near: Near, *, far: Farther) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="two options where"):
        unfolded(alike)


def test_help_breaks_lines_where_the_screen_ends():
    app = App()

    @app.command()
    def go() -> None:
        """What it does.

        A paragraph that the source broke
        in two.

        Another one.
        """

    shown = CliRunner().invoke(app, ["--help"]).output
    assert "A paragraph that the source broke in two." in shown
    assert "in two. Another" not in shown
