"""Processes that begin with all they need imported, which is most of what starting one costs.

A server process of ``multiprocessing`` has imported our programs, and forks. A fork does what ``python -m`` does with
the same words and environment, in a process with a pid of its own, which can be stopped and killed. Tests of how an
interpreter begins start a fresh one instead.
"""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess

import pytest

PRELOADED = (
    "forked", "persist.aio", "persist.storage.open", "persist_catalog", "persist_cli.app", "persist_compaction",
    "persist_minter", "persist_shard.serve",
)  # fmt: skip


def forks() -> ForkServerContext:
    """The context whose processes are forks. The first call starts the process they are forks of."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    with pytest.MonkeyPatch.context() as environment:
        # What is imported before the first fork is found there, and not where a fork is told to look.
        environment.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        forkserver.ensure_running()
    return context


def start_module(
    module: str, words: Sequence[str], environment: Mapping[str, str], output: Connection, errors: Connection
) -> ForkServerProcess:
    """``python -m module words``, which writes into these two."""
    process = forks().Process(target=_be, args=(module, list(words), dict(environment), output, errors), daemon=True)
    process.start()
    return process


def _be(module: str, words: list[str], environment: dict[str, str], output: Connection, errors: Connection) -> None:
    for pipe, number in ((output, 1), (errors, 2)):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *words]
    sys.orig_argv = [sys.executable, "-m", module, *words]  # by which a program begins again
    runpy.run_module(module, run_name="__main__", alter_sys=True)
