"""An append whose answer is lost: found out in time, or reported so, and never made twice."""

import asyncio
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from services.process import ShardProcess
from services.proxy import Proxy, proxy_to
from services.webhook.senders import rows

from persist import Indeterminate, OutcomeForgotten, PersistError
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
    """Its first append happens, and the shard has forgotten by then that it did; and what is read then is cut off."""

    proxy: Proxy
    appended = 0

    def _sent(self, *call: Any) -> Any:
        outcome = super()._sent(*call)
        self.appended += 1
        if self.appended > 1:
            return outcome
        self.proxy.silent = True
        raise OutcomeForgotten("whether it was appended is forgotten", hint="read the table")


def forgotten(place: Location, proxy: Proxy, cut: Callable[[], object]) -> None:
    source = create(place, "hook", "webhook", {"check": "none", "idempotencyHeader": "Key"})
    memory = Memory(24)
    table = Forgetful(client(place), source, "rows", memory, lambda seconds: None)
    table.proxy = proxy
    batch = Rows(definition_of(source.definition)).of([Delivery(b"{}", {}, system().now_ms(), "a")]).rows
    wanted: Callable[[], pa.RecordBatch] = lambda: batch.slice(0, 0 if known(memory) else 1)  # noqa: E731
    with pytest.raises(Indeterminate):
        table.append(wanted, system().monotonic() + 3.0)
    proxy.silent = False
    cut()
    assert table.append(wanted, system().monotonic() + 30.0) is None
    assert table.appended == 1
    assert known(memory)
    table.close()
    assert rows(place, "body") == {"{}": 1}
    release(place)


async def test_an_append_that_is_forgotten_and_cannot_be_looked_up_is_in_doubt(tmp_path: Path):
    shards = await ShardProcess(tmp_path).start()
    async with proxy_to(shards.endpoint) as proxy:
        place = Location(endpoint=proxy.endpoint, blob=f"file:{tmp_path}/blob")
        cut = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, proxy.cut)
        await asyncio.to_thread(forgotten, place, proxy, cut)
    await shards.kill()


def test_of_what_others_appended_a_part_is_not_remembered(tmp_path: Path):
    """A repetition is answered once the times before what was looked at are applied, so not by rows of later ones."""
    place = Location(directory=str(tmp_path / "data"))
    source = create(place, "hook", "webhook", {"check": "none", "idempotencyHeader": "Key"})
    memory = Memory(24)
    made = Rows(definition_of(source.definition))

    def row(key: str) -> pa.RecordBatch:
        body = os.urandom(200_000).hex().encode()
        return made.of([Delivery(b'"' + body + b'"', {}, system().now_ms(), key)]).rows

    mine = WebhookTable(client(place), source, "rows", memory, lambda seconds: None)
    mine.append(lambda: row("mine"), system().monotonic() + 30.0)
    before = set(tmp_path.glob("data/**/*"))
    other = WebhookTable(client(place), source, "rows", Memory(24), lambda seconds: None)
    for key in ("b", "c"):
        other.append(functools.partial(row, key), system().monotonic() + 30.0)
    # The second of them cannot be read for now.
    parts = sorted(
        (each for each in set(tmp_path.glob("data/**/*")) - before if each.is_file() and each.stat().st_size > 200_000),
        key=lambda each: each.stat().st_mtime_ns,
    )
    assert len(parts) == 2
    away = parts[1].rename(tmp_path / "away")
    with pytest.raises(PersistError):
        mine.beat(system().now_ms(), 1.0)
        mine.append(lambda: row("d"), system().monotonic() + 1.0)
    assert memory.of("b", system().now_ms()) is None
    away.rename(parts[1])
    assert mine.append(lambda: row("d").slice(0, 0), system().monotonic() + 30.0) is None
    mine.append(lambda: row("d"), system().monotonic() + 30.0)
    assert all(memory.of(key, system().now_ms()) for key in ("mine", "b", "c", "d"))
    for each in (mine, other):
        each.close()
    release(place)
