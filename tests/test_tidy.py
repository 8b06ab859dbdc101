"""The house rules that no linter knows: sizes, names, words, doors. Each failure says what to change."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from trees import nodes, text, tree

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = ("clients", "services", "spark")
OURS = {path.parent.name for root in SOURCE_ROOTS for path in (ROOT / root).glob("*/__init__.py")}
STUBS = ROOT / "clients/persist/v1"

MODULE_LINES_MAX = 600
TEST_LINES_MAX = 800
FUNCTION_LINES_MAX = 60
HANDLER_LINES_MAX = 25

VAGUE_NAMES = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
# Time and entropy come from persist.runtime, so that simulations can bring their own.
DOORS = {"random", "secrets", "time", "uuid"}
CLOCK_CALLS = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "asyncio.sleep", "os.urandom"}
CLOCK_WORDS = {call.rpartition(".")[2] for call in CLOCK_CALLS}
# Assembled, so that this file does not hold what it looks for.
BANNED = {
    "a path of one machine": re.compile(
        "/(?:" + "|".join(["work", "root", "home/[a-z]", "Users/[a-zA-Z]", "opt/pypi"]) + r")(?:/|\b)"
    ),
    "a registry's host": re.compile(
        "|".join([r"pypi\.org", r"pythonhosted\.org", r"npmjs\.(?:com|org)", r"registry\.npm", r"buf\.build/[a-z]"])
    ),
    "an open end without an issue": re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|HA" + r"CK)\b(?!\(#\d+\))"),
    "how work is organised": re.compile(r"\bissue \d+\b|\bsprint\b|\bmilestone\b", re.IGNORECASE),
}
# Where a pattern above is the subject itself.
ALLOWED_WORDS = {"tests/test_tidy.py"}
TEXT_SUFFIXES = {".cfg", ".ini", ".md", ".proto", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml", ""}


def committed() -> list[Path]:
    """Every file git knows or would add, stubs included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


def handwritten(*roots: str) -> list[Path]:
    """Our Python modules below the given folders, generated stubs excluded."""
    files = (path for root in roots for path in (ROOT / root).rglob("*.py"))
    return sorted(path for path in files if STUBS not in path.parents and "__pycache__" not in path.parts)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def report(problems: list[str]) -> None:
    assert not problems, "\n" + "\n".join(problems)


def functions(walked: Iterable[ast.AST]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in walked:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body without its docstring: a man page does not make a function long."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_modules_fit_one_sitting() -> None:
    limits = [(MODULE_LINES_MAX, handwritten(*SOURCE_ROOTS)), (TEST_LINES_MAX, handwritten("tests"))]
    counted = [(path, limit, len(text(path).splitlines())) for limit, paths in limits for path in paths]
    report([f"{name(path)}: {count} lines, at most {limit}" for path, limit, count in counted if count > limit])


def test_functions_are_short() -> None:
    report(
        [
            f"{name(path)}:{node.lineno}: {node.name} has {lines_of(node)} lines, at most {FUNCTION_LINES_MAX}"
            for path in handwritten(*SOURCE_ROOTS)
            for node in functions(nodes(path))
            if lines_of(node) > FUNCTION_LINES_MAX
        ]
    )


def test_grpc_handlers_are_thin() -> None:
    handlers = [
        (path, node)
        for path in handwritten("services")
        for owner in nodes(path)
        if isinstance(owner, ast.ClassDef) and any("Servicer" in ast.unparse(parent) for parent in owner.bases)
        for node in owner.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:1].isupper()
    ]
    report(
        [
            f"{name(path)}:{node.lineno}: {node.name} has {lines_of(node)} lines, at most {HANDLER_LINES_MAX}"
            for path, node in handlers
            if lines_of(node) > HANDLER_LINES_MAX
        ]
    )


def public_definitions(module: ast.Module) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Public top-level functions and classes, and the public methods of public classes."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in module.body:
        if not isinstance(node, kinds) or node.name.startswith("_"):
            continue
        yield node
        if isinstance(node, ast.ClassDef):
            yield from (inner for inner in node.body if isinstance(inner, kinds) and not inner.name.startswith("_"))


def implements_elsewhere(node: ast.AST, owners: set[str], documented: set[str]) -> bool:
    """A method whose promise stands in a port: the same name is documented in a Protocol or base class."""
    return (
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in documented and node.name not in owners
    )


def documented_methods() -> set[str]:
    """Names of methods that some class documents: implementations of a port need not repeat it."""
    return {
        node.name
        for path in handwritten(*SOURCE_ROOTS)
        for owner in nodes(path)
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node)
    }


