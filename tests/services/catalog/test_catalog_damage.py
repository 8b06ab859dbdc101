"""Catalog servers when another process damages the catalog, edits it, or asks for an edit that cannot be."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from client.support import Place, file_place, memory_place
from grpc_health.v1 import health_pb2, health_pb2_grpc
from services.catalog.cataloging import (
    ENVIRONMENT,
    catalog_process,
    catalog_server,
    found,
    put,
    remote_catalog,
    stub_of,
)
from services.catalog.test_catalog_rpcs import ask, commit

from persist import aio
from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.log.shard_log import open_shard_log
from persist.client.catalog.port import RowLog
from persist.core.catalog.errors import Fenced, NotWritable
from persist.core.catalog.kinds import CONFIG, FENCE_TOKEN, SETTING
from persist.core.catalog.objects import FenceTokenKey, Setting, SettingKey
from persist.core.catalog.open_rules import DATA_VERSION
from persist.errors import CorruptData, InvalidArgument
from persist.v1 import catalog_pb2 as pb
from persist.wire.catalog.rows import CODEC
from persist.wire.catalog.rpc_footprint import key_bytes


@asynccontextmanager
async def log_of(place: Place) -> AsyncIterator[RowLog]:
    async with await aio.embedded(blob=place.blob, consensus=place.consensus) as client:
        log = await open_shard_log(client, ENVIRONMENT)
        try:
            yield log
        finally:
            await log.close()


async def health(endpoint: str, service: str) -> int:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)).status


@pytest.mark.timeout_s(240)
async def test_servers_of_a_damaged_catalog_say_so_and_end_on_request(tmp_path: Path):
    place = file_place(tmp_path)
    async with catalog_process(place, "--generation", "1") as process, remote_catalog(process.endpoint) as catalog:
        mine = await catalog.join()
        await put(mine, "a", "1")
        async with log_of(place) as log:
            gone = CODEC.encode(SETTING.tag, SettingKey("a"), Setting("2"))
            while await log.append([(gone, -1)], upper := await log.upper(), expected_upper=upper) is not None:
                pass
        async with asyncio.timeout(100):
            for asking in (catalog.status(), catalog.open_read_only(), mine.sync(), put(mine, "b", "1")):
                with pytest.raises(CorruptData):
                    await asking
            for part in ("persist.v1.CatalogService", "persist.catalog.leader"):
                while await health(process.endpoint, part) != health_pb2.HealthCheckResponse.NOT_SERVING:
                    await asyncio.sleep(0.05)
            process.signal(signal.SIGTERM)
            code, said = await process.end()
        assert code == 0
        assert "a retraction of what is not there" in said


async def test_edit_that_is_refused_takes_nothing_from_the_leader():
    async with catalog_server(memory_place(), generation=1) as server, stub_of(server.endpoint) as stub:
        opened = await ask(stub, "OpenSession", pb.OpenSessionRequest())
        token = pb.EditRowRequest(kind=FENCE_TOKEN.tag, key=key_bytes(FENCE_TOKEN, FenceTokenKey()), value=b"\x08\x01")
        version = pb.EditRowRequest(kind=CONFIG.tag, key=key_bytes(CONFIG, DATA_VERSION), value=b"\x08\x63")
        for request in (token, version):
            with pytest.raises(InvalidArgument):
                await ask(stub, "EditRow", request)
            assert (await ask(stub, "GetStatus", pb.GetStatusRequest())).role == pb.CATALOG_ROLE_LEADER
        await commit(stub, opened.session, opened.upper)


async def test_server_fenced_by_an_edit_leads_again_when_it_is_asked():
    place = memory_place()
    async with (
        catalog_server(place, generation=1) as server,
        remote_catalog(server.endpoint) as catalog,
        log_of(place) as log,
    ):
        mine = await catalog.join()
        await put(mine, "a", "1")
        for number in range(2):
            await DurableCatalog(log).edit(SETTING, SettingKey("a"), Setting(f"edited {number}"))
            with pytest.raises(Fenced):
                await put(mine, "b", "1")
            assert (await catalog.status()).role == "fenced"
            with pytest.raises(NotWritable):
                await catalog.join()
            mine = await catalog.open(1)
            assert found(mine, "a") == f"edited {number}"
            await put(mine, "a", "again")
        # Two servers of one generation do not take it from each other.
        async with catalog_server(place, generation=1) as second, remote_catalog(second.endpoint) as other:
            await put(await other.join(), "a", "2")
            with pytest.raises(NotWritable) as refused:
                await catalog.open(1)
            assert refused.value.details["leader"] == second.endpoint
