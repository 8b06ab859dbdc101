"""What is closed says so, in both flavours alike: a typed error with the next step, and releasing does nothing."""

import asyncio
import functools
import inspect
import pickle
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from client.blocking import surface
from client.support import SCHEMA, table

import persist
from persist import ShardId, aio
from persist.core.catalog.kinds import SETTING
from persist.core.catalog.objects import SettingKey
from persist.runtime import system
from persist.sources import MintRules, RemapSource, SourceKind

Calls = Mapping[str, Callable[[], Any]]

REMAP = RemapSource(remap=ShardId.new(), kind=SourceKind.LSN, incarnation="one", rules=MintRules())


def place() -> dict[str, Any]:
    name = system().random_bytes(8).hex()
    return {"blob": f"mem:{name}", "consensus": f"mem:{name}"}


def calls(of: Mapping[str, Any]) -> Calls:
    """Something of everything that needs the client."""
    client, writer, reader, snapshot = of["client"], of["writer"], of["reader"], of["snapshot"]
    return {
        "open": lambda: client.open(ShardId.new(), schema=SCHEMA),
        "recent_upper": lambda: client.recent_upper(writer.shard),
        "table": lambda: client.table("t", schema=SCHEMA),
        "oracle": lambda: client.oracle(),
        "minter": lambda: client.minter(),
        "catalog": lambda: client.catalog("test"),
        "settle": lambda: client.settle(),
        "append": lambda: writer.append([], 20),
        "writer.resolve": lambda: writer.resolve(),
        "writer.expire": lambda: writer.expire(),
        "writer.batch_spec": lambda: writer.batch_spec(),
        "reader.snapshot": lambda: reader.snapshot(3),
        "reader.listen": lambda: reader.listen(3),
        "reader.pin": lambda: reader.pin(),
        "snapshot.to_arrow": lambda: snapshot.to_arrow(),
        "snapshot.splits": lambda: snapshot.splits(2),
        "snapshot.to_batches": lambda: snapshot.to_batches(),
        "diffs.to_pylist": lambda: of["diffs"].to_pylist(),
        "since.expire": lambda: of["since"].expire(),
        "table.insert": lambda: of["table"].insert([{"id": 1, "name": "a"}]),
        "oracle.read_ts": lambda: of["oracle"].read_ts(),
        "minter.bindings": lambda: of["minter"].bindings(REMAP),
        "catalog.is_initialized": lambda: of["catalog"].is_initialized(),
        "opened.sync": lambda: of["opened"].sync(),
        "opened.allocate": lambda: of["opened"].allocate("user"),
        "next of a listen": lambda: next(of["listen"]) if hasattr(of["listen"], "__next__") else anext(of["listen"]),
    }


def ends(of: Mapping[str, Any]) -> Calls:
    """What releases something."""
    listen = of["listen"]
    return {
        "reader": lambda: of["reader"].expire(),
        "table": lambda: of["table"].expire(),
        "minter": lambda: of["minter"].close(),
        "opened": lambda: of["opened"].close(),
        "catalog": lambda: of["catalog"].close(),
        "listen": lambda: listen.close() if hasattr(listen, "close") else listen.aclose(),
        "client": lambda: of["client"].close(),
    }


async def waited(call: Callable[[], Any]) -> Any:
    found = call()
    return await found if inspect.isawaitable(found) else found


def blocking_things() -> dict[str, Any]:
    """A closed client and what was opened with it."""
    client = persist.embedded(**place())
    writer, reader = client.open(ShardId.new(), schema=SCHEMA)
    writer.append(table([(1, "a", 3, 1)]), 10)
    catalog = client.catalog("test")
    of: dict[str, Any] = {
        "client": client, "writer": writer, "reader": reader, "snapshot": reader.snapshot(5),
        "listen": reader.listen(0), "diffs": reader.diffs(1, 5), "since": client.open_since("hold", writer.shard),
        "oracle": client.oracle(), "table": client.table("t", schema=SCHEMA), "minter": client.minter(),
        "catalog": catalog, "opened": catalog.open(1),
    }  # fmt: skip
    of["batches"] = of["snapshot"].to_batches()
    client.close()
    return of


async def asyncio_things() -> dict[str, Any]:
    """The same for asyncio."""
    client = await aio.embedded(**place())
    writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
    await writer.append(table([(1, "a", 3, 1)]), 10)
    catalog = await client.catalog("test")
    of: dict[str, Any] = {
        "client": client, "writer": writer, "reader": reader, "snapshot": await reader.snapshot(5),
        "listen": await reader.listen(0), "diffs": await reader.diffs(1, 5),
        "since": await client.open_since("hold", writer.shard), "oracle": await client.oracle(),
        "table": await client.table("t", schema=SCHEMA), "minter": client.minter(), "catalog": catalog,
        "opened": await catalog.open(1),
    }  # fmt: skip
    await client.close()
    return of


