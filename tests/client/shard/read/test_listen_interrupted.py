"""A listen that was interrupted, or whose location failed, goes on where it was: no interruption is an end (I6)."""

import asyncio
import contextlib
import dataclasses
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client.support import SCHEMA, SMALL, Place, client_of, rows_of, table

import persist
from persist import Antichain, Progress, ShardId, Updates
from persist.client.shard.loop_thread import process_loop
from persist.client.shard.read.listen import Event
from persist.errors import LocationError, UsageError
from persist.machine.parts import reading
from persist.testing import servers

Row = tuple[int, str, int, int]


class Heard:
    """What a listen gave, checked as it comes: each frontier once, after all that lies before it."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.progress: list[Antichain] = []

    def took(self, event: Event) -> None:
        if isinstance(event, Updates):
            assert event.table.num_rows
            self.rows += rows_of(event.table)
            return
        assert not self.progress or self.progress[-1].less_than(event.upper)
        self.progress.append(event.upper)


async def step(listen: Any, turns: int) -> Event | None:
    """The next event; None when it did not come in so many turns of the loop, after which it is cancelled."""
    task = asyncio.ensure_future(listen.__anext__())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        found: Event = await task
    except asyncio.CancelledError:
        return None
    return found


@pytest.mark.parametrize("turns", [1, 2, 20, 500])
async def test_listen_that_was_cancelled_while_it_waited_goes_on(place: Place, turns: int):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        listen, heard = await reader.listen(0), Heard()
        for time in range(1, 5):
            assert await step(listen, turns) is None
            assert await step(listen, turns) is None
            await writer.append(table([(time, "a", time, 1)]), time + 1)
            while not heard.progress or heard.progress[-1] != Antichain.of(time + 1):
                heard.took(await anext(listen))
        assert await step(listen, turns) is None
        await writer.append([], [])
        heard.took(await anext(listen))
        with pytest.raises(StopAsyncIteration):
            await anext(listen)
        assert heard.rows == [(time, "a", time, 1) for time in range(1, 5)]
        assert heard.progress[-1] == Antichain()


@pytest.mark.parametrize("whole", [False, True], ids=["listen", "subscribe"])
async def test_listen_that_is_cancelled_all_the_time_neither_loses_nor_repeats(place: Place, whole: bool, monkeypatch):
    """The batches are of many pieces, so most interruptions come between pieces of one."""
    monkeypatch.setattr(reading, "BATCH_ROWS_MAX", 30)
    entropy = random.Random(7)
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        first = [(key, f"{key * 7919:x}", 0, 1) for key in range(400)]
        later = [(key, f"{key * 104729:x}", 1 + key % 3, 1) for key in range(400)]
        await writer.append(table(first), 1)
        await writer.append(table(later), 4)
        await writer.append(table([(9_999, "last", 4, 1)]), 5)
        listen = await (reader.subscribe(0) if whole else reader.listen(0))
        heard, pieces = Heard(), 0
        while not heard.progress or heard.progress[-1] != Antichain.of(5):
            turns = entropy.choice([1, 3, 10, 30, 100, None])
            event = await (anext(listen) if turns is None else step(listen, turns))
            if event is not None:
                pieces += isinstance(event, Updates)
                heard.took(event)
            if entropy.random() < 0.5 and listen._events is not None:
                # What is left of an interruption that meets it just here, which a fast store seldom allows.
                await listen._events.aclose()
                listen._events = None
        await listen.aclose()
        expected = [*(first if whole else []), *later, (9_999, "last", 4, 1)]
        assert sorted(heard.rows) == sorted(expected)
        assert pieces > 2 * len(heard.progress)


async def test_listen_whose_store_was_away_for_too_long_says_so_and_goes_on_when_asked(tmp_path: Path):
    hasty = dataclasses.replace(SMALL, timeout_ms=1_000)
    with servers.start_redis() as server:
        place = Place(f"file:{tmp_path}", server.uri)
        async with client_of(place, settings=hasty) as client, client_of(place) as other:
            writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
            same = await other.open_writer(writer.shard, schema=SCHEMA)
            await writer.append(table([(1, "a", 1, 1)]), 2)
            listen, heard = await reader.listen(0), Heard()
            heard.took(await anext(listen))
            heard.took(await anext(listen))
            await asyncio.to_thread(server.kill)
            for _ in range(2):
                with pytest.raises(LocationError):
                    await anext(listen)
            await asyncio.to_thread(server.start)
            await same.append(table([(2, "b", 2, 1)]), 3)
            while heard.progress[-1] != Antichain.of(3):
                with contextlib.suppress(LocationError):
                    heard.took(await anext(listen))
            assert heard.rows == [(1, "a", 1, 1), (2, "b", 2, 1)]


async def test_waiter_that_was_cancelled_before_and_went_on_is_a_waiter_as_any_other(tmp_path: Path):
    async with client_of(Place(f"file:{tmp_path}", f"sqlite:{tmp_path}/c.db")) as client:
        _, reader = await client.open(ShardId.new(), schema=SCHEMA)
        listen = await reader.listen(0)

        async def wait() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(600)
            while True:
                await anext(listen)

        first = asyncio.create_task(wait())
        await asyncio.sleep(0)
        first.cancel()
        while listen._waiter is None or first.cancelling() == 0:
            await asyncio.sleep(0)
        with pytest.raises(UsageError, match="waits for this listen"):
            await anext(listen)
        await listen.aclose()
        with pytest.raises(UsageError, match="closed"):
            await first


@pytest.fixture
def blocking(tmp_path: Path) -> Iterator[tuple[persist.WriteHandle, persist.ReadHandle]]:
    with persist.embedded(tmp_path) as client:
        yield client.open(ShardId.new(), schema=SCHEMA)


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """What a fresh process does: others in this one, such as PySpark and asyncio, set what becomes of a Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def hear_all(listen: persist.Listen, heard: Heard) -> None:
    for event in listen:
        heard.took(event)


