"""What CatalogService returns is so: commits that look like nothing, or were made for another epoch, or twice."""

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from client.support import Place, memory_place
from forked import run_fork
from services.catalog.cataloging import ENVIRONMENT, catalog_server, found, new_token, put, remote_catalog, stub_of
from services.catalog.test_catalog_rpcs import ask, changes, commit, setting

from persist import aio
from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.log.shard_log import open_shard_log
from persist.core.catalog.errors import FencedByEpoch, NotWritable, OutOfSync
from persist.core.catalog.kinds import SETTING
from persist.core.catalog.objects import FenceToken, Setting, SettingKey
from persist.errors import Indeterminate, InvalidArgument
from persist.testing.twice import TwiceProxy, _raw
from persist.v1 import catalog_pb2 as pb
from persist.wire.catalog.rpc_footprint import key_bytes

KEY = SettingKey("k")


class Losing(TwiceProxy):
    """Delivers every call once, and loses the next answer to the method ``losing``."""

    losing = ""

    def _handler(self, method: str) -> Any:
        if method.rpartition("/")[2] in {"ReadRows", "WatchChanges", "DumpRows"}:
            return grpc.unary_stream_rpc_method_handler(self._stream(method), _raw, _raw)
        return super()._handler(method)

    def _unary(self, method: str, name: str) -> Callable[..., Any]:
        async def handle(request: bytes, context: Any) -> bytes:
            given = {"timeout": context.time_remaining(), "metadata": context.invocation_metadata()}
            try:
                answer: bytes = await self._channels[0].unary_unary(method, _raw, _raw)(request, **given)
            except grpc.aio.AioRpcError as error:
                context.set_trailing_metadata(tuple(error.trailing_metadata() or ()))
                await context.abort(error.code(), error.details() or "")
            if name == self.losing:
                self.losing = ""
                await context.abort(grpc.StatusCode.UNAVAILABLE, "lost by the proxy")
            return answer

        return handle


async def test_set_to_what_memory_shows_is_not_acknowledged_while_another_session_wrote_something_else():
    async with catalog_server(memory_place(), generation=1) as server, remote_catalog(server.endpoint) as catalog:
        first, second = await catalog.join(), await catalog.join()
        await put(first, "k", "1")
        await put(second, "k", "2") if found(second, "k") else await second.set(SETTING, {KEY: Setting("2")})
        assert found(first, "k") == "1"
        again = first.transaction()
        again.set(SETTING, KEY, Setting("1"))
        with pytest.raises(OutOfSync):
            await first.commit(again)
        assert found(first, "k") == "2", "what came first is taken over"
        await put(second, "k", "3")
        await first.set(SETTING, {KEY: Setting("2")})
        assert (await catalog.open_read_only()).get(SETTING, KEY) == Setting("2")


async def test_transaction_that_only_read_is_checked():
    async with catalog_server(memory_place(), generation=1) as server, remote_catalog(server.endpoint) as catalog:
        first, second = await catalog.join(), await catalog.join()
        reading = first.transaction()
        assert reading.get(SETTING, KEY) is None
        await put(second, "other", "1")
        assert await first.commit(reading) == second.upper
        reading = first.transaction()
        assert reading.get(SETTING, KEY) is None
        await put(second, "k", "1")
        with pytest.raises(OutOfSync):
            await first.commit(reading)


async def test_commit_of_another_epoch_is_refused_whatever_session_it_names():
    async with catalog_server(memory_place(), generation=1) as server, stub_of(server.endpoint) as stub:
        old = await ask(stub, "OpenSession", pb.OpenSessionRequest())
        new = await ask(stub, "OpenSession", pb.OpenSessionRequest(generation=1))
        with pytest.raises(InvalidArgument, match="epoch"):
            await commit(stub, new.session, old.upper)
        assert (await ask(stub, "GetStatus", pb.GetStatusRequest())).upper == new.upper
        await commit(stub, new.session, new.upper, b"2" * 16)


