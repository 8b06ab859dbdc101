"""A source type that stands still where a test wants it to."""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import persist
from persist_ingest.sources.loadgen import LOADGEN
from persist_ingest.sources.port import Beginning, SourceReader

PATIENCE = 60.0


class Gate:
    """The first caller stands still here until it is opened; others pass."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self.opened.wait(PATIENCE)


GATES: dict[str, Gate] = {}


class GatedReader:
    """A reader that stands still when it is asked for its exports again: right before shards are made for them."""

    def __init__(self, reader: SourceReader) -> None:
        self._reader = reader
        self._asked = 0

    def exports(self) -> Mapping[str, persist.Schema]:
        self._asked += 1
        if self._asked == 2 and "shards" in GATES:
            GATES["shards"]()
        return self._reader.exports()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


class Gated:
    """A load generator whose creation and drop stand still where a test wants them to."""

    @contextlib.contextmanager
    def create(self, options: Mapping[str, str], *, source: str) -> Iterator[Beginning]:
        with LOADGEN.create(options, source=source) as made:
            if "upstream" in GATES:
                GATES["upstream"]()
            yield Beginning(definition=made.definition, reader=GatedReader(made.reader), bound=made.bound)

    def open(self, definition: Mapping[str, Any], schemas: Mapping[str, persist.Schema]) -> SourceReader:
        return LOADGEN.open(definition, schemas)

    def drop(self, definition: Mapping[str, Any]) -> None:
        if "drop" in GATES:
            GATES["drop"]()


GATED = Gated()