@pytest.mark.usefixtures("ctrl_c_raises")
def test_blocking_loop_over_a_listen_goes_on_after_ctrl_c(blocking: tuple[Any, Any]):
    writer, reader = blocking
    main, heard, listen = threading.main_thread().ident, Heard(), reader.listen(0)
    assert main is not None

    def press(over: threading.Event) -> None:
        while listen._inner._waiter is None:
            os.sched_yield()
        # Again where it went unnoticed: Python ignores an interrupt that meets a finalizer.
        signal.pthread_kill(main, signal.SIGINT)
        while not over.wait(10):
            signal.pthread_kill(main, signal.SIGINT)

    for time in range(1, 4):
        presses = threading.Thread(target=press, args=(over := threading.Event(),))
        presses.start()
        with pytest.raises(KeyboardInterrupt):
            hear_all(listen, heard)
        over.set()
        presses.join()
        writer.append(table([(time, "a", time, 1)]), time + 1)
    writer.append([], [])
    hear_all(listen, heard)
    assert heard.rows == [(time, "a", time, 1) for time in range(1, 4)]
    assert heard.progress[-1] == Antichain()


def interrupt_next(monkeypatch: pytest.MonkeyPatch, loop: Any) -> None:
    """A Ctrl-C that arrives when the next call has ended, and before its caller has what it gave."""
    run = loop.run

    def interrupted(work: Any) -> Any:
        monkeypatch.undo()
        run(work)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "run", interrupted)


def test_ctrl_c_that_meets_an_event_on_its_way_loses_nothing(blocking: tuple[Any, Any], monkeypatch):
    writer, reader = blocking
    writer.append(table([(1, "a", 1, 1)]), 2)
    writer.append([], [])
    heard, listen = Heard(), reader.listen(0)
    for event in (Updates, Progress, Progress, None):
        interrupt_next(monkeypatch, listen._loop)
        with pytest.raises(KeyboardInterrupt):
            next(listen)
        if event is None:
            with pytest.raises(StopIteration):
                next(listen)
        else:
            heard.took(next(listen))
    assert heard.rows == [(1, "a", 1, 1)]
    assert heard.progress == [Antichain.of(2), Antichain()]


async def test_rows_that_were_interrupted_do_not_end_as_if_they_were_all(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table((key, "a", 0, 1) for key in range(500)), 1)
        for read in (await reader.snapshot(0), await reader.diffs(0, 1)):
            batches = read.to_batches()
            assert await step(batches, 1) is None
            for _ in range(2):
                with pytest.raises(UsageError, match="interrupted"):
                    await anext(batches)
            await batches.aclose()
            assert len(await read.to_pylist()) == 500


def test_blocking_rows_that_were_interrupted_do_not_end_as_if_they_were_all(blocking: tuple[Any, Any], monkeypatch):
    writer, reader = blocking
    writer.append(table((key, "a", 0, 1) for key in range(500)), 1)
    snapshot = reader.snapshot(0)
    [split] = snapshot.splits(1)
    for read, loop in ((snapshot.to_batches, snapshot._loop), (split.read, process_loop())):
        batches = read()
        interrupt_next(monkeypatch, loop)
        with pytest.raises(KeyboardInterrupt):
            batches.read_next_batch()
        for _ in range(2):
            with pytest.raises(UsageError, match="interrupted"):
                batches.read_next_batch()
        assert read().read_all().num_rows == 500