async def test_commit_that_only_read_what_was_changed_meanwhile_is_refused():
    async with catalog_server(memory_place(), generation=1) as server, stub_of(server.endpoint) as stub:
        opened = await ask(stub, "OpenSession", pb.OpenSessionRequest())
        read = pb.CatalogFootprint(key_kinds=["setting"], keys=[key_bytes(SETTING, KEY)])
        await commit(stub, opened.session, opened.upper, b"1" * 16, changes=changes((setting("k", "1"), 1)))
        with pytest.raises(OutOfSync):
            await commit(stub, opened.session, opened.upper, b"2" * 16, footprint=read)


async def test_one_token_or_one_request_with_two_bodies_is_refused():
    async with catalog_server(memory_place(), generation=1) as server, stub_of(server.endpoint) as stub:
        opened = await ask(stub, "OpenSession", pb.OpenSessionRequest())
        session, base, token = opened.session, opened.upper, new_token()
        one, two = changes((setting("k", "1"), 1)), changes((setting("k", "2"), 1))
        first = (await commit(stub, session, base, b"1" * 16, changes=one, token=token)).ts
        for request_id, name in ((b"1" * 16, token), (b"2" * 16, token), (b"1" * 16, new_token())):
            with pytest.raises(InvalidArgument):
                await commit(stub, session, base, request_id, changes=two, token=name)
        for request_id in (b"1" * 16, b"3" * 16):
            assert (await commit(stub, session, base, request_id, changes=one, token=token)).ts == first
        with pytest.raises(InvalidArgument, match="fingerprint"):
            await commit(stub, session, base, b"4" * 16, changes=one, token=token, body=b"short")


async def test_edit_without_an_answer_tells_no_value_of_its_own_as_the_one_before():
    async with (
        catalog_server(memory_place(), generation=1) as server,
        Losing([server.endpoint]) as proxy,
        remote_catalog(proxy.endpoint) as catalog,
    ):
        assert await catalog.edit(SETTING, KEY, Setting("1")) is None
        for value in (Setting("2"), None):
            proxy.losing = "EditRow"
            with pytest.raises(Indeterminate, match="look what is there"):
                await catalog.edit(SETTING, KEY, value)
            assert proxy.losing == ""
            assert (await catalog.open_read_only()).get(SETTING, KEY) == value
        assert await catalog.edit(SETTING, KEY, Setting("3")) is None
        assert await catalog.edit(SETTING, KEY, Setting("4")) == Setting("3")


async def test_a_server_that_is_asked_leads_again_after_its_generation_was_set_back(tmp_path: Path):
    place = Place(blob=f"file:{tmp_path}/blob", consensus=f"sqlite:{tmp_path}/consensus.db")
    at = ("--blob", place.blob, "--consensus", place.consensus)
    words = ("catalog", "repair", "--generation", "1", "--epoch", "1", "--commit", *at)
    async with (
        catalog_server(place, generation=900_000) as server,
        remote_catalog(server.endpoint) as catalog,
        await aio.embedded(blob=place.blob, consensus=place.consensus) as client,
    ):
        session = await catalog.join()
        await put(session, "k", "1")
        refused = await asyncio.to_thread(command, *words)
        assert refused.returncode != 0
        assert f"leader={server.endpoint}" in refused.stderr
        await put(session, "k", "2")
        # A program does it, which asks no server.
        await DurableCatalog(await open_shard_log(client, ENVIRONMENT)).repair(token=FenceToken(1, 1), commit=True)
        # Or the server has looked meanwhile, and says for itself that it does not lead.
        with pytest.raises((FencedByEpoch, NotWritable)):
            await put(session, "k", "3")
        opened = await catalog.open(1)
        assert opened.token == FenceToken(1, 2)
        await put(opened, "k", "4")
        status = await catalog.status()
        assert (status.role, status.leader) == ("leader", server.endpoint)
        async with catalog_server(place) as other, remote_catalog(other.endpoint) as following:
            assert (await following.status()).leader == server.endpoint


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return run_fork("persist_cli", *words)
