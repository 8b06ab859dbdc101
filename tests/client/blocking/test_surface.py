"""The names of the blocking client: those recorded, those of asyncio, what they say they raise; and none is stale."""

import ast
import inspect
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client.blocking import surface
from client.support import SCHEMA, table

import persist
from persist import aio, catalog, errors, sources

ROOT = Path(__file__).parents[3]
RECORDED = Path(__file__).with_name("surface.txt")
PUBLIC = [getattr(module, name) for module in (persist, aio, catalog, sources) for name in module.__all__]


def test_blocking_names_and_signatures_are_those_recorded():
    assert list(surface.lines()) == RECORDED.read_text().splitlines()


def test_both_flavours_have_the_same_names():
    assert set(persist.__all__) - {"aio"} == set(aio.__all__)
    handles = {"Client", "connect", "embedded"} | {
        *("Diffs", "Listen", "Oracle", "ReadHandle", "SinceHandle"),
        *("Snapshot", "Table", "TableTransaction", "WriteHandle"),
    }
    for name in aio.__all__:
        assert (getattr(aio, name) is getattr(persist, name)) == (name not in handles), name


def twins() -> Iterator[tuple[type, Any]]:
    """Every blocking class, and the asyncio class that it holds."""
    for owner in surface.classes():
        held = inspect.get_annotations(owner).get("_inner")
        yield owner, aio.Client if owner is persist.Client else held


@pytest.mark.parametrize(("blocking", "held"), list(twins()), ids=lambda it: it.__name__)
def test_blocking_class_takes_and_says_what_its_asyncio_twin_does(blocking: type, held: type):
    for name, member in surface.members(blocking):
        twin = inspect.getattr_static(held, {"close": "aclose"}.get(name, name), None) or getattr(held, name, None)
        if name.startswith("_") or twin is None:
            continue  # a protocol of Python, or an attribute that instances have
        assert said(member) == said(twin), name
        if not isinstance(member, property):
            assert list(inspect.signature(member).parameters) == list(inspect.signature(twin).parameters), name


def said(member: Any) -> str:
    """A docstring, but for what is called otherwise without a loop."""
    return (inspect.getdoc(member) or "").replace("aclose", "close")


def methods(owner: type) -> Iterator[tuple[str, Any]]:
    """The public functions of ours that a class has, whatever kind of method they are."""
    for name in dir(owner):
        found = inspect.getattr_static(owner, name)
        function = getattr(found, "__func__", found)
        if not name.startswith("_") and inspect.isfunction(function) and function.__module__.startswith("persist"):
            yield name, function


def can_raise(function: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Whether it awaits, or raises an error of ours: itself, or in a function that it calls by its name."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return True
    nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))))
    raised = [node.exc for node in nodes if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    if {getattr(error.func, "id", "") for error in raised} & set(kinds(errors.PersistError)):
        return True
    names = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    called = {found for name in names if inspect.isfunction(found := function.__globals__.get(name))} - seen
    ours = [found for found in called if found.__module__.startswith("persist")]
    return any(can_raise(each, seen | called) for each in ours)


def says(function: Any) -> bool:
    """Whether a docstring says what is raised, or that nothing is."""
    return bool(re.search(r"\bRaises?\b", getattr(function, "__doc__", None) or ""))


def kinds(parent: type) -> Iterator[str]:
    """The names of an error and all that derive from it."""
    yield parent.__name__
    for each in list[Any](parent.__subclasses__()):
        yield from kinds(each)


def silent() -> Iterator[str]:
    """Public calls that may raise and do not say what. Of handles every call says it, also that it raises nothing."""
    handles = {*surface.classes(), *(held for _, held in twins()), catalog.OpenableCatalog}
    for each in dict.fromkeys([*PUBLIC, *handles]):
        if inspect.isfunction(each):
            if not says(each) and can_raise(each):
                yield each.__qualname__
        elif inspect.isclass(each) and each.__module__.startswith("persist"):
            for _, function in methods(each):
                kept = [getattr(base, function.__name__, None) for base in each.__mro__]
                promised = any(map(says, kept))
                if not promised and (each in handles or can_raise(function)):
                    yield f"{each.__module__}.{function.__qualname__}"


def test_every_public_call_that_can_raise_says_what():
    assert sorted(silent()) == []


def test_generated_code_is_what_the_asyncio_client_says(tmp_path: Path):
    tree = tmp_path / "tree"
    shutil.copytree(
        ROOT / "clients/persist", tree / "clients/persist", ignore=shutil.ignore_patterns("v1", "__pycache__")
    )
    shutil.copytree(ROOT / "deploy", tree / "deploy")
    shutil.copy(ROOT / "pyproject.toml", tree)
    assert check(tree) == (0, "")
    handle = tree / "clients/persist/client/shard/write/handle.py"
    text = handle.read_text()
    for changed in (
        text.replace("async def resolve(self, *, timeout", "async def resolve(self, *, limit"),
        text.replace('"""The outcome of this handle', '"""Every outcome of this handle'),
    ):
        assert changed != text
        handle.write_text(changed)
        code, told = check(tree)
        assert (code, "blocking/write.py differs" in told, "run `make proto`" in told) == (1, True, True)
    subprocess.run([sys.executable, str(tree / "deploy/blocking.py")], check=True)
    assert check(tree) == (0, "")
    assert "Every outcome of this handle" in (tree / "clients/persist/client/blocking/write.py").read_text()


def check(tree: Path) -> tuple[int, str]:
    command = [sys.executable, str(tree / "deploy/blocking.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_every_handle_shows_what_it_is_as_its_asyncio_twin_does(tmp_path: Path):
    where = f"file:{tmp_path}/data/blob"
    with persist.embedded(tmp_path / "data") as client:
        writer, reader = client.open(persist.ShardId.new(), schema=SCHEMA)
        writer.append(table([(1, "a", 3, 1)]), new_upper=10)
        shard, opened = writer.shard, client.catalog("test").open(1)
        listen = reader.listen(0)
        with client.transaction() as transaction:
            shown = [
                (client, f"<Client of {where}>"),
                (writer, f"<WriteHandle of {shard} upper=[10]>"),
                (reader, f"<ReadHandle of {shard} since=[0] upper="),
                (
                    reader.snapshot(3),
                    f"<Snapshot of {shard} as_of=3: id: int64, name: string, diff: int64; at most 1 rows",
                ),
                (reader.diffs(1, 4), f"<Diffs of {shard} from [1] to [4]: "),
                (listen, f"<Listen of {shard} frontier=[0]>"),
                (client.open_since("hold", shard), f"<SinceHandle hold of {shard} since=[0]>"),
                (client.table("t", schema=SCHEMA), "<Table of M in s"),
                (transaction, "<TableTransaction of M over 0 tables: collecting>"),
                (client.oracle(), "<Oracle of M>"),
                (client.minter(), f"<Minter in <Client of {where}>: 0 sources>"),
                (client.minter("127.0.0.1:1"), "<Minter at 127.0.0.1:1>"),
                (client.catalog("test"), "<Catalog over shard s"),
                (opened, f"<Catalog open as writable upper={opened.upper} over shard s"),
                (opened.transaction(), "<Transaction of a catalog: 0 objects changed>"),
            ]
        for held, text in shown:
            assert repr(held).startswith(text)
            assert repr(held) == repr(held._held)
    assert repr(client) == f"<Client of {where} closed>"
    assert repr(listen) == f"<Listen of {shard} frontier=[0] closed>"
