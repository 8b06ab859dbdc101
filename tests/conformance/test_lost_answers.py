"""Answers that never come, over a real network to real stores. Source: reliability.md sections 0 and 4, I4."""

import asyncio
from urllib.parse import urlsplit

import pytest
from conformance.handles import T, consensuses, shard
from conformance.workload import contend

from persist.errors import Determinate, Indeterminate
from persist.storage.ports import Entry
from persist.testing.faults import Direction, FaultProxy, Mode
from persist.testing.history import violations

SOON = 0.4


@pytest.fixture(params=["redis", "postgres"])
def remote_uri(request: pytest.FixtureRequest) -> str:
    uri: str = request.getfixturevalue(f"fresh_{request.param}_uri")()
    return uri


def proxied(uri: str, proxy: FaultProxy) -> str:
    return uri.replace(f":{urlsplit(uri).port}/", f":{proxy.port}/")


def before(uri: str) -> FaultProxy:
    parts = urlsplit(uri)
    return FaultProxy(str(parts.hostname), parts.port or 0, seed=1)


async def test_cas_whose_answer_is_dropped_is_indeterminate_and_found_done(remote_uri: str) -> None:
    key = shard()
    async with before(remote_uri) as proxy, consensuses(proxied(remote_uri, proxy)) as [consensus]:
        assert await consensus.compare_and_set(key, -1, b"first", timeout=T)
        proxy.set(Mode.DROP, Direction.DOWN)
        with pytest.raises(Indeterminate):
            await consensus.compare_and_set(key, 0, b"second", timeout=SOON)
        proxy.set(Mode.PASS)
        assert await consensus.head(key, timeout=T) == Entry(seqno=1, data=b"second")
        assert proxy.fired["drop down"] > 0


async def test_cas_that_never_arrives_is_indeterminate_and_found_not_done(remote_uri: str) -> None:
    key = shard()
    async with before(remote_uri) as proxy, consensuses(proxied(remote_uri, proxy)) as [consensus]:
        assert await consensus.compare_and_set(key, -1, b"first", timeout=T)
        proxy.set(Mode.DROP, Direction.UP)
        with pytest.raises(Indeterminate):
            await consensus.compare_and_set(key, 0, b"second", timeout=SOON)
        proxy.set(Mode.PASS)
        assert await consensus.head(key, timeout=T) == Entry(seqno=0, data=b"first")
        assert await consensus.compare_and_set(key, 0, b"third", timeout=T)


async def test_cas_whose_connection_dies_with_the_answer_is_indeterminate(remote_uri: str) -> None:
    key = shard()
    async with before(remote_uri) as proxy, consensuses(proxied(remote_uri, proxy)) as [consensus]:
        assert await consensus.compare_and_set(key, -1, b"first", timeout=T)
        proxy.set(Mode.RESET, Direction.DOWN)
        with pytest.raises(Indeterminate):
            await consensus.compare_and_set(key, 0, b"second", timeout=T)
        proxy.set(Mode.PASS)
        assert await consensus.head(key, timeout=T) == Entry(seqno=1, data=b"second")


async def test_late_answer_never_answers_the_next_command(remote_uri: str) -> None:
    key = shard()
    async with before(remote_uri) as proxy, consensuses(proxied(remote_uri, proxy)) as [consensus]:
        assert await consensus.compare_and_set(key, -1, b"first", timeout=T)
        proxy.set(Mode.STALL, Direction.DOWN)
        for expected in (0, 1):
            with pytest.raises((Indeterminate, Determinate)):
                await consensus.compare_and_set(key, expected, f"late {expected}".encode(), timeout=SOON)
        cancelled = asyncio.ensure_future(consensus.head(shard(), timeout=T))
        await asyncio.sleep(0)
        cancelled.cancel()
        proxy.set(Mode.PASS)
        head = await consensus.head(key, timeout=T)
        assert head is not None
        assert await consensus.scan(key, head.seqno, 5, timeout=T) == [head]
        assert not await consensus.compare_and_set(key, head.seqno - 1, b"wrong", timeout=T)
        assert await consensus.compare_and_set(key, head.seqno, b"next", timeout=T)
        assert await consensus.head(key, timeout=T) == Entry(seqno=head.seqno + 1, data=b"next")


async def test_read_whose_answer_is_dropped_is_determinate(remote_uri: str) -> None:
    key = shard()
    async with before(remote_uri) as proxy, consensuses(proxied(remote_uri, proxy)) as [consensus]:
        assert await consensus.compare_and_set(key, -1, b"first", timeout=T)
        proxy.set(Mode.DROP, Direction.DOWN)
        with pytest.raises(Determinate):
            await consensus.head(key, timeout=SOON)
        with pytest.raises(Determinate):
            await consensus.scan(key, 0, 5, timeout=SOON)


async def test_connections_cut_at_random_never_make_a_second_winner(remote_uri: str) -> None:
    keys = [shard(), shard()]
    async with before(remote_uri) as proxy, consensuses(proxied(remote_uri, proxy), 2) as handles:
        proxy.cut_probability = 0.03
        history = asyncio.ensure_future(contend(handles, keys, attempts=1500, tasks=6, seed=3))
        while not history.done() and sum(proxy.fired.values()) < 100:
            await asyncio.wait({history}, timeout=0.05)
        proxy.cut_probability = 0.0
        operations = (await history).operations
    unknown = [operation for operation in operations if operation.returned is None]
    assert len(unknown) >= 10
    assert violations(operations) == []


async def test_changes_survive_a_cut_connection(remote_uri: str) -> None:
    key = shard()
    async with (
        before(remote_uri) as proxy,
        consensuses(remote_uri) as [writer],
        consensuses(proxied(remote_uri, proxy)) as [watcher],
    ):
        hints = watcher.changes(key)
        assert await writer.compare_and_set(key, -1, b"0", timeout=T)
        assert await anext(hints) == 0
        proxy.reset_all()
        assert await writer.compare_and_set(key, 0, b"1", timeout=T)
        async for seqno in hints:
            if seqno == 1:
                break
