"""Processes that stand still, and keep no other from the files they use.

SIGSTOP may come while a thread writes to SQLite: then the file stays locked for all until the process goes on,
which is what SQLite promises, and nothing that a test of ours is about.
"""

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path


def stop_between_writes(pid: int, database: Path) -> None:
    """Stop the process at a moment at which it holds no lock of that SQLite file."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        while _state(pid) != "T":
            time.sleep(0.001)
        with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError:
                os.kill(pid, signal.SIGCONT)
        time.sleep(0.005)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
