"""An append whose answer is lost: found out in time, or reported so, and never made twice."""

import asyncio
import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from services.process import ShardProcess
from services.proxy import Proxy, proxy_to
from services.webhook.senders import rows

from persist import Determinate, Indeterminate, OutcomeForgotten, PersistError
from persist.runtime import system
from persist_ingest import Location, Records, create
from persist_ingest.location import client, release
from persist_ingest.receiving.memory import Known, Memory
from persist_ingest.receiving.table import WebhookTable
from persist_ingest.sources.webhook.kind import definition_of
from persist_ingest.sources.webhook.rows import Delivery, Rows


class Deafened(WebhookTable):
    """Loses the answer to its first append, which the server gets."""

    proxy: Proxy
    deafened = False

    def _time(self, left: float) -> int:
        at = super()._time(left)
        self.proxy.deaf, self.deafened = not self.deafened, True
        return at


def tried(place: Location, proxy: Proxy, cut: Callable[[], object], *, named: bool, heals: bool) -> None:
    options = {"check": "none", **({"idempotencyHeader": "Key"} if named else {})}
    source = create(place, "hook", "webhook", options)
    memory = Memory(24) if named else None

    def healed() -> None:
        # Connections that lost something of what was said are of no use any more.
        proxy.deaf = False
        cut()

    def pause(seconds: float) -> None:
        if heals and proxy.deaf:
            healed()

    table = Deafened(client(place), source, "rows", memory, pause)
    table.proxy = proxy
    batch = Rows(definition_of(source.definition)).of([Delivery(b"{}", {}, system().now_ms(), "a")]).rows
    wanted: Callable[[], pa.RecordBatch] = lambda: batch.slice(0, 0 if named and known(memory) else 1)  # noqa: E731
    until = system().monotonic() + 3.0
    if heals:
        assert table.append(wanted, until) is not None
    else:
        with pytest.raises(Indeterminate):
            table.append(wanted, until)
    healed()
    # What a sender that was answered so repeats: under its name it is known, from the table.
    if named:
        assert table.append(wanted, system().monotonic() + 30.0) is None
        assert known(memory)
    table.close()
    table.beat(system().now_ms(), 30.0)
    assert rows(place, "body") == {"{}": 1}
    assert Records(client(place)).source("hook").name == "hook"
    release(place)


def known(memory: Memory | None) -> Known | None:
    return None if memory is None else memory.of("a", system().now_ms())


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("heals", [False, True])
async def test_an_append_whose_answer_is_lost_is_there_once(tmp_path: Path, named: bool, heals: bool):
    shards = await ShardProcess(tmp_path).start()
    async with proxy_to(shards.endpoint) as proxy:
        place = Location(endpoint=proxy.endpoint, blob=f"file:{tmp_path}/blob")
        cut = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, proxy.cut)
        await asyncio.to_thread(tried, place, proxy, cut, named=named, heals=heals)
    await shards.kill()


class Forgetful(WebhookTable):
    """Its first append happens, and the shard has forgotten by then that it did; and the location is away then."""

    leaves: Callable[[], object]
    appended = 0
    is_away = False

    def _sent(self, *call: Any) -> Any:
        outcome = super()._sent(*call)
        self.appended += 1
        if self.appended > 1:
            return outcome
        self.leaves()
        self.is_away = True
        raise OutcomeForgotten("whether it was appended is forgotten", hint="read the table")

    def _caught_up(self, left: float) -> int:
        return super()._caught_up(min(left, 0.2) if self.is_away else left)


def forgotten(place: Location, leaves: Callable[[], object], returns: Callable[[], object]) -> None:
    source = create(place, "hook", "webhook", {"check": "none", "idempotencyHeader": "Key"})
    memory = Memory(24)

    def pause(seconds: float) -> None:
        if table.is_away:
            raise Determinate("its time is up", hint="repeat it")

    table = Forgetful(client(place), source, "rows", memory, pause)
    table.leaves = leaves
    batch = Rows(definition_of(source.definition)).of([Delivery(b"{}", {}, system().now_ms(), "a")]).rows
    wanted: Callable[[], pa.RecordBatch] = lambda: batch.slice(0, 0 if known(memory) else 1)  # noqa: E731
    begun = system().monotonic()
    with pytest.raises(Indeterminate):
        table.append(wanted, begun + 120.0)
    # What is held for reading cannot be released, either, and the sender does not wait for that: it took 30 s.
    assert system().monotonic() - begun < 20.0
    returns()
    table.is_away = False
    assert table.append(wanted, system().monotonic() + 120.0) is None
    assert table.appended == 1
    assert known(memory)
    table.close()
    assert rows(place, "body") == {"{}": 1}
    release(place)


async def test_an_append_that_is_forgotten_and_cannot_be_looked_up_is_in_doubt(tmp_path: Path):
    shards = await ShardProcess(tmp_path).start()
    loop = asyncio.get_running_loop()
    async with proxy_to(shards.endpoint) as proxy:
        place = Location(endpoint=proxy.endpoint, blob=f"file:{tmp_path}/blob")

        async def away() -> None:
            proxy.shut()

        leaves = lambda: asyncio.run_coroutine_threadsafe(away(), loop).result()  # noqa: E731
        returns = lambda: asyncio.run_coroutine_threadsafe(proxy.open(), loop).result()  # noqa: E731
        await asyncio.to_thread(forgotten, place, leaves, returns)
    await shards.kill()


def delivery(source: Any, key: str) -> pa.RecordBatch:
    """Too large to be kept beside the shard's state."""
    body = json.dumps(random.Random(key).randbytes(150_000).hex()).encode()
    return Rows(definition_of(source.definition)).of([Delivery(body, {}, system().now_ms(), key)]).rows


def test_of_what_others_appended_all_is_remembered_or_nothing(tmp_path: Path):
    """A repetition that is recognised is answered once what is known is applied, which a part of a range is not."""
    place = Location(directory=str(tmp_path / "data"))
    source = create(place, "hook", "webhook", {"check": "none", "idempotencyHeader": "Key"})
    memories = (Memory(24), Memory(24))
    one, other = (WebhookTable(client(place), source, "rows", memory, lambda seconds: None) for memory in memories)
    soon = lambda: system().monotonic() + 30.0  # noqa: E731
    first = delivery(source, "a")
    assert one.append(lambda: first.slice(0, 0), soon()) is None
    for key in "bc":
        made = delivery(source, key)
        before = set((tmp_path / "data").rglob("*"))
        assert other.append(functools.partial(made.slice, 0), soon()) is not None
    (last,) = [path for path in set((tmp_path / "data").rglob("*")) - before if path.stat().st_size > 10_000]
    whole = last.read_bytes()
    last.write_bytes(whole[:-100] + bytes(100))
    with pytest.raises(PersistError):
        one.append(lambda: first, soon())
    assert [memories[0].of(key, system().now_ms()) for key in "bc"] == [None, None]
    last.write_bytes(whole)
    assert one.append(lambda: first.slice(0, 0 if memories[0].of("c", system().now_ms()) else 1), soon()) is None
    assert all(memories[0].of(key, system().now_ms()) for key in "bc")
    for table in (one, other):
        table.close()
    release(place)
