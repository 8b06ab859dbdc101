"""What is closed says so, in both flavours alike: a typed error with the next step, and letting go does nothing."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from client.support import SCHEMA, table

import persist
from persist import ShardId, aio
from persist.runtime import system
from persist.sources import MintRules, RemapSource, SourceKind

Calls = Mapping[str, Callable[[], Any]]

REMAP = RemapSource(remap=ShardId.new(), kind=SourceKind.LSN, incarnation="one", rules=MintRules())


def place() -> dict[str, str]:
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
    """What lets go of something."""
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
    of = {
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
    of = {
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
