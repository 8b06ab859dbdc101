"""How much of the code a type checker sees: signatures that hold Any, and suppressions without a reason."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from test_tidy import SOURCE_ROOTS, functions, handwritten, name, report
from trees import nodes, text, tree

ANY_MAX = 149
"""It may fall. Who needs one more finds a type, or a name in ``persist.typed`` that says why there is none."""
DYNAMIC_MAX = 416
"""Signatures with one of those names: dynamic by design, and to be distinguished from oversights."""
DYNAMIC = Path(__file__).resolve().parents[2] / "clients/persist/typed.py"


def annotations(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    """Of the parameters and the return."""
    given = node.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    found = [*(argument.annotation for argument in every if argument is not None), node.returns]
    yield from (each for each in found if each is not None)


def names_in(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The words of its annotations, those in quotes too, but not the texts that Annotated holds."""
    return {
        word
        for annotation in annotations(node)
        for word in re.findall(r"\w+", re.sub(r"\(.*\)", "", ast.unparse(annotation), flags=re.DOTALL))
    }


@cache
def signatures() -> list[tuple[str, set[str]]]:
    """Of every function, where it is and the names it holds. Not when this is imported, which every process does."""
    found = []
    for path in handwritten(*SOURCE_ROOTS):
        others = other_names(tree(path))
        found += [
            (f"{name(path)}:{node.lineno} {node.name}", names_in(node) - others) for node in functions(nodes(path))
        ]
    return found


def other_names(module: ast.Module) -> set[str]:
    """Classes of a module's own, or of others than ``persist.typed``, that are called as something there is."""
    return {node.name for node in module.body if isinstance(node, ast.ClassDef)} | {
        each.asname or each.name
        for node in module.body
        if isinstance(node, ast.ImportFrom) and node.module not in ("persist.typed", "typing")
        for each in node.names
    }


def holding(wanted: set[str]) -> list[str]:
    """Every signature that holds one of these names."""
    return [where for where, names in signatures() if wanted & names]


def test_signatures_that_hold_any_become_fewer() -> None:
    found = holding({"Any"})
    assert len(found) <= ANY_MAX, "\n".join([f"{len(found)} signatures hold Any, at most {ANY_MAX}", *found])


def test_names_for_what_is_dynamic_do_not_spread() -> None:
    dynamic = {
        node.target.id
        for node in tree(DYNAMIC).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and "Any" in ast.unparse(node)
    }
    found = holding(dynamic)
    assert dynamic
    assert len(found) <= DYNAMIC_MAX, "\n".join([f"{len(found)} signatures, at most {DYNAMIC_MAX}", *found])


def test_the_count_sees_every_way_to_write_it() -> None:
    source = 'def f(a: "list[Any]", *b: typing.Any, **c: int) -> None: ...\ndef g(a: int) -> dict[str, Any]: ...\n'
    module = ast.parse(source + "def h(a: object) -> 'str': ...\n")
    assert [node.name for node in functions(ast.walk(module)) if "Any" in names_in(node)] == ["f", "g"]


IGNORES = re.compile(r"# type: ignore(?P<codes>\[[\w, -]+\])?(?P<reason>  # .+)?")


def test_every_type_ignore_says_which_and_why() -> None:
    report(
        [
            f"{name(path)}:{number}: {found.group()}"
            for path in handwritten(*SOURCE_ROOTS)
            for number, line in enumerate(text(path).splitlines(), 1)
            if (found := IGNORES.search(line)) and not (found["codes"] and found["reason"])
        ]
    )
