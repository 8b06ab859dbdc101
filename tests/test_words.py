"""Prose says which process does what: another one, the leader, a reader; returned, reported, released.

Held are pages for users, comments of protos, and docstrings, comments and messages of all our modules. Code in a text
stands between backquotes, and is no prose. A name that users import has one meaning, wherever it is imported from; the
name of a class has one in each layer, whether it is defined there or imported.
"""

import ast
import io
import itertools
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from test_tidy import OURS, ROOT, SOURCE_ROOTS, handwritten, name, report
from trees import nodes, text, tree

WORDS = "tells?|telling|told|hears?|heard|hearing|nobody|somebody|someone|anybody|everybody|whoever"
VAGUE = re.compile(
    rf"\b(?:{WORDS}|let(?:s|ting)? (?:\w+ ){{0,4}}go(?! (?:on|back|by|through|from)\b))\b", re.IGNORECASE
)
ANYWHERE = re.compile(rf"(?:\b|\\[a-z])(?:{WORDS}|let(?:s|ting)?)\b", re.IGNORECASE)
"""In a source, in which a line ends as it does or by an escape; what is vague has one of these."""
CODE = re.compile(r"``[^`]*``|`[^`]*`")
QUOTED = "to tell apart different sources"
"""Words of the design, which tests quote."""
PACKAGES = ("persist", "persist.catalog", "persist.sinks", "persist.sources", "persist_ingest", "pyspark_persist")

LAYERS_OF = {"persist": 2, "persist.client": 3}
"""How many parts of a module's name are its layer, where that is not its package: the import contracts divide these."""


def vague(said: str) -> str | None:
    """The first word of a text that does not say who does what."""
    prose = CODE.sub("", " ".join(said.split())).replace(QUOTED, "")
    found = VAGUE.search(prose)
    return found.group() if found else None


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings and other texts with a space in them, and runs of comments; with the line that each begins at.

    All of them of a module that may say something vague, and none of one that has no word of it anywhere.
    """
    if not ANYWHERE.search(text(path)):
        return
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    if not any(ANYWHERE.search(line.partition("#")[2]) for line in text(path).splitlines()):
        return  # Dividing a module into tokens takes ten times as long.
    tokens = tokenize.generate_tokens(io.StringIO(text(path)).readline)
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


def test_a_word_is_found_in_texts_and_comments_of_a_module(tmp_path: Path) -> None:
    for at, source in enumerate(
        (
            'SAID = "It lets it\\ngo."\n',
            'def f() -> None:\n    """It was\n    told."""\n',
            "# It lets what it held\n# go.\n",
            'x = "#"  # It was told.\n',
            'x = "It was\\ntold."  # It was said.\n',
        )
    ):
        path = tmp_path / f"m{at}.py"
        path.write_text(source)
        assert [each for _, each in texts(path) if vague(each)], source
    clean = tmp_path / "clean.py"
    clean.write_text("told = {}\nlet_go = told  # Names say less than words.\n")
    assert [each for _, each in texts(clean) if vague(each)] == []


@pytest.mark.parametrize("root", [*SOURCE_ROOTS, "tests"])
def test_modules_say_who_does_what(root: str) -> None:
    paths = [path for path in handwritten(root) if path != Path(__file__)]
    found = ((path, line, vague(said)) for path in paths for line, said in texts(path))
    report([f"{name(path)}:{line}: {word}" for path, line, word in found if word])


def test_protos_say_who_does_what() -> None:
    problems = []
    for path in sorted((ROOT / "protos").rglob("*.proto")):
        lines = enumerate(path.read_text().splitlines(), 1)
        comments = ((number, line.partition("//")[2]) for number, line in lines if "//" in line)
        problems += [f"{name(path)}:{line}: {word}" for line, said in joined(comments) if (word := vague(said))]
    report(problems)


def test_pages_say_who_does_what() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    report([f"{name(page)}: {word}" for page in pages if (word := vague(page.read_text()))])


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(PACKAGES, 2)))
def test_a_name_that_users_import_means_one_thing(one: str, other: str) -> None:
    here, there = pytest.importorskip(one), pytest.importorskip(other)
    both = set(here.__all__) & set(there.__all__)
    assert not {each for each in both if getattr(here, each) is not getattr(there, each)}


def module_paths() -> dict[str, Path]:
    """Where our modules are, by the names they are imported by."""
    found = ((path, root) for root in SOURCE_ROOTS for path in handwritten(root))
    return {module_name(path, ROOT / root): path for path, root in found}


@cache
def modules() -> dict[str, Path]:
    """Where our modules are, by the names they are imported by; as they are while tests run."""
    return module_paths()


def module_name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def layer_of(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[: LAYERS_OF.get(".".join(parts[:2]), LAYERS_OF.get(parts[0], 1))])


LAYERS = sorted({layer_of(module) for module in module_paths()})


@cache
def imported(module: str) -> dict[str, tuple[str, str]]:
    """The names that a module imports from others of ours: the other module, and what it is called there."""
    froms = (node for node in nodes(modules()[module]) if isinstance(node, ast.ImportFrom) and node.module)
    return {each.asname or each.name: (str(node.module), each.name) for node in froms for each in node.names}


@cache
def defined(module: str) -> frozenset[str]:
    """The classes of a module that others can import, and those that cannot be."""
    body = tree(modules()[module]).body
    # What only one Python or only type checkers see is a class of the module as well.
    blocks = (node for node in body if isinstance(node, ast.If | ast.Try))
    inside = (node for block in blocks for node in ast.walk(block))
    return frozenset(node.name for node in itertools.chain(body, inside) if isinstance(node, ast.ClassDef))


def definition(module: str, class_name: str) -> str | None:
    """The module of ours that defines a class which this one defines or imports."""
    if module not in modules():
        return None
    if class_name in defined(module):
        return module
    from_ = imported(module).get(class_name)
    # A package imports a module of its own from itself: that is no class.
    return definition(*from_) if from_ and from_ != (module, class_name) else None


def meanings(layer: str) -> dict[str, set[str]]:
    """The modules that define the classes of a name, of those that a layer defines or imports."""
    found = defaultdict[str, set[str]](set)
    for module in modules():
        if layer_of(module) == layer:
            for class_name in {*defined(module), *imported(module)}:
                if where := definition(module, class_name):
                    found[class_name].add(where)
    return found


def test_layers_are_those_of_the_import_contracts() -> None:
    assert set(LAYERS) >= OURS - {"persist"} | {"persist.core", "persist.wire", "persist.client.shard"}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_class_name_means_one_thing_in_its_layer(layer: str) -> None:
    unclear = {each: where for each, where in meanings(layer).items() if len(where) > 1}
    report([f"{layer}: {each} is a class of {', '.join(sorted(where))}" for each, where in sorted(unclear.items())])
