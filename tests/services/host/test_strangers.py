"""What callers, logs and metrics get when a store is away: enough for each, and never a secret."""

import asyncio
import contextlib
import json
import re
import signal
from collections.abc import AsyncIterator, Iterator

import grpc.aio
import pytest
from forked import child_environment
from services.host.hostile import meaning
from services.process import ServeProcess, serve_process
from services.support import append, new_shard
from sure import heard

from persist.errors import Determinate, LocationError, PersistError, StoreReadOnly
from persist.runtime import system
from persist.settings import Settings
from persist.testing.servers import Server, fresh_schema, start_postgres
from persist.v1 import shard_pb2 as pb
from persist.v1.shard_pb2_grpc import PersistShardStub
from persist.wire import rpc
from persist_host import Address, Strangers, start
from persist_shard import shard_spec

CANARY = "C4nary#Tw1tter"
PIECES = re.compile("C4nary|Tw1tter")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with start_postgres() as server:
        yield server


def uri_of(server: Server) -> str:
    return f"postgres://postgres:{CANARY}@127.0.0.1:{server.port}/postgres"


async def refused(call) -> PersistError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return meaning(caught.value)


async def test_store_away_tells_callers_an_id_and_the_log_the_rest(tmp_path, postgres):
    options = ("--consensus", uri_of(postgres), "--blob", f"file:{tmp_path}/blob", "--log-level", "info")
    async with serve_process("shard", *options, PERSIST_STORE_TIMEOUT_MS="300") as process:
        shard = new_shard()
        async with grpc.aio.insecure_channel(process.endpoint) as channel:
            stub = PersistShardStub(channel)
            await stub.Open(pb.OpenRequest(shard_id=shard, create=True), timeout=20)
            postgres.kill()
            try:
                errors = [await refused(stub.Open(pb.OpenRequest(shard_id=shard), timeout=3)) for _ in range(2)]
                session = stub.Session()
                request = rpc.request_of(shard, append(0, 1))
                call = rpc.call_of(1, 3000, rpc.BY_FIELD["compare_and_append"], request)
                await session.write(pb.SessionRequest(calls=[call]))
                with pytest.raises(PersistError) as failed:
                    rpc.outcome_in((await heard(session)).answers[0])
                errors.append(failed.value)
                session.cancel()
            finally:
                postgres.start()
        said = await ended(process)
    for error in errors:
        assert isinstance(error, LocationError)
        for word in ("postgres://", "127.0.0.1", str(postgres.port), "5432", "Connection refused"):
            assert word not in str(error)
        assert re.fullmatch("e[0-9a-f]{12}", error.details["error_id"])
        [line] = [line for line in said if line.get("error_id") == error.details["error_id"]]
        assert line["error_uri"] == f"postgres://postgres@127.0.0.1:{postgres.port}/postgres"
        assert "refused" in str(line["error_detail"])
    assert len([line for line in said if line.get("error_id") == errors[0].details["error_id"]]) == 1
    assert not PIECES.search(json.dumps(said) + "".join(map(str, errors)))


async def ended(process: ServeProcess) -> list[dict[str, object]]:
    """The lines of its log."""
    process.signal(signal.SIGTERM)
    _, said = await process.end()
    return [json.loads(line) for line in said.splitlines()]


async def test_store_away_is_seen_and_traffic_comes_all_the_same(tmp_path, postgres):
    # Its own location: another test has one there already.
    async with shard_over(fresh_schema(uri_of(postgres)), tmp_path) as side:
        assert await get(side, "metrics", has='persist_store_up{store="consensus"} 1')
        assert (await get(side, "readyz", has="200 OK")).endswith("ready\n")
        postgres.kill()
        try:
            metrics = await get(side, "metrics", has='persist_store_up{store="consensus"} 0')
            assert 'persist_store_up{store="blob"} 1' in metrics
            assert await get(side, "metrics", has='persist_store_silent_seconds{store="consensus"} 0.')
            assert "200 OK" in await get(side, "readyz", has="ready\nconsensus: no answer for")
            assert "200 OK" in await get(side, "healthz", has="ok")
        finally:
            postgres.start()
        assert await get(side, "metrics", has='persist_store_up{store="consensus"} 1')
        assert (await get(side, "readyz", has="200 OK")).endswith("ready\n")


@contextlib.asynccontextmanager
async def shard_over(consensus: str, tmp_path) -> AsyncIterator[Address]:
    settings = Settings(store_pulse_ms=50)
    host, _ = await start(shard_spec(f"file:{tmp_path}/blob", consensus), "127.0.0.1:0", settings)
    try:
        yield await host.open_side(Address("127.0.0.1", 0))
    finally:
        await host.stop(notice=0, grace=0)


async def get(side: Address, path: str, *, has: str) -> str:
    """What the side port says, once it says that."""
    while True:
        reader, writer = await asyncio.open_connection(side.host, side.port)
        writer.write(f"GET /{path} HTTP/1.1\r\n\r\n".encode())
        text = (await reader.read()).decode()
        writer.close()
        if has in text:
            return text
        await asyncio.sleep(0.02)


def test_details_are_told_by_name_and_the_rest_is_withheld(caplog):
    strangers = Strangers(system())
    plain = Determinate("the deadline passed", hint="retry", retry_after_ms=5)
    assert strangers.shown(plain, "m") is plain
    told = strangers.shown(StoreReadOnly("a standby", hint="elsewhere", uri="postgres://db", sqlstate="25006"), "m")
    assert (type(told), told.message, told.hint) == (StoreReadOnly, "a standby", "elsewhere")
    assert set(told.details) == {"sqlstate", "error_id"}
    away = Determinate("status 14: connect failed: ipv4:10.1.2.3:7100: refused")
    assert "10.1.2.3" not in str(strangers.shown(away, "m"))
    assert [record.error_uri for record in caplog.records if hasattr(record, "error_uri")] == ["postgres://db"]
    assert "10.1.2.3" in caplog.text
    unheard = strangers.shown(Determinate("no answer from db.internal:7100 in time"), "m")
    assert unheard.message == "no answer from *** in time"


@pytest.mark.parametrize(("umask", "file", "folder"), [("022", "640", "750"), ("077", "600", "700")])
async def test_what_is_made_is_not_for_everybody(tmp_path, umask, file, folder):
    code = (
        f"import os, sys; os.umask(0o{umask}); import persist, pyarrow as pa\n"
        f"with persist.embedded({str(tmp_path / 'data')!r}, settings=persist.Settings(inline_part_bytes_max=0)) as c:\n"
        "    w, r = c.open(persist.ShardId.new(), schema=persist.Schema(key={'k': pa.int64()}))\n"
        "    w.append([(({'k': 1}, {}), 0, 1)], new_upper=1)\n"
        f"for path, folders, files in os.walk({str(tmp_path / 'data')!r}):\n"
        "    print('folder', oct(os.stat(path).st_mode & 0o777)[2:])\n"
        "    for each in files: print('file', oct(os.stat(os.path.join(path, each)).st_mode & 0o777)[2:])\n"
    )
    process = await asyncio.create_subprocess_exec(
        "python", "-c", code, stdout=asyncio.subprocess.PIPE, env=child_environment()
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    assert set(said.decode().splitlines()) == {f"file {file}", f"folder {folder}"}
