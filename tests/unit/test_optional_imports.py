"""What an extra brings is imported where ``extra`` says how to install it, so that what is missing is one sentence.

Over the syntax of all modules: what an import needs is what it runs, module by module, but for what stands under
``with extra(…)``, what a type checker alone imports, and what goes on without (``except ImportError``). A module may
need packages at its top, if all that import it say so; within a function nothing may be needed that is not there then.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import trees

ROOT = Path(__file__).resolve().parents[2]
PLACES = {
    "boto3": ("boto3", "botocore"),
    "googleapis-common-protos": ("google.rpc", "google.api"),
    "grpcio": ("grpc",),
    "grpcio-health-checking": ("grpc_health",),
    "grpcio-reflection": ("grpc_reflection",),
    "opentelemetry-exporter-otlp-proto-grpc": ("opentelemetry",),
    "opentelemetry-sdk": ("opentelemetry",),
}
"""What is imported of distributions that are called otherwise."""
NOT_OF_USERS = {"all", "bench", "dev", "docs"}
BEGINNINGS = {
    "persist.client.sql.apart.program": "begun by persist.client.sql.apart.queries, which needs the same",
    "persist_cli": "persist_cli.__main__ looks for the extra cli first",
}
"""Modules that no other imports, or whose packages are there for another reason than an import."""


class Import(NamedTuple):
    name: str
    guarded: frozenset[str]
    is_sure: bool
    """What is guarded is there afterwards: else an error was raised."""
    within: bool
    """In a function."""
    line: int


@cache
def packages_of(extra: str) -> frozenset[str]:
    """What the packages of an extra are imported as."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found: set[str] = set()
    for wanted in project[extra]:
        if ours := re.match(r"persist-tvc\[(.*?)\]", wanted):
            found.update(*(packages_of(each) for each in ours[1].split(",")))
        else:
            name = re.split(r"[^A-Za-z0-9_-]", wanted)[0]
            found.update(PLACES.get(name, (name.replace("-", "_"),)))
    return frozenset(found)