def test_closed_client_refuses_every_blocking_call_and_lets_go_of_all():
    of = blocking_things()
    for name, call in calls(of).items():
        with pytest.raises(persist.UsageError, match="the client is closed") as refused:
            call()
        assert refused.value.hint == "open another client", name
    for read in (of["batches"].read_next_batch, lambda: pa.table(of["snapshot"])):
        with pytest.raises(persist.UsageError, match="the client is closed"):
            read()
    with pytest.raises(persist.UsageError, match="the client is closed"), of["client"].transaction():
        pass
    for call in ends(of).values():
        call()


async def test_closed_client_refuses_every_asyncio_call_and_lets_go_of_all():
    of = await asyncio_things()
    for name, call in calls(of).items():
        with pytest.raises(persist.UsageError, match="the client is closed") as refused:
            await waited(call)
        assert refused.value.hint == "open another client", name
    for call in ends(of).values():
        await waited(call)


GIVEN: Mapping[str, Any] = {
    "source": REMAP, "times": [], "exports": {}, "generation": 1, "kind": SETTING, "key": SettingKey("k"),
    "value": None, "objects": {}, "name": "user", "to": 1, "retention_ms": None, "boot_ms": 0,
    "shard": ShardId.new(), "schema": SCHEMA, "writer_id": "w" + "0" * 8 + "-0000" * 3 + "-" + "0" * 12,
    "environment": "e", "names": ["t"], "text": "SELECT 1", "work": lambda transaction: None, "runner": None,
}  # fmt: skip
"""What is given to parameters that need something, by their names."""
ENDS = {"close", "expire", "__enter__", "__exit__", "__iter__"}


