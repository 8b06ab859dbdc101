"""The modules of this repository as text and as syntax, each read, parsed and walked once in a process.

Tests over prose and structure share them, and run in one process (``ABOUT_SOURCES`` in ``conftest``): parsing all that
there is takes longer than most of them do. What they are given is for reading.
"""

import ast
from functools import cache
from pathlib import Path


@cache
def text(path: Path) -> str:
    return path.read_text()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path), filename=str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of a module, from the outside in, as ``ast.walk`` goes."""
    return tuple(ast.walk(tree(path)))
