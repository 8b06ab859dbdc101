"""A call with a time limit gives it to all that it waits for: none of its parts waits by the limit of the settings."""

import ast
from collections.abc import Iterator
from pathlib import Path

from test_tidy import ROOT, handwritten, name
from trees import nodes

TIMES = {"timeout", "deadline"}
TIMED_FOLDERS = ("collections", "sql")
WITHOUT = {
    "expire": "a lease that runs out by itself, for RELEASE_SECONDS at most",
    "gather": "what it waits for is judged by itself",
    "ended": "tasks that were cancelled",
    "_given": "computed in memory",
    "_read": "the names of items, in memory but for the first time",
}
"""Calls that need none, by their name, and why."""
WITHOUT_HERE = {
    ("leading", "leader.execute"): "this process leads: what it waits for is its own",
}


def awaited(path: Path) -> Iterator[tuple[ast.AsyncFunctionDef, ast.Call, bool]]:
    """What a function with a time limit waits for; and whether that is within a block that ends with it."""
    for function in nodes(path):
        if isinstance(function, ast.AsyncFunctionDef) and TIMES & parameters(function):
            limited = {
                each
                for block in ast.walk(function)
                if isinstance(block, ast.AsyncWith) and any(is_timed(item.context_expr) for item in block.items)
                for each in ast.walk(block)
            }
            for each in ast.walk(function):
                if isinstance(each, ast.Await) and isinstance(each.value, ast.Call):
                    yield function, each.value, each in limited


def parameters(function: ast.AsyncFunctionDef) -> set[str]:
    return {each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}


def is_timed(node: ast.AST) -> bool:
    """Whether a time limit is in an expression."""
    return any(
        (
            isinstance(each, ast.Name)
            and ("timeout" in each.id or "deadline" in each.id or each.id in ("left", "shown", "patience"))
        )
        or (isinstance(each, ast.Attribute) and ("timeout" in each.attr or "deadline" in each.attr))
        for each in ast.walk(node)
    )


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)


def test_each_call_with_a_time_limit_passes_it_on() -> None:
    paths = handwritten("clients/persist")
    timed = {
        each.name
        for path in paths
        for each in nodes(path)
        if isinstance(each, ast.AsyncFunctionDef) and TIMES & parameters(each)
    }
    found = []
    for path in paths:
        if path.relative_to(ROOT / "clients/persist").parts[:2] not in {("client", each) for each in TIMED_FOLDERS}:
            continue
        for function, call, is_limited in awaited(path):
            is_known = called(call) in WITHOUT or (path.stem, ast.unparse(call.func)) in WITHOUT_HERE
            passes = any(is_timed(each) for each in (*call.args, *(each.value for each in call.keywords)))
            if called(call) in timed and not (is_limited or is_known or passes):
                found.append(f"{name(path)}:{call.lineno}: {function.name} waits for {ast.unparse(call)[:80]}")
    assert found == []