def surface_calls(held: Any, given_too: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every public method of a handle but those that release something, called with as little as it takes."""
    for name, member in surface.members(type(held)):
        if name in ENDS or not inspect.isfunction(member):
            continue
        needed = [
            each
            for each in inspect.signature(member).parameters.values()
            if each.default is each.empty and each.name != "self" and each.kind is not each.VAR_POSITIONAL
        ]
        values = {**GIVEN, **given_too}
        given = [values[each.name] for each in needed if each.kind is not each.KEYWORD_ONLY]
        named = {each.name: values[each.name] for each in needed if each.kind is each.KEYWORD_ONLY}
        yield name, functools.partial(getattr(held, name), *given, **named)


def begun(call: Callable[[], Any]) -> None:
    """Call, and begin a feed or a block that this returns."""
    found = call()
    next(found) if hasattr(found, "__next__") else found.__enter__()


def opened_once() -> tuple[persist.Client, dict[str, Any]]:
    """A handle of every class that has an end of its own."""
    client = persist.embedded(**place())
    writer, reader = client.open(ShardId.new(), schema=SCHEMA)
    writer.append(table([(1, "a", 3, 1)]), 10)
    minter = client.minter()
    minter.mint(REMAP)
    catalog = client.catalog("test")
    return client, {
        "Listen": reader.listen(9), "Minter": minter, "WritableCatalog": catalog.open(1),
        "ReadableCatalog": catalog.open_read_only(), "Catalog": catalog,
        "Environment": client.environment("another"), "Client": client,
    }  # fmt: skip


def test_every_call_of_what_was_closed_says_so_at_once():
    held = opened_once()[1]
    transaction = {"transaction": held["WritableCatalog"].transaction()}
    closing = {owner.__name__ for owner in surface.classes() if hasattr(owner, "close")}
    assert closing == held.keys()
    for name, each in held.items():
        each.close()
        called = 0
        for method, call in surface_calls(each, transaction):
            with pytest.raises(persist.UsageError, match="is closed") as refused:
                begun(call)
            assert refused.value.hint, (name, method)
            called += 1
        assert called
        each.close()


def test_what_a_closed_catalog_opened_is_of_no_use_any_more():
    with persist.embedded(**place()) as client:
        catalog = client.catalog("test")
        opened = [catalog.open(1), catalog.open_read_only(), catalog.open_savepoint(1)]
        opened[0].close()
        opened[1].sync()
        catalog.close()
        for each in opened:
            with pytest.raises(persist.UsageError, match="catalog is closed"):
                each.sync()


def test_a_handle_that_is_pickled_says_what_to_ship_instead():
    client, held = opened_once()
    writer, reader = client.open(ShardId.new(), schema=SCHEMA)
    writer.append(table([(1, "a", 3, 1)]), 10)
    snapshot, kept = reader.snapshot(5), client.table("t", schema=SCHEMA, mode="wal")
    with client.transaction() as transaction:
        more = {"TableTransaction": transaction, "CatalogTransaction": held["WritableCatalog"].transaction()}
        more |= {"Table": kept, "Oracle": client.oracle(), "WriteHandle": writer, "ReadHandle": reader}
        more |= {"Snapshot": snapshot, "Diffs": reader.diffs(1, 5), "SinceHandle": client.open_since("h", writer.shard)}
        writer.append(table([(2, "b", 13, 1)]), 20)
        more["Compaction"] = client.begin_compaction(writer.shard)
        assert {*held, *more} == {owner.__name__ for owner in surface.classes()}
        for name, each in {**held, **more}.items():
            inner = each._inner
            for one in (each, inner) if name != "CatalogTransaction" else (each,):
                with pytest.raises(persist.UsageError, match="cannot be pickled") as refused:
                    pickle.dumps(one)
                assert "splits" in refused.value.hint
    # What is made to be shipped still is.
    [split] = pickle.loads(pickle.dumps(snapshot.splits(1)))
    assert split.to_arrow().num_rows == 1
    client.close()


def test_a_listen_that_is_closed_from_another_thread_tells_who_waits():
    with persist.embedded(**place()) as client:
        writer, reader = client.open(ShardId.new(), schema=SCHEMA)
        writer.append(table([(1, "a", 3, 1)]), 10)
        listen = reader.listen(9)
        assert isinstance(next(listen), persist.Progress)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(next, listen)
            while listen._inner._waiter is None:
                assert not waiting.done()
            with pytest.raises(persist.UsageError, match="waits for this listen already"):
                next(listen)
            listen.close()
            with pytest.raises(persist.UsageError, match="the listen is closed"):
                waiting.result(60)
        writer.append(table([(2, "b", 13, 1)]), 20)
        with pytest.raises(persist.UsageError, match="the listen is closed"):
            next(listen)


async def test_a_task_that_waits_for_a_listen_is_cancelled_as_any_other():
    async with await aio.embedded(**place()) as client:
        _, reader = await client.open(ShardId.new(), schema=SCHEMA)
        listen = await reader.listen(0)
        waiting = asyncio.ensure_future(anext(listen))
        while listen._waiter is None:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await listen.aclose()


def test_closed_listen_and_expired_reader_say_so_to_blocking_callers():
    with persist.embedded(**place()) as client:
        writer, reader = client.open(ShardId.new(), schema=SCHEMA)
        writer.append(table([(1, "a", 3, 1)]), 10)
        snapshot, other = reader.snapshot(5), reader.listen(0)
        with reader.listen(0) as listen:
            next(listen)
        with pytest.raises(persist.UsageError, match="the listen is closed") as refused:
            next(listen)
        assert refused.value.hint
        reader.expire()
        for call in (lambda: next(other), snapshot.to_arrow, lambda: snapshot.splits(1), lambda: reader.snapshot(5)):
            with pytest.raises(persist.UsageError, match="the reader was expired") as refused:
                call()
            assert refused.value.hint == "open a new reader"


async def test_closed_listen_says_so_and_an_ended_one_just_ends():
    async with await aio.embedded(**place()) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        async with await reader.listen(0) as listen:
            pass
        with pytest.raises(persist.UsageError, match="the listen is closed"):
            await anext(listen)
        await writer.append([], [])
        ended = await reader.listen(0)
        assert [type(event) async for event in ended] == [persist.Progress]
        assert await anext(ended, None) is None


async def test_closing_a_client_tells_whoever_waits_for_a_listen():
    client = await aio.embedded(**place())
    _, reader = await client.open(ShardId.new(), schema=SCHEMA)
    waiting = asyncio.ensure_future(anext(await reader.listen(0)))
    while not client.location.listens:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(persist.UsageError, match="the client is closed"):
        await waiting


async def test_who_waits_for_a_listen_that_several_close_was_cancelled_by_none():
    async with await aio.embedded(**place()) as client:
        _, reader = await client.open(ShardId.new(), schema=SCHEMA)
        listen = await reader.listen(0)
        waiting = asyncio.ensure_future(anext(listen))
        while listen._waiter is None:
            await asyncio.sleep(0)
        await asyncio.gather(*(listen.aclose() for _ in range(3)))
        with pytest.raises(persist.UsageError, match="the listen is closed"):
            await waiting


def test_stream_of_rows_outlives_the_names_of_what_it_reads():
    def batches() -> pa.RecordBatchReader:
        client = persist.embedded(**place())
        writer, reader = client.open(ShardId.new(), schema=SCHEMA)
        writer.append(table([(1, "a", 3, 1)]), 10)
        return reader.snapshot(5).to_batches()

    assert batches().read_all().num_rows == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, StopIteration])
def test_error_in_a_block_keeps_its_kind_and_writes_nothing(error: type[BaseException]):
    def fail(client: persist.Client, table: persist.Table) -> None:
        with client.transaction() as transaction:
            transaction.insert(table, [{"id": 1, "name": "a"}])
            raise error

    with persist.embedded(**place()) as client:
        table = client.table("t", schema=SCHEMA, mode="wal")
        with pytest.raises(error):
            fail(client, table)
        assert table.snapshot().to_pylist() == []
