"""The program that runs queries for the process that began it, one after the other, and ends with it.

What it may allocate is bounded before the first query. Source: client.sql.apart.queries.
"""

import contextlib
import os
import pickle
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa

from persist.client.sql.apart.frames import HEAD_BYTES, batch_in, batch_out, frame, size_of
from persist.client.sql.bind.binding import BoundRelation
from persist.client.sql.errors import SqlLimit
from persist.client.sql.keeping import bound_of
from persist.client.sql.run.engine import Engine, named
from persist.client.sql.run.instances import Limits
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.values import KnownColumns
from persist.errors import PersistError

BESIDE_BYTES: Final = 512 << 20
"""What it may allocate beside the memory of a query: rows on their way, and the texts themselves."""


class Asked(NamedTuple):
    """A query of a view, without its inputs: see QueryAt."""

    query: str
    as_of: int
    items: tuple[Described, ...]
    known: tuple[KnownColumns, ...]


class Piped:
    """A relation whose rows the other process has."""

    error: PersistError | None = None

    def __init__(self, relation: BoundRelation, schema: pa.Schema, ask: Callable[[object], bytes | None]) -> None:
        self._relation = relation
        self._schema = schema
        self._ask = ask

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self._schema, self._batches())
        stream: object = reader.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]  # of Arrow
        return stream

    def abandon(self) -> None:
        """Nothing waits here."""

    def _batches(self) -> Iterator[pa.RecordBatch]:
        number = next(_numbers)
        while (data := self._ask(("next", number, self._relation))) is not None:
            yield batch_in(data)


_numbers: Final = iter(range(1 << 62))


class Program:
    """Queries that come, and what comes of them."""

    def __init__(self, source: BinaryIO, target: BinaryIO) -> None:
        self._target = target
        self._said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._turn = threading.Lock()
        # It waits for what is said also while a query computes: the process that asked may end meanwhile.
        threading.Thread(target=self._hear, args=(source,), daemon=True).start()

    def run(self) -> None:
        """Until the other process closes this one's input."""
        self._say("ready")
        limits: Limits = self._said.get()
        _bound_memory(limits)
        engine = Engine(limits)
        while True:
            asked = Asked(*self._said.get())
            try:
                self._answer(asked, engine)
            except (SqlLimit, MemoryError) as error:
                message = (
                    error.message if isinstance(error, SqlLimit) else "the query needs more memory than it may have"
                )
                self._say(("limit", message, "ask for less"))
            except PersistError as error:
                self._say(("failed", error.message, error.hint, dict(error.details)))
            except Exception as error:
                # What parses a text asserts, and calls itself too deeply: it will again.
                said = f"{type(error).__name__}: {error}"[:300]
                self._say(("failed", "the query is not understood", "say it in another way", {"problem": said}))

    def _answer(self, asked: Asked, engine: Engine) -> None:
        bound = bound_of(asked.query, asked.items, asked.known)
        relations = {}
        for name, each in bound.relations.items():
            columns = self._ask(("columns", each))
            assert columns is not None
            schema = pa.ipc.read_schema(pa.py_buffer(columns))
            relations[name] = Piped(each, schema, self._ask)
        with engine.answered(bound.sql(asked.as_of, named), relations) as reader:
            self._say(("answer", reader.schema.serialize().to_pybytes()))
            for batch in reader:
                self._say(("rows", batch_out(batch)))
        self._say(("end",))

    def _ask(self, what: object) -> bytes | None:
        with self._turn:
            self._say(what)
            answer: bytes | None = self._said.get()
            return answer

    def _say(self, what: object) -> None:
        self._target.write(frame(what))
        self._target.flush()

    def _hear(self, source: BinaryIO) -> None:
        while len(head := source.read(HEAD_BYTES)) == HEAD_BYTES:
            self._said.put(pickle.loads(source.read(size_of(head))))  # of our own process
        os._exit(0)


def main() -> None:
    """Run queries for the process that began this one."""
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # What a library prints must not come between.
    os.dup2(2, 1)
    Program(source, target).run()


def _bound_memory(limits: Limits) -> None:
    """SUBTLE: of what is private and may be written to; addresses that are only reserved are not counted."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        with open("/proc/self/status", encoding="ascii") as status:
            now = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
        limit = now + limits.memory_bytes + BESIDE_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


if __name__ == "__main__":
    main()
