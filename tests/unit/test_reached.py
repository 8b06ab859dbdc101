"""Nothing is there for tests alone: every module is reached from a door, and every function and class is used."""

import ast
import importlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from test_tidy import ROOT, SOURCE_ROOTS, STUBS, module_name
from trees import nodes, tree

DOORS = {"persist", "persist.aio", "persist.catalog", "persist.sinks", "persist.sources", "pyspark_persist"}
"""What users import. Commands and examples are run: they are doors by their name."""

FOR_TESTS = {
    "persist.testing": "worlds, faults and servers for tests and examples; not in the wheel",
}
"""Modules, or packages, that no door leads to."""

CALLED_BY_OTHERS = {
    "pushFilters": "Spark calls it",
    "_repr_html_": "notebooks call it",
    "_create_ssl_ctx": "PyMySQL calls it",
}
"""Functions that only other people's code names."""

LOOKED_AT = {
    "tallies": "what metrics hold",
    "refusals_bytes": "a bound on memory",
}
"""Properties that show tests what the program keeps for itself. What does something is not there for tests alone."""


def modules() -> dict[str, Path]:
    paths = [path for root in SOURCE_ROOTS for path in (ROOT / root).rglob("*.py")]
    return {module_name(path): path for path in paths if STUBS not in path.parents}


MODULES = modules()


def imports(module: str) -> Iterator[str]:
    """What a module imports anywhere in it, and what it names in text: those are imported when they are needed."""
    for node in nodes(MODULES[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(":")[0]


def reached() -> set[str]:
    found: set[str] = set()
    ahead = [each for each in MODULES if each in DOORS or each.endswith("__main__") or each.startswith("examples")]
    while ahead:
        module = ahead.pop()
        if module in found:
            continue
        found.add(module)
        package = module.rpartition(".")[0]
        ahead += [each for each in (package, *imports(module)) if each in MODULES]
    return found


def excepted(module: str) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in FOR_TESTS)


def test_every_module_is_reached_from_a_door() -> None:
    missed = set(MODULES) - reached()
    assert sorted(each for each in missed if not excepted(each)) == []
    assert [each for each in FOR_TESTS if not any(one.startswith(each) for one in missed)] == [], "they have a door"


def uses(path: Path) -> Iterator[str]:
    """Names that a module uses, in text too, where it is no docstring."""
    docstrings = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
    for node in nodes(path):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from re.findall(r"\w+", node.value)


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
PLAIN_DECORATORS = ("property", "classmethod", "staticmethod", "dataclass", "cached_property", "override", "contextlib")


def is_called_by_others(node: Definition) -> bool:
    """A decorator that registers it somewhere, or a name that Python calls."""
    marks = [ast.unparse(each) for each in node.decorator_list]
    return node.name.startswith("__") or any(not mark.startswith(PLAIN_DECORATORS) for mark in marks)


def public() -> set[str]:
    """What the doors offer: whole classes of it are for users."""
    return {each for door in DOORS for each in importlib.import_module(door).__all__}


def candidates(module: ast.Module, offered: set[str], ours: set[str]) -> Iterator[tuple[str, int]]:
    """Definitions that something has to use: not those of users, nor what a foreign base class asks for."""
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((each.id, node.lineno) for each in targets if isinstance(each, ast.Name))
        if not isinstance(node, Definition) or is_called_by_others(node) or node.name in offered:
            continue
        yield node.name, node.lineno
        if isinstance(node, ast.ClassDef) and all(base_name(base) in ours for base in node.bases):
            inner = [each for each in node.body if isinstance(each, Definition) and not is_called_by_others(each)]
            yield from ((each.name, each.lineno) for each in inner)


def properties() -> set[str]:
    every = (node for path in MODULES.values() for node in nodes(path))
    functions = (node for node in every if isinstance(node, ast.FunctionDef))
    return {each.name for each in functions if any(ast.unparse(mark) == "property" for mark in each.decorator_list)}


def base_name(base: ast.expr) -> str:
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]


def test_everything_is_used_by_something_but_tests() -> None:
    used = Counter(each for path in MODULES.values() for each in uses(path))
    used.update(each for path in (ROOT / "deploy").rglob("*.py") for each in uses(path))
    ours = {node.name for path in MODULES.values() for node in nodes(path) if isinstance(node, ast.ClassDef)}
    ours |= {"Protocol", "Generic", "NamedTuple", "Exception"}
    offered = public()
    unused = {
        (each, f"{path.relative_to(ROOT)}:{line}")
        for module, path in MODULES.items()
        if not excepted(module)
        for each, line in candidates(tree(path), offered, ours)
        if not used[each] and not each.startswith("__")
    }
    known = CALLED_BY_OTHERS.keys() | LOOKED_AT.keys()
    assert sorted(where + " " + each for each, where in unused if each not in known) == []
    assert sorted(known - {each for each, _ in unused}) == [], "these are used by now"
    assert sorted(LOOKED_AT.keys() - properties()) == [], "these do something, for tests alone"
