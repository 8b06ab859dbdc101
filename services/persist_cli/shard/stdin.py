"""Standard input that an interrupt ends the wait for, whenever it comes."""

import io
import os
import select
import signal
import socket
import sys
import threading
from typing import BinaryIO, cast


def standard_input() -> BinaryIO:
    """Standard input as bytes: none where there is none."""
    if sys.stdin is None:
        return io.BytesIO()
    try:
        number = sys.stdin.buffer.fileno()
    except OSError:
        return io.BytesIO(sys.stdin.buffer.read())
    return cast(BinaryIO, io.BufferedReader(_Waiting(number)))


class _Waiting(io.RawIOBase):
    """SUBTLE: a signal that comes between two reads of the system is seen by Python once the second one ends, which may
    be never. Its arrival is waited for as well as bytes are.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]  # wider there
        if threading.current_thread() is threading.main_thread():
            self._wait()
        return os.readv(self._number, [buffer])

    def _wait(self) -> None:
        seen, signalled = socket.socketpair()
        with seen, signalled:
            signalled.setblocking(False)
            before = signal.set_wakeup_fd(signalled.fileno(), warn_on_full_buffer=False)
            try:
                while self._number not in select.select([self._number, seen.fileno()], [], [])[0]:
                    seen.recv(1)  # what handles the signal raises, or the wait goes on
            finally:
                signal.set_wakeup_fd(before)
