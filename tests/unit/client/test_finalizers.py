"""A generator ends in the thread that drops it, that of the loop too: its end waits for nothing that the loop does."""

import ast
from pathlib import Path

import trees

ROOT = Path(__file__).resolve().parents[3]
WAITS = {"run", "_run"}


def waiting(tree: ast.Module) -> list[int]:
    """Lines at which the end of a generator makes a blocking call, itself or by a function of its module."""
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    makes = {each.name for each in functions if not _is_generator(each) and any(map(_is_wait, _calls(each)))}
    found = []
    for each in filter(_is_generator, functions):
        for block in (block for block in ast.walk(each) if isinstance(block, ast.Try)):
            for call in [call for statement in (*block.finalbody, *block.handlers) for call in _calls(statement)]:
                if _is_wait(call) or (isinstance(call.func, ast.Name) and call.func.id in makes):
                    found.append(call.lineno)
    return found


def _is_generator(function: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(function))


def _calls(node: ast.AST) -> list[ast.Call]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Call)]


def _is_wait(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in WAITS and "loop" in ast.unparse(call.func).lower()


def test_no_end_of_a_generator_waits_for_the_loop() -> None:
    paths = [path for root in ("clients", "spark") for path in (ROOT / root).rglob("*.py")]
    assert [f"{path}:{line}" for path in paths for line in waiting(trees.tree(path))] == []


def test_one_that_waits_is_found() -> None:
    text = """
def close(loop, it):
    loop.run(it.close())
def rows(loop, it):
    try:
        yield 1
    finally:
        close(loop, it)
def others(self, it):
    try:
        yield 1
    finally:
        self._loop.run(it.close())
"""
    assert waiting(ast.parse(text)) == [8, 13]
