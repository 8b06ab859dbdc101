"""Interrupted writes: whatever is stored and was not returned, ``resolve`` reports. Exactly once, guarantee 4."""

import asyncio
import contextlib
import dis
import signal
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from client.support import SCHEMA
from sure import sure

import persist
from persist import ShardId
from persist.core import ids
from persist.core.shard.commands import CloseCall, CompareAndAppend
from persist.core.time.timeline import EPOCH_MILLISECONDS, oracle_shards

TURNS = 1000
"""Turns of the loop: more than a caller that does not wait takes."""

Hook = Callable[[], Awaitable[None]]


def row(n: int) -> dict[str, Any]:
    return {"id": n, "name": "a"}


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Does to the main thread what Ctrl-C does, from any thread."""

    def hit(*_: object) -> None:
        raise KeyboardInterrupt

    main, before, switching = threading.main_thread().ident, signal.signal(signal.SIGUSR2, hit), sys.getswitchinterval()
    assert main is not None
    # What runs when the signal is sent goes on until it waits.
    sys.setswitchinterval(60)
    yield lambda: signal.pthread_kill(main, signal.SIGUSR2)
    sys.setswitchinterval(switching)
    signal.signal(signal.SIGUSR2, before)


class Way:
    """What happens right after a command of some kind has committed, before its answer goes on: once."""

    def __init__(self, client: persist.Client) -> None:
        shards = client._inner.location.shards
        self.right = shards.apply
        self.hooks: list[tuple[type, ids.ShardId | None, Hook]] = []
        shards.apply = self.apply  # type: ignore[method-assign]

    def after(self, kind: type, hook: Hook, shard: ids.ShardId | None = None) -> None:
        self.hooks.append((kind, shard, hook))

    async def apply(self, shard: ids.ShardId, command: Any, *, timeout: float) -> Any:
        outcome = await self.right(shard, command, timeout=timeout)
        if self.hooks and isinstance(command, self.hooks[0][0]) and self.hooks[0][1] in (None, shard):
            await self.hooks.pop(0)[2]()
        return outcome


class Things:
    """Somewhere to put rows, in one of the ways there are."""

    def __init__(self, client: persist.Client, way: str) -> None:
        self.way, self.applied, self.writer = way, None, None
        if way in {"append", "at upper", "compare"}:
            self.shard = ShardId.new()
            self.writer, self.reader = client.open(self.shard, schema=SCHEMA)
            self.resolve = self.writer.resolve
            self.log: ids.ShardId = self.shard
        else:
            mode: Any = "direct" if way.startswith("direct") else "wal"
            self.table = client.table("things", schema=SCHEMA, mode=mode)
            wal = self.table._inner.wal
            self.log = self.table.shard if wal is None else wal.writer.shard
            self.resolve = self.table.resolve
            self.applied = oracle_shards(EPOCH_MILLISECONDS)[1]
        self.client = client

    def put(self, n: int) -> object:
        match self.way:
            case "append":
                [upper] = sure(self.writer).upper.elements
                return sure(self.writer).append([(({"id": n}, {"name": "a"}), upper, 1)], upper + 1)
            case "compare":
                [upper] = self.client.recent_upper(self.shard).elements
                return sure(self.writer).compare_and_append([(({"id": n}, {"name": "a"}), upper, 1)], upper, upper + 1)
            case "at upper":
                return sure(self.writer).append_at_upper([(({"id": n}, {"name": "a"}), 0, 1)])
            case "direct" | "wal":
                return self.table.insert([row(n)])
            case "direct upsert" | "wal upsert":
                return self.table.upsert([row(n)])
            case "transaction":
                with self.client.transaction() as transaction:
                    transaction.insert(self.table, [row(n)])
                return None
            case _:
                return self.client.transact(lambda transaction: transaction.insert(self.table, [row(n)]))

    def rows(self) -> Counter[int]:
        source = self.table if self.writer is None else self.reader
        counted: Counter[int] = Counter()
        for each in source.snapshot().to_pylist():
            counted[each["id"]] += each["diff"]
        return counted


WRITERS = ["append", "at upper", "compare"]
TABLES = ["direct", "direct upsert", "wal", "wal upsert", "transaction", "transact"]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    with persist.embedded(tmp_path) as client:
        yield client


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def lingering() -> None:
    """Wait for ever; take some turns to end."""
    try:
        await asyncio.Event().wait()
    finally:
        await turns()


@pytest.mark.parametrize("way", WRITERS + TABLES)
def test_resolve_tells_of_what_an_interrupt_left_under_way(client, interrupt, way):
    things, between = Things(client, way), Way(client)
    things.put(0)

    async def hit() -> None:
        interrupt()
        # Times are applied for several callers at once, whichever of them leaves.
        await (lingering() if things.applied is None else turns())

    between.after(CompareAndAppend, hit, things.applied)
    with pytest.raises(KeyboardInterrupt):
        things.put(1)
    [told] = things.resolve()
    assert told.appended is not None
    assert things.rows() == {0: 1, 1: 1}
    assert things.resolve() == ()


@pytest.mark.parametrize("way", WRITERS + TABLES)
def test_resolve_tells_of_an_answer_that_came_with_the_interrupt(client, interrupt, way):
    things, between = Things(client, way), Way(client)
    things.put(0)

    async def hit() -> None:
        interrupt()

    between.after(CompareAndAppend, hit, things.applied)
    with pytest.raises(KeyboardInterrupt):
        things.put(1)
    [told] = things.resolve()
    assert told.appended is not None
    assert things.rows() == {0: 1, 1: 1}


def test_next_append_waits_for_what_an_interrupt_left_under_way(client, interrupt):
    things, between = Things(client, "at upper"), Way(client)
    ended = []

    async def hit() -> None:
        interrupt()
        try:
            await lingering()
        finally:
            ended.append(True)

    between.after(CompareAndAppend, hit)
    with pytest.raises(KeyboardInterrupt):
        things.put(1)
    assert ended
    things.put(2)
    assert [told.appended is not None for told in things.resolve()] == [True]
    assert things.rows() == {1: 1, 2: 1}


@pytest.mark.parametrize("then", ["resolve", "append"])
def test_second_interrupt_leaves_at_once_and_what_is_under_way_is_waited_for_later(client, interrupt, then):
    things, between, left = Things(client, "at upper"), Way(client), threading.Event()

    async def hit() -> None:
        interrupt()
        try:
            await asyncio.Event().wait()
        finally:
            interrupt()
            while not left.is_set():
                await asyncio.sleep(0)
            await turns()

    between.after(CompareAndAppend, hit)
    with pytest.raises(KeyboardInterrupt):
        things.put(1)
    left.set()
    if then == "append":
        things.put(2)
    [told] = things.resolve()
    assert told.appended is not None
    assert things.rows() == ({1: 1, 2: 1} if then == "append" else {1: 1})


@pytest.mark.parametrize("way", ["at upper", "direct", "wal"])
def test_what_an_interrupted_resolve_found_the_next_one_tells(client, interrupt, way):
    things, between = Things(client, way), Way(client)
    things.put(0)

    async def stop() -> None:
        interrupt()
        await lingering()

    async def hit() -> None:
        interrupt()

    between.after(CompareAndAppend, stop, things.log)
    between.after(CloseCall, hit)
    with pytest.raises(KeyboardInterrupt):
        things.put(1)
    with pytest.raises(KeyboardInterrupt):
        things.resolve()
    [told] = things.resolve()
    assert told.appended is not None
    assert things.resolve() == ()
    assert things.rows()[1] == 1


@pytest.mark.parametrize("way", WRITERS + TABLES)
def test_resolve_tells_nothing_of_what_was_returned_or_refused(client, way):
    things = Things(client, way)
    for n in range(3):
        things.put(n)
    with pytest.raises(persist.PersistError):
        things.put("not a number")  # type: ignore[arg-type]
    assert things.resolve() == ()


class Handled:
    """Raises KeyboardInterrupt in this thread at the n-th place where the interpreter would handle a signal.

    It does so after what is called from C has returned, where a Python function begins, and where a loop goes round.
    """

    CALLS = frozenset({"CALL", "PRECALL", "CALL_KW", "CALL_FUNCTION_EX"})
    LOOPS = frozenset({"JUMP_BACKWARD", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE"})

    def __init__(self, places: set[int]) -> None:
        self.places, self.seen = places, 0
        self._last: dict[FrameType, str] = {}

    def __enter__(self) -> "Handled":
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        self._last.clear()

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "call":
            if frame.f_back is not None:
                self._last.pop(frame.f_back, None)
            self.place()
        elif event == "opcode":
            name, last = names(frame)[frame.f_lasti], self._last.get(frame, "")
            self._last[frame] = name
            if name == "PUSH_EXC_INFO":
                return self.trace  # what was called has raised
            if last in self.LOOPS or (last in self.CALLS and name != "CALL"):
                self.place()
        return self.trace

    def place(self) -> None:
        self.seen += 1
        if self.seen in self.places:
            raise KeyboardInterrupt


def names(frame: FrameType) -> dict[int, str]:
    """The instruction at each place of a frame's code."""
    code = frame.f_code
    if code not in _names:
        _names[code] = {each.offset: each.opname for each in dis.get_instructions(code)}
    return _names[code]


