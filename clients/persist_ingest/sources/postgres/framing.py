"""Which messages lie in a range of positions: whole transactions, by where their commit ends.

Only its commit says where a transaction ends. So one that is larger than a chunk is kept until that is read, in a
file once it is large. Source: sources.md section 1, what peek really costs.
"""

import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from persist import Determinate
from persist_ingest.sources.postgres.pgoutput import BEGIN, COMMIT, Chunk
from persist_ingest.sources.tables.gathering import Ints

KEPT_BYTES: Final = 64 << 20
_HEAD: Final = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class Framed:
    """Messages and, for each, the number of its transaction, and the position where its commit ends.

    ``wanted``: the range holds it.
    """

    chunk: Chunk
    xids: Ints
    ends: npt.NDArray[np.uint64]
    wanted: npt.NDArray[np.bool_]


def frame(chunks: Iterable[Chunk], begin: int, end: int) -> Iterator[Framed]:
    """The transactions up to ``end``; wanted are those whose commit ends beyond ``begin``.

    Those before it come too: what they say of relations is not said again.
    """
    xids = _Xids()
    with closing(_KeptChunks()) as kept:
        for chunk in chunks:
            commits = np.flatnonzero(chunk.tags == COMMIT)
            if not len(commits):
                if not kept.count and _begins_beyond(chunk, end):
                    return
                kept.append(chunk)
                continue
            ends = chunk.longs(chunk.starts[commits] + 10)
            for earlier in kept.drain():
                yield from _framed(earlier, xids, np.full(len(earlier), ends[0], np.uint64), begin, end)
            whole, rest = chunk.split(int(commits[-1]) + 1)
            yield from _framed(whole, xids, ends[np.searchsorted(commits, np.arange(len(whole)))], begin, end)
            if ends[-1] > end or _begins_beyond(rest, end):
                return
            if len(rest):
                kept.append(rest)
        if kept.count:
            raise Determinate("the answer of the server ends inside a transaction", hint="read it again")


class _Xids:
    """Which transaction each message belongs to: only the first of each says so."""

    def __init__(self) -> None:
        self._last = 0

    def of(self, chunk: Chunk) -> Ints:
        begins = np.flatnonzero(chunk.tags == BEGIN)
        known = np.concatenate(([self._last], chunk.words(chunk.starts[begins] + 17)))
        self._last = int(known[-1])
        found: Ints = known[np.searchsorted(begins, np.arange(len(chunk)), side="right")]
        return found


def _framed(chunk: Chunk, xids: _Xids, ends: npt.NDArray[np.uint64], begin: int, end: int) -> Iterator[Framed]:
    numbers = xids.of(chunk)
    # Commits are in order, so what lies beyond the end is at the end.
    count = int(np.searchsorted(ends, np.uint64(end), side="right"))
    if count:
        head, ends = chunk.split(count)[0], ends[:count]
        yield Framed(head, numbers[:count], ends, ends > np.uint64(begin))


def _begins_beyond(chunk: Chunk, end: int) -> bool:
    """The transaction that begins here commits at or beyond ``end``."""
    return len(chunk) > 0 and chunk.tags[0] == BEGIN and int(chunk.longs(chunk.starts[:1] + 1)[0]) >= end


class _KeptChunks:
    """Chunks of a transaction whose end was not read yet."""

    def __init__(self) -> None:
        self.count = 0
        self._file = tempfile.SpooledTemporaryFile(KEPT_BYTES)  # noqa: SIM115 - closed by close()

    def append(self, chunk: Chunk) -> None:
        lengths = chunk.lengths.tobytes()
        self._file.write(_HEAD.pack(len(chunk.data), len(lengths)))
        self._file.write(chunk.data.tobytes())
        self._file.write(lengths)
        self.count += 1

    def drain(self) -> Iterator[Chunk]:
        """All of them in order, and forget them."""
        self._file.seek(0)
        for _ in range(self.count):
            data, lengths = _HEAD.unpack(self._file.read(_HEAD.size))
            content = np.frombuffer(self._file.read(data), np.uint8)
            yield Chunk(content, np.frombuffer(self._file.read(lengths), np.int64))
        self.count = 0
        self._file.seek(0)
        self._file.truncate()

    def close(self) -> None:
        self._file.close()
