"""Queries of views that are kept, each in a process of its own, so that no text keeps or ends the process that leads.

DuckDB counts what it buffers towards its limit, and not what a function allocates; it is not interrupted within one
function; and what parses a text calls itself. Who wrote a text is not who runs it, so a server runs it where memory is
bounded by the operating system, and where it can be killed. Rows go both ways in pieces. Source: collections: queries.
"""

import asyncio
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Final, TypeAlias

import pyarrow as pa

from persist.client.collections.views.query import QueryAt, QueryFailed
from persist.client.sql.apart.frames import HEAD_BYTES, batch_in, batch_out, frame, size_of
from persist.client.sql.bind.binding import BoundRelation
from persist.client.sql.errors import SqlLimit
from persist.client.sql.keeping import LIMITS
from persist.client.sql.querying import columns_read
from persist.client.sql.run.instances import Limits
from persist.client.sql.run.relations import repeated
from persist.errors import Determinate
from persist.runtime import system
from persist.typed import Pickled

IDLE_SECONDS: Final = 60.0
"""A process that ran nothing for so long is ended when another query is asked."""
_BUFFER_BYTES: Final = 1 << 20
_PROGRAM: Final = "persist.client.sql.apart.program"
_KEPT: Final = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR")
"""Variables that the process is given: what others say may be secret."""
Pipe: TypeAlias = tuple[asyncio.ReadTransport, asyncio.StreamReader]


class ApartQueries:
    """A QueryRunner. Needs the extra ``sql``. Close it. ``limits.memory_bytes`` also bounds an answer."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._idle: list[tuple[float, _QueryProcess]] = []
        self._busy: set[_QueryProcess] = set()

    async def run(self, asked: QueryAt) -> pa.Table:
        """See QueryRunner. Raises SqlLimit besides."""
        try:
            process = await self._process()
        except (asyncio.IncompleteReadError, OSError) as error:
            raise Determinate("no process for a query could be begun", hint="see the server's memory") from error
        self._busy.add(process)
        finished = False
        try:
            async with asyncio.timeout(self._limits.timeout):
                outcome = await _Conversation(process, asked, self._limits.memory_bytes).outcome()
            finished = True
        except TimeoutError:
            raise SqlLimit("the query took too long", hint="ask for less", seconds=self._limits.timeout) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise SqlLimit(
                "the query ended the process that ran it", hint="most often it needs more memory than it may have"
            ) from None
        finally:
            self._busy.discard(process)
            if finished:
                self._idle.append((asyncio.get_running_loop().time(), process))
            else:
                process.kill()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def close(self) -> None:
        """End its processes. Another query begins another one."""
        for process in [*self._busy, *(each for _, each in self._idle)]:
            process.kill()
        self._idle.clear()

    async def _process(self) -> "_QueryProcess":
        now = asyncio.get_running_loop().time()
        while self._idle and self._idle[0][0] < now - IDLE_SECONDS:
            self._idle.pop(0)[1].kill()
        while self._idle:
            _, process = self._idle.pop()
            if process.is_there:
                return process
        process = await _begun()
        try:
            # Its beginning takes a second of a processor, and is not the time of a query.
            await process.heard()
            await process.say(self._limits)
        except BaseException:
            process.kill()
            raise
        return process


class _QueryProcess:
    """A process that runs queries."""

    def __init__(self, process: "subprocess.Popen[bytes]", reader: Pipe, writer: asyncio.StreamWriter) -> None:
        self._process = process
        self._from, self._reader = reader
        self._writer = writer

    @property
    def is_there(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    async def heard(self) -> Pickled:
        """What it says next. Raises IncompleteReadError: it has ended."""
        size = size_of(await self._reader.readexactly(HEAD_BYTES))
        said: Pickled = pickle.loads(await self._reader.readexactly(size))
        return said

    async def say(self, what: object) -> None:
        """Say something to it. Raises ConnectionError: it has ended."""
        self._writer.write(frame(what))
        await self._writer.drain()

    def kill(self) -> None:
        """End it, whatever it does."""
        self._from.close()
        self._writer.transport.abort()
        _end(self._process)


async def _begun() -> _QueryProcess:
    """SUBTLE: a process of asyncio that is cancelled while it begins is waited for, for ever where a loop ends."""
    process = _started()
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(_BUFFER_BYTES)
        source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        target, flow = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), process.stdin
        )
        return _QueryProcess(process, (source, reader), asyncio.StreamWriter(target, flow, None, loop))
    except BaseException:
        _end(process)
        raise


def _started() -> "subprocess.Popen[bytes]":
    """It takes some milliseconds; what takes it a second it does by itself."""
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-m", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    # Its memory is given back before it has ended, which takes a moment.
    threading.Thread(target=process.wait, name="persist-query-ended", daemon=True).start()


class _Conversation:
    """One query with its process: it asks for the rows of relations, and says those of the answer."""

    def __init__(self, process: _QueryProcess, asked: QueryAt, bytes_max: int) -> None:
        self._process = process
        self._asked = asked
        self._bytes_max = bytes_max
        self._read: dict[int, AsyncGenerator[pa.RecordBatch, None]] = {}

    async def outcome(self) -> pa.Table | Exception:
        """The answer, or what is wrong with the query; the process is ready for the next one then."""
        process, asked = self._process, self._asked
        await process.say((asked.query, asked.as_of, asked.items, asked.known))
        schema, batches, size = pa.schema([]), list[pa.RecordBatch](), 0
        try:
            while True:
                match await process.heard():
                    case ("columns", relation):
                        await process.say(bytes(self._schema(relation).serialize().to_pybytes()))
                    case ("next", number, relation):
                        await process.say(await self._next(number, relation))
                    case ("answer", data):
                        schema = pa.ipc.read_schema(pa.py_buffer(data))
                    case ("rows", data):
                        size += len(data)
                        if size > self._bytes_max:
                            raise SqlLimit(
                                "the answer is larger than it may be", hint="ask for less", limit=self._bytes_max
                            )
                        batches.append(batch_in(data))
                    case ("end",):
                        return pa.Table.from_batches(batches, schema=schema)
                    case ("limit", message, hint):
                        return SqlLimit(message, hint=hint)
                    case ("failed", message, hint, details):
                        return QueryFailed(message, hint=hint or "correct the rows or the query", **details)
        finally:
            for each in self._read.values():
                await each.aclose()

    async def _next(self, number: int, relation: BoundRelation) -> bytes | None:
        if number not in self._read:
            self._read[number] = self._columns_read(relation)[1]()
        batch = await anext(self._read[number], None)
        return None if batch is None else await system().offload(_encoded, batch, self._schema(relation))

    def _schema(self, relation: BoundRelation) -> pa.Schema:
        return self._columns_read(relation)[0]

    def _columns_read(
        self, relation: BoundRelation
    ) -> tuple[pa.Schema, Callable[[], AsyncGenerator[pa.RecordBatch, None]]]:
        return columns_read(relation, self._asked.inputs[relation.described.id])


def _encoded(batch: pa.RecordBatch, schema: pa.Schema) -> bytes:
    return batch_out(repeated(batch, schema))