_names: dict[Any, dict[int, str]] = {}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # interrupted before it was given
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in what is called when objects go
@pytest.mark.parametrize("more", [(), (1,), (2,), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("way", ["at upper", "direct", "transaction"])
def test_interrupt_at_every_place_leaves_nothing_untold(client, way, more):
    things = Things(client, way)
    things.put(-1)
    expected, n = Counter({-1: 1}), 0
    while True:
        n += 1
        done = None
        places = {n, *(n + each for each in more)}
        with contextlib.suppress(KeyboardInterrupt), Handled(places) as handled:
            done = bool(things.put(n)) or True
        told = things.resolve()
        assert len(told) <= 1
        if done:
            assert told == (), n
        if done or any(each.appended for each in told):
            expected[n] += 1
        if handled.seen < n:
            break
    assert n > 20
    assert things.rows() == expected


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_rows_that_end_the_process_reach_who_gave_them_and_nobody_else_waits_for_ever(client, error):
    """sys.exit() in a generator once ended the thread that all blocking callers of a process wait for."""

    def rows() -> Iterator[Any]:
        yield (({"id": 1}, {"name": "a"}), 0, 1)
        raise error

    writer = client.open_writer(ShardId.new(), schema=SCHEMA)
    with pytest.raises(error):
        writer.append(rows(), 1)
    assert isinstance(writer.append([(({"id": 2}, {"name": "a"}), 0, 1)], 1), persist.Appended)