def test_public_names_say_what_they_promise() -> None:
    documented = documented_methods()
    missing = []
    for path in handwritten(*SOURCE_ROOTS):
        module = tree(path)
        if not ast.get_docstring(module) and module.body:
            missing.append(f"{name(path)}: the module has no docstring")
        top = {node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        for node in public_definitions(module):
            if not ast.get_docstring(node) and not implements_elsewhere(node, top, documented):
                missing.append(f"{name(path)}:{node.lineno}: {node.name} has no docstring")
    report(missing)


def test_modules_have_telling_names() -> None:
    paths = handwritten(*SOURCE_ROOTS, "tests")
    report(
        [f"{name(path)}: say what is inside" for path in paths if VAGUE_NAMES & {path.stem, *path.parent.parts[-1:]}]
    )


@pytest.mark.parametrize("what", BANNED, ids=lambda what: what.replace(" ", "-"))
def test_no_file_mentions(what: str) -> None:
    problems = []
    for path in committed():
        if path.suffix not in TEXT_SUFFIXES or name(path) in ALLOWED_WORDS or STUBS in path.parents:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if found := BANNED[what].search(line):
                problems.append(f"{name(path)}:{number}: {what}: {found.group()}")
    report(problems)


def imported(walked: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    for node in walked:
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0], node.lineno


def test_time_and_entropy_come_through_the_runtime() -> None:
    problems = []
    for path in handwritten(*SOURCE_ROOTS):
        if name(path) == "clients/persist/runtime.py" or "persist/testing/" in name(path):
            continue
        walked = nodes(path)
        problems += [f"{name(path)}:{line}: imports {door}" for door, line in imported(walked) if door in DOORS]
        problems += [
            f"{name(path)}:{node.lineno}: calls {ast.unparse(node.func)}"
            for node in walked
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            # What a call is named like costs more to say than to look at its last word.
            if node.func.attr in CLOCK_WORDS and ".".join(ast.unparse(node.func).split(".")[-2:]) in CLOCK_CALLS
        ]
    report(problems)


NAMES = "clients/persist/core/names.py"


def derived(walked: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Calls that make a shard's id of words, and their line, but those of words that nothing is named by: persist's."""
    for node in walked:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "named":
            continue
        if ast.unparse(node.func).endswith("ShardId.named"):
            word = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else ""
            if not str(word).startswith("persist") or word == "persist.table":
                yield ast.unparse(node), node.lineno


def test_only_one_module_derives_an_id_from_a_name() -> None:
    paths = [path for path in handwritten(*SOURCE_ROOTS) if name(path) != NAMES]
    report([f"{name(path)}:{line}: {call}; ask {NAMES}" for path in paths for call, line in derived(nodes(path))])
    assert len(list(derived(nodes(ROOT / NAMES)))) == 3


TAKES_WHAT_INT_REFUSES = re.compile(r"\.is(?:digit|numeric)\(")


def test_digits_are_those_that_int_takes() -> None:
    report(
        [
            f"{name(path)}:{number}: takes \N{SUPERSCRIPT TWO}, which int refuses; ask persist.digits"
            for path in handwritten(*SOURCE_ROOTS)
            for number, line in enumerate(text(path).splitlines(), 1)
            if TAKES_WHAT_INT_REFUSES.search(line)
        ]
    )


READS_ENVIRONMENT = re.compile(r"\bos\.(?:environ|getenv)\b|\bsys\.argv\b")
# The Spark package runs inside processes that Spark started: the environment is Spark's interface there.
MAY_READ_ENVIRONMENT = {
    "clients/persist/settings.py",
    "clients/persist/testing/servers.py",
    "spark/examples/server.py",
    "spark/pyspark_persist/session.py",
    "clients/persist/client/sql/apart/queries.py",  # hands on where libraries are, and nothing else
    "clients/persist/client/remote/__init__.py",  # gRPC's own variable, which gRPC reads itself
    "clients/persist_ingest/location.py",
    "clients/persist_ingest/sources/secret.py",  # variables that an option names
}


def test_environment_and_arguments_are_read_at_the_edge() -> None:
    paths = (path for path in handwritten(*SOURCE_ROOTS) if path.name != "__main__.py")
    report(
        [
            f"{name(path)}:{number}: reads {found.group()}"
            for path in paths
            if name(path) not in MAY_READ_ENVIRONMENT
            for number, line in enumerate(text(path).splitlines(), 1)
            if (found := READS_ENVIRONMENT.search(line))
        ]
    )


def modules_with_all() -> list[Path]:
    assigns = "__all__"
    return [path for path in handwritten(*SOURCE_ROOTS) if re.search(rf"^{assigns}\b", text(path), re.MULTILINE)]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def defined(module: ast.Module) -> set[str]:
    """Public names a module binds at its top: re-exports, definitions, assignments; imported modules excluded."""
    found: set[str] = set()
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return {each for each in found if not each.startswith("_")}


@pytest.mark.parametrize("path", modules_with_all(), ids=name)
def test_all_is_sorted_and_real(path: Path) -> None:
    module = importlib.import_module(module_name(path))
    listed = list(module.__all__)
    assert listed == sorted(set(listed), key=sort_key), "__all__ is not sorted"
    absent = [each for each in listed if not hasattr(module, each)]
    assert not absent, f"__all__ lists what is not there: {absent}"
    if path.name == "__init__.py":
        hidden = {each for each in defined(tree(path)) if not isinstance_module(module, each)} - set(listed)
        assert not hidden, f"re-exported but not in __all__: {sorted(hidden)}"


def sort_key(each: str) -> tuple[int, str]:
    """The order ruff's RUF022 wants: CONSTANTS, Classes, functions."""
    return (0 if each.isupper() else 1 if each[:1].isupper() else 2, each)


def isinstance_module(module: object, attribute: str) -> bool:
    return type(getattr(module, attribute, None)).__name__ in {"module", "_Feature", "NoneType"}


def test_import_contracts_hold() -> None:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
        "--no-cache",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_every_package_is_under_contract() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert set(configuration["root_packages"]) == OURS
