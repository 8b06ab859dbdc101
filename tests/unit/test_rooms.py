"""Rooms can be overlooked, and none needs what needs it: imports within functions and for types count as any other."""

from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter

import grimp
import pytest
from test_tidy import OURS, SOURCE_ROOTS, handwritten, name, report

MODULES_MAX = 15
"""In one folder, beside what it is called after."""

TIED = {
    ("persist.client.blocking", "bridge", "catalog"): "the stash's door is by hand, and returns what is generated",
    (
        "persist.core",
        "catalog",
        "time",
    ): "holds name kinds of objects, and the catalog keeps holds",
    ("persist.core", "data", "shard"): "statistics of a part are what the state keeps of its rows",
}
"""Rooms side by side of which each needs something of the other, in different modules; and what it is."""

GRAPH = grimp.build_graph(*sorted(OURS), exclude_type_checking_imports=False, cache_dir=None)
OURS_ONLY = {module: GRAPH.find_modules_directly_imported_by(module) for module in GRAPH.modules}


def a_circle(graph: dict[str, set[str]]) -> list[str]:
    """The members of one, in the order in which each is needed by the next; empty: there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [*error.args[1]]
    return []


def siblings(package: str) -> dict[str, set[str]]:
    """Which children of a package import, somewhere inside, which others."""
    found: dict[str, set[str]] = defaultdict(set)
    inside = f"{package}."
    for module, imported in OURS_ONLY.items():
        if module.startswith(inside):
            child = module.removeprefix(inside).partition(".")[0]
            named = {each.removeprefix(inside).partition(".")[0] for each in imported if each.startswith(inside)}
            found[child] |= named - {child}
    return found


def without(graph: dict[str, set[str]], package: str) -> dict[str, set[str]]:
    """The graph without the ties of this package that are known."""
    known = [{one, other} for parent, one, other in TIED if parent == package]
    return {child: {each for each in named if {child, each} not in known} for child, named in graph.items()}


def test_no_modules_import_each_other() -> None:
    assert a_circle(OURS_ONLY) == []


@pytest.mark.parametrize("package", sorted({module.rpartition(".")[0] for module in GRAPH.modules} - {""}))
def test_no_rooms_side_by_side_need_each_other(package: str) -> None:
    assert a_circle(without(siblings(package), package)) == []


@pytest.mark.parametrize(("package", "one", "other"), TIED)
def test_ties_that_are_known_are_there(package: str, one: str, other: str) -> None:
    graph = siblings(package)
    assert other in graph[one]
    assert one in graph[other]


def test_a_circle_is_seen() -> None:
    assert a_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) in (["b", "c", "b"], ["c", "b", "c"])
    assert a_circle({"a": {"b"}, "b": {"c"}}) == []


def test_folders_can_be_overlooked() -> None:
    modules = Counter(path.parent for path in handwritten(*SOURCE_ROOTS, "tests") if path.name != "__init__.py")
    report(
        [
            f"{name(each)} has {count} modules, at most {MODULES_MAX}"
            for each, count in modules.items()
            if count > MODULES_MAX
        ]
    )
