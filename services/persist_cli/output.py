"""Standard output that may fail: a full disk, a pipe without a reader. What was done is said all the same.

A command that changes something says what on standard output, after it happened. Where that fails, it is said on
standard error, and the exit code is 3 instead of 0. A command that only reads ends there.
"""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from enum import Enum, auto
from typing import BinaryIO, Final, TextIO, cast

EXIT_HAPPENED: Final = 3
"""It happened, or a part of it, although not all is well."""


class Effect(Enum):
    """What a command changes. A failure of one commit is one of all of it: it says whether it happened."""

    READS = auto()
    ONE_COMMIT = auto()
    MANY_STEPS = auto()


class OutputFailed(Exception):
    """Standard output takes no more."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.is_closed_pipe = isinstance(error, BrokenPipeError)


class Closed(io.TextIOBase):
    """Standard output of a process that was started without one."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


class Output:
    """Standard output of one command."""

    def __init__(self, stream: TextIO | Closed) -> None:
        self._stream: TextIO = cast(TextIO, stream)
        self.effect = Effect.READS
        self.failure: OutputFailed | None = None
        self._streams_rows = False
        self._was_said = False

    def write(self, text: str) -> int:
        """Print; on standard error once that failed. Raises OutputFailed in a command that reads."""
        if not isinstance(text, str):
            raise TypeError("text is written here")  # Typer asks with bytes what this is
        with self._failing(text):
            if self.failure is None:
                self._stream.write(text)
                if self._says:
                    self._stream.flush()
        return len(text)

    def flush(self) -> None:
        """As ``write``."""
        with self._failing(""):
            if self.failure is None:
                self._stream.flush()

    @property
    def buffer(self) -> "_Bytes":
        """For rows as bytes."""
        return _Bytes(self, getattr(self._stream, "buffer", cast(BinaryIO, self._stream)))

    @contextlib.contextmanager
    def streaming(self) -> Iterator[None]:
        """A block that prints rows that were read, however many: it ends where they cannot be printed."""
        outer, self._streams_rows = self._streams_rows, True
        try:
            if self.failure is not None:
                raise self.failure
            yield
            self.flush()
        finally:
            self._streams_rows = outer

    def end(self, code: int) -> int:
        """The exit code of a command that would end with this one."""
        try:
            self.flush()
        except OutputFailed as error:
            return max(code, self.said(error))
        finally:
            self._forget()
        return EXIT_HAPPENED if code == 0 and self.failure is not None else code

    def said(self, error: OutputFailed) -> int:
        """Say why a command that reads ends; the exit code. Nothing about a pipe whose reader has what it wanted."""
        if not (error.is_closed_pipe or self._was_said):
            self._was_said = True
            print(f"persist: standard output: {error} (nothing was changed)", file=sys.stderr)
        return 1

    def _forget(self) -> None:
        """Release what a failure was raised through: an engine of queries counts what is left when a process ends."""
        if self.failure is not None:
            self.failure.__traceback__ = self.failure.__cause__ = self.failure.__context__ = None

    @property
    def _says(self) -> bool:
        """What is printed is what was done."""
        return self.effect is not Effect.READS and not self._streams_rows

    @contextlib.contextmanager
    def _failing(self, text: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            failed, self.failure = self.failure is None, self.failure or OutputFailed(error)
            if failed:
                self._drain()
            if not self._says:
                raise self.failure from error
            if failed:
                print(f"persist: standard output: {self.failure}. What was done is said here:", file=sys.stderr)
        if self.failure is not None:
            if not self._says:
                raise self.failure
            sys.stderr.write(text)

    def _drain(self) -> None:
        """Nothing more is tried with what the stream still holds, neither now nor when the process ends."""
        if self._stream is sys.__stdout__:
            with contextlib.suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)

    def __getattr__(self, name: str) -> object:
        found: object = getattr(self._stream, name)
        return found


class _Bytes:
    def __init__(self, output: Output, stream: BinaryIO) -> None:
        self._output = output
        self._stream = stream

    def write(self, data: bytes) -> int:
        """All of it. Raises OutputFailed."""
        with self._output.streaming(), self._output._failing(""):
            self._stream.write(data)
        return len(data)

    def flush(self) -> None:
        with self._output.streaming():
            pass

    def __getattr__(self, name: str) -> object:
        found: object = getattr(self._stream, name)
        return found


@contextlib.contextmanager
def streaming() -> Iterator[None]:
    """See Output."""
    output = sys.stdout
    if not isinstance(output, Output):
        yield
        return
    with output.streaming():
        yield