@cache
def optional() -> frozenset[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return frozenset[str]().union(*(packages_of(each) for each in project.keys() - NOT_OF_USERS))


@cache
def package_in(name: str) -> frozenset[str]:
    return frozenset(each for each in optional() if f"{name}.".startswith(f"{each}."))


def modules() -> dict[str, Path]:
    found = {}
    for root in ("clients", "services", "spark"):
        for path in (ROOT / root).rglob("*.py"):
            parts = path.relative_to(ROOT / root).with_suffix("").parts
            # Generated stubs need gRPC, and are imported by clients and services alone.
            if "testing" in parts or parts[0] == "examples" or parts[-1].endswith("_pb2_grpc"):
                continue
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str, tree: ast.Module, *, is_package: bool, known: frozenset[str]) -> Iterator[Import]:
    package = module if is_package else module.rpartition(".")[0]

    def names(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
            return
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        for each in node.names:
            full = f"{base}.{each.name}"
            yield full if full in known or package_in(full) > package_in(base) else base

    def visit(node: ast.AST, guarded: frozenset[str], is_sure: bool, within: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (Import(name, guarded, is_sure, within, node.lineno) for name in names(node))
            return
        for part, value in ast.iter_fields(node):
            inside = (guarded, is_sure, within)
            if part == "body":
                if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                    continue
                if isinstance(node, ast.With) and (more := _guard(node)):
                    inside = (guarded | more, True, within)
                elif isinstance(node, ast.Try) and any(_is_import_error(each) for each in node.handlers):
                    inside = (optional(), False, within)
                elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    inside = (guarded, is_sure, True)
            for each in value if isinstance(value, list) else [value]:
                # Imports stand in statements alone.
                if isinstance(each, ast.stmt | ast.ExceptHandler | ast.match_case):
                    yield from visit(each, *inside)

    return visit(tree, frozenset(), True, False)


def _guard(node: ast.With) -> frozenset[str]:
    calls = [each.context_expr for each in node.items if isinstance(each.context_expr, ast.Call)]
    named = [each.args[0] for each in calls if ast.unparse(each.func) in ("extra", "extras.extra")]
    return frozenset[str]().union(
        *(packages_of(str(each.value)) if isinstance(each, ast.Constant) else optional() for each in named)
    )


def _is_import_error(handler: ast.ExceptHandler) -> bool:
    return handler.type is not None and "ImportError" in ast.unparse(handler.type).replace("ModuleNotFound", "Import")


def lacking(trees_of: Mapping[str, tuple[ast.Module, bool]]) -> list[str]:
    """Imports of modules (``True``: packages) that may fail with more than a sentence."""
    known = frozenset(trees_of)
    read = {
        name: list(imports(name, tree, is_package=is_package, known=known))
        for name, (tree, is_package) in trees_of.items()
    }

    def run(name: str) -> list[str]:
        """Those of our modules that an import of this name runs."""
        parts = name.split(".")
        return [each for end in range(1, len(parts) + 1) if (each := ".".join(parts[:end])) in known]

    # What is needed in all, guarded or not: what a guard that succeeded has found.
    whole: dict[str, frozenset[str]] = dict.fromkeys(known, frozenset())
    needed, sure = dict(whole), dict(whole)

    def of(name: str, kept: Mapping[str, frozenset[str]]) -> frozenset[str]:
        return package_in(name).union(*(kept[each] for each in run(name)))

    def settle(kept: dict[str, frozenset[str]], step: "dict[str, list[Import]]", *, is_whole: bool) -> None:
        changed = True
        while changed:
            changed = False
            for name, found in step.items():
                more = kept[name].union(
                    *(
                        of(each.name, kept) - (frozenset() if is_whole else each.guarded | sure[name])
                        for each in found
                        if not each.within and (each.is_sure or not is_whole)
                    )
                )
                if more != kept[name]:
                    kept[name], changed = more, True

    settle(whole, read, is_whole=True)
    for name in sorted(known):
        sure[name] = frozenset[str]().union(*(whole[each] for each in run(name)[:-1]))
        if name.partition(".")[0] == "persist_cli":
            sure[name] |= packages_of("cli")
    settle(needed, read, is_whole=False)
    found = [
        f"{name}:{each.line} {each.name} needs {', '.join(sorted(left))}"
        for name in sorted(known)
        for each in read[name]
        if each.within and (left := of(each.name, needed) - each.guarded - sure[name] - whole[name])
    ]
    imported = {every for name in known for each in read[name] for every in run(each.name) if every != name}
    return found + [
        f"{name} needs {', '.join(sorted(needed[name]))}, and nothing imports it"
        for name in sorted(known)
        if needed[name] and name not in imported and name not in BEGINNINGS
    ]


def test_every_import_of_an_optional_package_says_how_to_install_it() -> None:
    found = {name: (trees.tree(path), path.name == "__init__.py") for name, path in modules().items()}
    assert lacking(found) == []


def test_an_import_that_says_nothing_is_found() -> None:
    texts = {
        "persist": "",
        "persist.a": "import sqlglot",
        "persist.b": "def f():\n    from persist.a import x",
        "persist.c": "from persist.extras import extra\nwith extra('sql'):\n    from persist.a import x",
        "persist.d": "from persist.extras import extra\nwith extra('redis'):\n    import duckdb",
        "persist.e": "try:\n    import redis\nexcept ModuleNotFoundError:\n    redis = None",
        "persist.f": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import redis",
        "persist.g": "import persist.d\ndef f():\n    import duckdb",
        "persist.h": "def f():\n    import pandas as pd",
    }
    found = lacking({name: (ast.parse(text), name == "persist") for name, text in texts.items()})
    assert [each.partition(" ")[0] for each in found] == ["persist.b:2", "persist.h:2", "persist.g"]
