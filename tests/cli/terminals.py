"""Running ``persist`` in a process of its own at a terminal, as a person does."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios


def on_a_terminal(*words: object, columns: int = 100, rows: int = 40) -> str:
    """All that is written to a terminal of that size, control sequences included."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    command = [sys.executable, "-m", "persist_cli", *(str(word) for word in words)]
    # SUBTLE: readline leaves the size of the terminal that pytest was started on where only its children find it.
    inherited = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    environ = {**inherited, "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, close_fds=True) as process:
        os.close(theirs)
        written = b""
        while data := _read(ours):
            written += data
        assert process.wait(200) == 0, written.decode()
    os.close(ours)
    return written.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:
        # The last process that had the terminal is gone.
        return b""
