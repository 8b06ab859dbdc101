"""What is reported of an append whose first attempt was applied, when later ones meet something else than its shard."""

import asyncio
import dataclasses
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from client.support import SCHEMA, SMALL, client_of, file_place, memory_place, rows_of, table
from sure import put

import persist
from persist import Appended, ShardId, aio
from persist.core.shard.commands import CloseCall, CompareAndAppend
from persist.errors import Determinate, Indeterminate, InvalidArgument, LeaseExpired, ShardNotFound, VersionMismatch

ROW = (1, "a", 11, 1)


class Way:
    """What becomes of each command that a client sends: it is done, ``lose`` says whether the answer is lost."""

    def __init__(self, right: Callable[..., Any]) -> None:
        self.right = right
        self.answers: list[Exception | None] = []
        self.sent: list[Any] = []

    async def apply(self, shard: ShardId, command: Any, *, timeout: float) -> Any:
        if not isinstance(command, CompareAndAppend | CloseCall) or not self.answers:
            return await self.right(shard, command, timeout=timeout)
        self.sent.append(command)
        answer = self.answers.pop(0)
        if answer is None or isinstance(answer, Indeterminate):
            outcome = await self.right(shard, command, timeout=timeout)
            if answer is None:
                return outcome
        raise answer


@asynccontextmanager
async def prepared() -> AsyncIterator[tuple[aio.Client, aio.WriteHandle, Way]]:
    """A client, a writer at 10, and what lies between them and their shard."""
    async with client_of(memory_place(), settings=SMALL) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await writer.compare_and_append([], 0, 10)
        way = Way(client.location.shards.apply)
        put(client.location.shards, "apply", way.apply)
        yield client, writer, way


ELSEWHERE = [ShardNotFound("not here"), VersionMismatch("newer"), LeaseExpired("over")]


@pytest.mark.parametrize("later", ELSEWHERE, ids=lambda error: type(error).__name__)
async def test_refusal_by_who_does_not_know_the_shard_leaves_an_earlier_attempt_in_doubt(later):
    async with prepared() as (client, writer, way):
        way.answers = [Indeterminate("no answer"), later]
        with pytest.raises(Indeterminate) as told:
            await writer.compare_and_append(table([ROW]), 10, 20)
        assert told.value.details["call"]
        assert "resolve" in told.value.hint
        [resolved] = await writer.resolve()
        assert resolved.call == told.value.details["call"]
        assert resolved.appended is not None
        reader = await client.open_reader(writer.shard)
        assert rows_of(await (await reader.snapshot(19)).to_arrow()) == [(1, "a", 1)]


@pytest.mark.parametrize("later", ELSEWHERE[:2], ids=lambda error: type(error).__name__)
async def test_refusal_is_not_final_while_the_close_is_refused_by_who_does_not_know_the_shard(later):
    async with prepared() as (_, writer, way):
        way.answers = [Indeterminate("no answer"), InvalidArgument("a strange server"), later]
        with pytest.raises(Indeterminate):
            await writer.compare_and_append(table([ROW]), 10, 20)
        assert isinstance(way.sent[-1], CloseCall)
        way.answers = [later]
        with pytest.raises(Indeterminate):
            await writer.resolve()
        [resolved] = await writer.resolve()
        assert resolved.appended is not None


async def test_next_append_waits_for_what_is_in_doubt():
    async with prepared() as (_, writer, way):
        way.answers = [Indeterminate("no answer"), VersionMismatch("newer"), VersionMismatch("newer")]
        with pytest.raises(Indeterminate):
            await writer.compare_and_append(table([ROW]), 10, 20)
        with pytest.raises(Determinate, match="nothing was sent"):
            await writer.compare_and_append([], 20, 30)
        assert isinstance(await writer.compare_and_append([], 20, 30), Appended)


@pytest.mark.parametrize("refusal", ELSEWHERE, ids=lambda error: type(error).__name__)
async def test_refusal_of_the_only_attempt_is_told_as_it_is(refusal):
    async with prepared() as (_, writer, way):
        way.answers = [refusal]
        with pytest.raises(type(refusal)):
            await writer.compare_and_append(table([ROW]), 10, 20)
        assert await writer.resolve() == ()
        assert isinstance(await writer.compare_and_append(table([ROW]), 10, 20), persist.Appended)


async def test_close_during_many_appends_tells_the_truth_of_each_and_logs_nothing(tmp_path):
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
    place, shard, begun = file_place(tmp_path), ShardId.new(), asyncio.Event()
    async with client_of(place) as client:
        writer = await client.open_writer(shard, schema=SCHEMA)
        right = client.location.shards.apply

        async def noted(*arguments: Any, **more: Any) -> Any:
            begun.set()
            return await right(*arguments, **more)

        client.location.shards.apply = noted  # type: ignore[method-assign]
        calls = [asyncio.create_task(writer.append_at_upper(table([(n, "a", 0, 1)]), timeout=60)) for n in range(30)]
        await begun.wait()
    told = await asyncio.gather(*calls, return_exceptions=True)
    async with client_of(place) as client:
        reader = await client.open_reader(shard)
        upper = (await client.recent_upper(shard)).elements[0]
        there = {row[0] for row in rows_of(await (await reader.snapshot(upper - 1)).to_arrow())} if upper else set()
    for n, outcome in enumerate(told):
        assert isinstance(outcome, Appended | Indeterminate | Determinate)
        assert isinstance(outcome, Indeterminate) or (n in there) is isinstance(outcome, Appended)
    calls.clear()
    gc.collect()
    assert complaints == []


async def test_upload_without_an_answer_is_certain_as_nothing_was_sent_to_the_shard():
    settings = dataclasses.replace(SMALL, inline_part_bytes_max=0)
    async with client_of(memory_place(), settings=settings) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        blob: Any = client.location.blob
        right, lost = blob.set, 0

        async def lose(*arguments: Any, timeout: float) -> None:
            nonlocal lost
            lost += 1
            await right(*arguments, timeout=timeout)
            raise Indeterminate("no answer")

        blob.set = lose
        with pytest.raises(Determinate):
            await writer.compare_and_append(table([ROW]), 0, 20, timeout=1)
        blob.set = right
        assert lost
        assert await writer.resolve() == ()
        assert isinstance(await writer.compare_and_append(table([ROW]), 0, 20), Appended)
