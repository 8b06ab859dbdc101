"""Inline parts that are not what they are described as are refused, by every way in, and change nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from machine.places import SCHEMA
from machine.support import SETTINGS, machine, memory_stores, new_shard

from persist import aio
from persist.client.remote.shards import RemoteShards
from persist.core.frontier import Antichain, Description
from persist.core.ids import ShardId, Token, WriterId
from persist.core.shard.batch import ColumnStats, HollowBatch, Part, Run
from persist.core.shard.commands import Appended, CompareAndAppend, InlineBackpressure, RegisterSchema
from persist.errors import InvalidArgument
from persist.machine.local_shards import LocalShards
from persist.machine.shards import Shards
from persist.retry.attempts import RefusedInDoubt
from persist.runtime import system
from persist.wire.checksum import crc32c
from persist.wire.columnar import encode_inline
from persist_host import start
from persist_shard import shard_spec

Given = tuple[int, str | None, int, int]


def rows(*given: Given) -> pa.Table:
    columns = [pa.array([row[at] for row in given], kind) for at, kind in enumerate(SCHEMA.updates.types)]
    return pa.Table.from_arrays(columns, schema=SCHEMA.updates)


def as_given(*given: Given) -> Part:
    """These very rows, sorted or not, in a frame that is whole."""
    return encode_inline(rows(*given), SCHEMA, 0)


def good(time: int = 0) -> Part:
    return as_given((1, "a", time, 1), (2, "b", time, 2), (3, None, time, -1))


def framed(data: bytes) -> Part:
    """The description of a good part with other bytes, whose checksum is right."""
    return replace(good(), inline=data, encoded_bytes=len(data), checksum=crc32c(data))


def message_of(batch: pa.RecordBatch) -> Part:
    message = batch.serialize()
    compressed = pa.Codec("zstd", compression_level=1).compress(message, asbytes=True)
    return framed(b"PIB1" + message.size.to_bytes(4, "little") + compressed)


def with_null(column: str) -> Part:
    table = rows((1, "a", 0, 1), (2, "b", 0, 1), (3, "c", 0, 1))
    kind = table.schema.field(column).type
    nothing = pa.array([None, 1, 1], kind)
    table = table.set_column(table.schema.get_field_index(column), pa.field(column, kind), nothing)
    return message_of(table.combine_chunks().to_batches()[0])


WRONG: dict[str, Callable[[], Part]] = {
    "checksum": lambda: replace(good(), checksum=good().checksum ^ 1),
    "garbage": lambda: framed(b"\xff" * 64),
    "no zstd": lambda: framed(b"PIB1\x40\0\0\0" + b"\xff" * 64),
    "cut": lambda: framed((good().inline or b"")[:-4]),
    "more rows": lambda: replace(good(), rows=2),
    "fewer rows": lambda: replace(good(), rows=4),
    "unsorted keys": lambda: as_given((1, "b", 0, 1), (3, "a", 0, 1), (2, "a", 0, 1), (4, "a", 0, 1)),
    "unsorted values": lambda: as_given((1, "b", 0, 1), (1, "a", 0, 1)),
    "unsorted times": lambda: as_given((1, "a", 1, 1), (1, "a", 0, 1)),
    "one row twice": lambda: as_given((1, "a", 0, 1), (1, "a", 0, 1)),
    "no diff": lambda: as_given((1, "a", 0, 1), (1, "b", 0, 0)),
    "lower bound": lambda: replace(good(), key_lower=good().key_upper or b""),
    "upper bound": lambda: replace(good(), key_upper=good().key_lower),
    "earlier times": lambda: replace(as_given((1, "a", 0, 1)), min_ts=1, max_ts=1),
    "later times": lambda: replace(as_given((1, "a", 99, 1)), min_ts=0, max_ts=0),
    "sum of diffs": lambda: replace(good(), diffs_sum=3),
    "statistics": lambda: replace(good(), stats=(ColumnStats(name="id", null_count=0, lower=b"\2x", upper=b"\2y"),)),
    "decoded size": lambda: replace(as_given(*((n, "a" * 90, 0, 1) for n in range(3000))), decoded_bytes=1),
    "unreadable size": lambda: replace(good(), decoded_bytes=1 << 40),
    "other columns": lambda: message_of(pa.record_batch({"id": pa.array(["x" * 40] * 3)})),
    "no time": lambda: with_null("ts"),
    "no diff at all": lambda: with_null("diff"),
    "unknown schema": lambda: replace(good(), schema_id=7),
}


def append(part: Part, lower: int = 0, *more: Part) -> CompareAndAppend:
    return CompareAndAppend(
        writer_id=WriterId.of(b"w" * 16),
        token=Token.of(system().random_bytes(16)),
        batch=HollowBatch(
            desc=Description(lower=Antichain.of(lower), upper=Antichain.of(lower + 10)),
            runs=(Run(parts=(part, *more)),),
        ),
    )


async def made(shards: Shards) -> ShardId:
    shard = new_shard()
    await shards.open(shard, timeout=60)
    await shards.apply(shard, RegisterSchema(schema=SCHEMA.to_bytes(), codec=SCHEMA.codec_name), timeout=60)
    return shard


@pytest.mark.parametrize("name", WRONG)
async def test_wrong_inline_part_is_refused_and_changes_nothing(name: str) -> None:
    shards = machine(*memory_stores())
    try:
        shard = await made(shards)
        before = await shards.inspect(shard, timeout=60)
        with pytest.raises(InvalidArgument):
            await shards.apply(shard, append(WRONG[name]()), timeout=60)
        assert await shards.inspect(shard, timeout=60) == before
        assert isinstance(await shards.apply(shard, append(good()), timeout=60), Appended)
    finally:
        await shards.close()


async def test_parts_of_a_run_lie_one_behind_the_other() -> None:
    low, high = as_given((1, "a", 0, 1), (5, "a", 0, 1)), as_given((3, "a", 0, 1), (9, "a", 0, 1))
    shards = machine(*memory_stores())
    try:
        shard = await made(shards)
        with pytest.raises(InvalidArgument, match="behind"):
            await shards.apply(shard, append(low, 0, high), timeout=60)
        beyond = as_given((5, "b", 0, 1), (9, "a", 0, 1))
        assert isinstance(await shards.apply(shard, append(low, 0, beyond), timeout=60), Appended)
    finally:
        await shards.close()


async def test_refused_one_does_not_keep_others_of_its_commit_from_being_applied() -> None:
    shards = machine(*memory_stores())
    try:
        shard = await made(shards)
        commands = [append(good()), append(WRONG["checksum"]()), append(good(10), 10)]
        first, wrong, last = await shards.commit(shard, commands, timeout=60)
        assert (first.upper, type(wrong), last.upper) == (Antichain.of(10), InvalidArgument, Antichain.of(20))
        assert first.seqno == last.seqno
    finally:
        await shards.close()


async def test_schema_that_another_process_registered_is_asked_for() -> None:
    stores = memory_stores()
    knows, asks = machine(*stores), machine(*stores)
    try:
        shard = new_shard()
        await asks.open(shard, timeout=60)
        await knows.open(shard, timeout=60)
        await knows.apply(shard, RegisterSchema(schema=SCHEMA.to_bytes(), codec=SCHEMA.codec_name), timeout=60)
        with pytest.raises(InvalidArgument):
            await asks.apply(shard, append(WRONG["unsorted keys"]()), timeout=60)
        assert isinstance(await asks.apply(shard, append(good()), timeout=60), Appended)
    finally:
        await knows.close()


async def test_more_than_a_state_may_hold_is_not_expanded() -> None:
    """A frame of a few bytes says that it expands to gigabytes: its sender is asked to write a blob."""
    bomb = framed(b"PIB1" + (1 << 31).to_bytes(4, "little") + b"\0" * 64)
    shards = machine(*memory_stores())
    try:
        shard = await made(shards)
        assert await shards.apply(shard, append(bomb), timeout=60) == InlineBackpressure()
    finally:
        await shards.close()


@pytest.mark.parametrize("sessions", [True, False], ids=["session", "unary"])
async def test_servers_refuse_wrong_inline_parts(sessions: bool) -> None:
    name = system().random_bytes(8).hex()
    host, address = await start(
        shard_spec(f"mem:{name}", f"mem:{name}"), "127.0.0.1:0", SETTINGS, with_reflection=False
    )
    remote = RemoteShards(str(address), settings=SETTINGS, sessions=sessions)
    try:
        shard = await made(remote)
        for part in (WRONG["checksum"](), WRONG["unsorted keys"](), WRONG["more rows"]()):
            with pytest.raises(InvalidArgument):
                await remote.apply(shard, append(part), timeout=60)
        assert isinstance(await remote.apply(shard, append(good()), timeout=60), Appended)
        async with await aio.connect(str(address), settings=SETTINGS) as client:
            reader = await client.open_reader(shard)
            found = await (await reader.snapshot(9)).to_arrow()
        assert sorted(zip(*(found.column(at).to_pylist() for at in range(3)), strict=True)) == [
            (1, "a", 1),
            (2, "b", 2),
            (3, None, -1),
        ]
    finally:
        await remote.close()
        await host.stop(notice=0, grace=1)


async def test_failover_refuses_wrong_inline_parts() -> None:
    name = system().random_bytes(8).hex()
    stores: Any = {"blob": f"mem:{name}", "consensus": f"mem:{name}"}
    host, address = await start(shard_spec(*stores.values()), "127.0.0.1:0", SETTINGS, with_reflection=False)
    async with await aio.connect(str(address), settings=SETTINGS, **stores) as client:
        shards: Any = client.location.shards
        assert not isinstance(shards, LocalShards)
        shard = await made(shards)
        await host.stop(notice=0, grace=1)
        attempts = client.location.attempts

        async def asked(command: CompareAndAppend) -> Any:
            return await attempts.repeat(
                attempts.deadline(20), lambda seconds: shards.apply(shard, command, timeout=seconds)
            )

        # The server's end may come in the middle of the first attempt.
        with pytest.raises((InvalidArgument, RefusedInDoubt)) as refused:
            await asked(append(WRONG["checksum"]()))
        assert isinstance(getattr(refused.value, "refusal", refused.value), InvalidArgument)
        assert isinstance(await asked(append(good())), Appended)
