"""Prose says which process does what: another one, the leader, a reader; returned, reported, released.

Held are pages for users, comments of protos, and docstrings, comments and messages of all our modules. Code in a text
stands between backquotes, and is no prose. A name that users import has one meaning, wherever it is imported from.
"""

import ast
import io
import itertools
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_tidy import ROOT, SOURCE_ROOTS, handwritten, name, report

VAGUE = re.compile(
    r"\b(?:tells?|telling|told|hears?|heard|hearing|nobody|somebody|someone|anybody|everybody|whoever"
    r"|let(?:s|ting)? (?:\w+ ){0,4}go(?! (?:on|back|by|through|from)\b))\b",
    re.IGNORECASE,
)
CODE = re.compile(r"``[^`]*``|`[^`]*`")
QUOTED = "to tell apart different sources"
"""Words of the design, which tests quote."""
PACKAGES = ("persist", "persist.catalog", "persist.sinks", "persist.sources", "persist_ingest", "pyspark_persist")


def vague(text: str) -> str | None:
    """The first word of a text that does not say who does what."""
    prose = CODE.sub("", " ".join(text.split())).replace(QUOTED, "")
    found = VAGUE.search(prose)
    return found.group() if found else None


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Every docstring and other text with a space in it, and every run of comments; with the line it begins at."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    yield from joined((each.start[0], each.string) for each in tokens if each.type == tokenize.COMMENT)


def joined(comments: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Comments on lines that follow each other are one text."""
    begin, end, words = 0, 0, list[str]()
    for line, comment in comments:
        if line != end + 1:
            yield begin, " ".join(words)
            begin, words = line, []
        end = line
        words.append(comment.lstrip("#/ "))
    yield begin, " ".join(words)


def test_a_word_is_found_across_lines_and_not_in_code() -> None:
    assert vague("It lets what it held\n    go.") == "lets what it held go"
    assert vague("It lets them go on. `told` is a name, and so is ``whoever``.") is None


@pytest.mark.parametrize("root", [*SOURCE_ROOTS, "tests"])
def test_modules_say_who_does_what(root: str) -> None:
    paths = [path for path in handwritten(root) if path != Path(__file__)]
    found = ((path, line, vague(text)) for path in paths for line, text in texts(path))
    report([f"{name(path)}:{line}: {word}" for path, line, word in found if word])


def test_protos_say_who_does_what() -> None:
    problems = []
    for path in sorted((ROOT / "protos").rglob("*.proto")):
        lines = enumerate(path.read_text().splitlines(), 1)
        comments = ((number, line.partition("//")[2]) for number, line in lines if "//" in line)
        problems += [f"{name(path)}:{line}: {word}" for line, text in joined(comments) if (word := vague(text))]
    report(problems)


def test_pages_say_who_does_what() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    report([f"{name(page)}: {word}" for page in pages if (word := vague(page.read_text()))])


@pytest.mark.parametrize(("one", "other"), itertools.combinations(PACKAGES, 2))
def test_a_name_that_users_import_means_one_thing(one: str, other: str) -> None:
    here, there = pytest.importorskip(one), pytest.importorskip(other)
    both = set(here.__all__) & set(there.__all__)
    assert not {each for each in both if getattr(here, each) is not getattr(there, each)}
