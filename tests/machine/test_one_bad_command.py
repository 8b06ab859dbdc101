"""A command that cannot be applied, whatever is wrong with it, is its caller's alone: the rest of its fold commits."""

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Any

import pytest
from machine.places import SCHEMA
from machine.support import SETTINGS, machine, memory_stores
from machine.test_intake import append, good, made

from persist.core.ids import ReaderId
from persist.core.shard import commands as c
from persist.core.shard.transitions.dispatch import transition
from persist.errors import Determinate, InvalidArgument
from persist.machine.local_shards import LocalShards
from persist.machine.unforeseen import FAILURES
from persist.runtime import system
from persist_host import Telemetry
from persist_shard import Lanes

NOT_UTF8 = SCHEMA.to_bytes().replace(b"name\0", b"n\xffme\0", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """What is applied as a command, by a transition with a bug. ``late``: one that only shows when the commit is made.

    No subclass: those are what clients may send.
    """

    late: bool = False


@transition.register
def _(command: Broken, state: Any, context: Any) -> Any:  # type: ignore[misc]  # it is no command of clients
    if command.late:
        return state.evolved(leased_readers={**state.leased_readers, "r": None}), None
    raise KeyError("a bug")


def reader(number: int) -> c.RegisterLeasedReader:
    return c.RegisterLeasedReader(reader_id=ReaderId.of(number.to_bytes(16, "big")), lease_ms=60_000)


async def test_schema_with_a_name_that_is_no_text_fails_nobody_else() -> None:
    shards = machine(*memory_stores())
    try:
        shard = await made(shards)
        bad = c.EvolveSchema(expected_id=0, schema=NOT_UTF8, codec=SCHEMA.codec_name)
        told = await shards.commit(shard, [reader(1), bad, reader(2), bad], timeout=10)
        assert [type(outcome) for outcome in told] == [c.ReaderRegistered, InvalidArgument] * 2
    finally:
        await shards.close()


async def test_command_that_fails_for_no_known_reason_is_refused_alone_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry = Telemetry(service="test")
    shards = LocalShards(*memory_stores(), settings=SETTINGS, counts=telemetry)
    try:
        shard = await made(shards)
        for number in range(5):
            commands: list[Any] = [reader(2 * number), Broken(), reader(2 * number + 1)]
            told = await shards.commit(shard, commands, timeout=10)
            assert [type(outcome) for outcome in told] == [c.ReaderRegistered, Determinate, c.ReaderRegistered]
        assert telemetry.value(FAILURES, (("command", "Broken"),)) == 5
        assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
    finally:
        await shards.close()


async def test_commands_that_cannot_be_committed_together_are_tried_apart() -> None:
    telemetry = Telemetry(service="test")
    shards = LocalShards(*memory_stores(), settings=SETTINGS)
    lanes = Lanes(shards, settings=SETTINGS, runtime=system(), telemetry=telemetry)
    try:
        shard = await made(shards)
        commands: list[Any] = [reader(1), reader(2), Broken(late=True), reader(3), Broken(late=True), reader(4)]
        answers = [lanes.submit(shard, command, timeout=10, weight=1) for command in commands]
        told = await asyncio.gather(*answers, return_exceptions=True)
        assert [isinstance(outcome, Determinate) for outcome in told] == [isinstance(it, Broken) for it in commands]
    finally:
        await lanes.close()
        await shards.close()


async def test_append_that_cannot_even_be_looked_at_fails_nobody_else() -> None:
    shards = machine(*memory_stores())
    try:
        shard = await made(shards)
        odd: Any = replace(append(good(5)), batch=None)  # type: ignore[arg-type]  # it is the odd one
        told = await shards.commit(shard, [reader(1), odd, append(good())], timeout=10)
        assert [type(outcome) for outcome in told][::2] == [c.ReaderRegistered, c.Appended]
        assert type(told[1]) is Determinate
    finally:
        await shards.close()
