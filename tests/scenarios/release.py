"""A process that has imported the release it finds, and forks for each program of it that is asked for.

A fresh interpreter costs most of a CPU second. What is asked, by a socket: ``[path or module, words, environment]``
with three files, answered by the pid of the fork, and ``pid``, answered by its exit code once it has ended.
"""

import gc
import importlib
import json
import os
import runpy
import socket
import sys

PRELOADED = (
    "persist.aio", "persist.client.blocking.client", "persist.storage.blob.file", "persist.storage.consensus.sqlite",
    "persist_cli.app", "persist_cli.shard.commands", "typer._adapters",
)  # fmt: skip


def main(asked: socket.socket) -> None:
    """Returns once there is no more to ask. What a fork runs begins as a fresh interpreter does, and ends it."""
    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    while True:
        message, files, _, _ = socket.recv_fds(asked, 1 << 20, 3)
        if not message:
            return
        given = json.loads(message)
        if isinstance(given, int):
            asked.send(str(os.waitstatus_to_exitcode(os.waitpid(given, 0)[1])).encode())
            continue
        if pid := os.fork():
            for file in files:
                os.close(file)
            asked.send(str(pid).encode())
            continue
        asked.close()
        program, words, environment = given
        be(program, words, environment, files)


def be(program: str, words: list[str], environment: dict[str, str], files: list[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [program, *words]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
