"""Modules of tests are compiled by one process, before many begin that would each compile all of them."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FEW = 30
"""So many are compiled by each process that comes to them, while none waits for another one."""


def compile_if_many() -> None:
    """What fails here fails again, and is shown, where it is collected."""
    if not sys.dont_write_bytecode and len(changed()) > FEW:
        command = [sys.executable, "-m", "pytest", "-qq", "-n", "0", "--collect-only", str(HERE)]
        subprocess.run(command, cwd=HERE.parent, capture_output=True, check=False)


def changed() -> list[Path]:
    """Test modules that are newer than what pytest compiled of them, which it does anew: asserts are written out."""
    tail = f"{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    found = ((path, path.parent / "__pycache__" / f"{path.stem}.{tail}") for path in HERE.rglob("test_*.py"))
    return [
        path for path, compiled in found if not compiled.exists() or compiled.stat().st_mtime < path.stat().st_mtime
    ]
