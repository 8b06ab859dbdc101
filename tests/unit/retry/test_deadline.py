"""Time that is up is an error of this library, which says what happened; never one of Python's that says nothing."""

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from trees import tree

from persist.errors import Determinate, Indeterminate
from persist.retry.deadline import Deadline
from persist.runtime import SystemRuntime

ROOT = Path(__file__).resolve().parents[3]
SOURCES = sorted(path for root in ("clients", "services", "spark") for path in (ROOT / root).rglob("*.py"))
TIMERS = {"timeout", "timeout_at", "wait_for"}
PROMISED = {
    "clients/persist/client/catalog/opened.py": "sync(timeout=) says in its text that it raises TimeoutError",
    "clients/persist/retry/deadline.py": "this is the structure",
    "clients/persist/storage/call_deadline.py": "a timer of its own, which it turns into a store's error",
    "services/persist_host/guard/admission.py": "catches everything around it, and looks whether it was the time",
}


async def test_block_that_takes_longer_ends_with_the_error_given():
    for error in (Determinate, Indeterminate):
        with pytest.raises(error, match="too long") as late:
            async with Deadline(SystemRuntime(), 0.0).within("too long", hint="repeat it", error=error, shard="s"):
                await asyncio.Event().wait()
        assert late.value.details == {"shard": "s"}
        assert late.value.hint == "repeat it"


async def test_other_errors_and_answers_of_a_block_are_its_own():
    async with Deadline(SystemRuntime(), 60.0).within("too long", hint="repeat it"):
        await asyncio.sleep(0)
    for error in (TimeoutError, KeyError, asyncio.CancelledError):
        with pytest.raises(error):
            async with Deadline(SystemRuntime(), 60.0).within("too long", hint="repeat it"):
                raise error


@pytest.mark.parametrize("root", ["clients", "services", "spark"])
def test_no_timer_lets_an_error_of_python_pass(root: str):
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] == root and str(path.relative_to(ROOT)) not in PROMISED
        for line in bare(tree(path), covered=False)
    ]
    assert not found, "use Deadline.within, or catch TimeoutError around it"


def bare(node: ast.AST, *, covered: bool) -> Iterator[int]:
    """Lines with a timer around which nothing of the same function catches TimeoutError."""
    if isinstance(node, ast.Call) and is_timer(node) and not covered:
        yield node.lineno
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        covered = False
    if isinstance(node, ast.Try):
        inner = covered or any(names(handler.type) & {"TimeoutError", "Exception"} for handler in node.handlers)
        for each in node.body:
            yield from bare(each, covered=inner)
        for other in (*node.handlers, *node.orelse, *node.finalbody):
            yield from bare(other, covered=covered)
        return
    if isinstance(node, ast.With | ast.AsyncWith):
        covered = covered or any("TimeoutError" in names(item.context_expr) for item in node.items)
    for child in ast.iter_child_nodes(node):
        yield from bare(child, covered=covered)


def is_timer(node: ast.Call) -> bool:
    at = node.func
    return (
        isinstance(at, ast.Attribute)
        and at.attr in TIMERS
        and isinstance(at.value, ast.Name)
        and at.value.id == "asyncio"
    )


def names(node: ast.AST | None) -> set[str]:
    """The names in an expression."""
    return set() if node is None else {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
