"""Every example of every page runs, or says why it does not; command lines are such as there are."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pages.fences import CODE, FOLLOWED, FOLLOWED_WITH_SPARK, PAGES, ROOT, Fence, fences, matches
from pages.running import commands

from persist_cli.tree import tree

ALL = [fence for page in PAGES for fence in fences(page)]


def test_pages_have_examples() -> None:
    assert len(PAGES) >= 10
    assert sum(fence.runs for fence in ALL) >= 25


def test_blocks_say_what_they_are() -> None:
    wrong = [f"{fence} is {fence.language}" for fence in ALL if fence.language not in ("", "text", "json", *CODE)]
    assert not wrong
    # A comment that is none of the two kinds would be passed over in silence.
    unknown = [
        f"{fence}: {fence.says}" for fence in ALL if fence.says and not re.match("runs in |not run: ", fence.says)
    ]
    assert not unknown


@pytest.mark.parametrize("fence", [fence for fence in ALL if fence.runs], ids=str)
def test_what_runs_with_its_page_is_on_a_page_that_is_followed(fence: Fence) -> None:
    assert str(fence.page.relative_to(ROOT)) in {*FOLLOWED, *FOLLOWED_WITH_SPARK}, f"nothing runs {fence}"


@pytest.mark.parametrize("fence", [fence for fence in ALL if fence.elsewhere], ids=str)
def test_what_another_test_runs_is_named_there(fence: Fence) -> None:
    test = (ROOT / fence.elsewhere).read_text()
    named = fence.included or fence.page.name
    assert named in test, f"{fence.elsewhere} does not name {named}"


def test_every_example_stands_on_the_page_of_examples() -> None:
    shown = {fence.included for fence in ALL if fence.page.name == "examples.md"}
    assert shown == {path.name for path in (ROOT / "docs/examples").glob("*.py")}


def command_lines() -> list[tuple[Fence, str]]:
    """Every line of every page that runs ``persist``."""
    return [
        (fence, line.strip())
        for fence in ALL
        if fence.language == "sh"
        for line in commands(fence.code)
        if line.strip().startswith("persist ")
    ]


@pytest.mark.parametrize(("fence", "line"), command_lines(), ids=lambda value: str(value)[:60])
def test_command_lines_name_commands_and_options_that_exist(fence: Fence, line: str) -> None:
    words = [word for word in shlex.split(line.split(" > ")[0].removesuffix(" &"), comments=True) if word != "…"][1:]
    command: Any = typer.main.get_command(tree())
    while hasattr(command, "commands"):
        assert words, f"{fence}: {line} names no command"
        name = words.pop(0)
        assert name in command.commands, f"{fence}: there is no command {name}"
        command = command.commands[name]
    options = {name: each for each in command.params for name in (*each.opts, *each.secondary_opts)}
    given = 0
    while words:
        word = words.pop(0)
        if word.startswith("-") and word != "-":
            name, is_one, _ = word.partition("=")
            assert name in options, f"{fence}: {line}: there is no option {name}"
            if not getattr(options[name], "is_flag", False) and not is_one:
                assert words, f"{fence}: {name} needs a value"
                words.pop(0)
        else:
            given += 1
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    assert given <= len(arguments), f"{fence}: {line} has too many words"
    assert given >= sum(each.required for each in arguments), f"{fence}: {line} lacks a word"


def test_outputs_are_compared(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- not run: x -->\n```sh\na\n```\n\n"
        "```python\nprint(1)\n```\n\n```text\n1 … 3\n```\n\nand\n\n```\npicture\n```\n"
    )
    shell, python, picture = fences(page)
    assert (shell.runs, shell.output, python.runs, python.output) == (False, None, True, "1 … 3\n")
    assert (picture.runs, picture.code, python.line) == (False, "picture\n", 6)
    assert matches("1 2 3 \n", "1 … 3\n")
    assert not matches("1 2 4\n", "1 … 3\n")
