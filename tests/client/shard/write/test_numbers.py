"""Numbered calls from the client's end: windows, silence, forgetting, and what callers get then."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from client.support import SCHEMA, rows_of, table
from sure import as_a, put, reached, sure

import persist
from persist import Antichain, Appended, InvalidArgument, ShardId, UpperMismatch, aio
from persist.client.shard.numbers import CallNumbers
from persist.core import ids
from persist.core.ids import SessionId
from persist.core.shard.commands import CloseCall, Closed, CompareAndAppend
from persist.core.shard.transitions.calls import WINDOW
from persist.errors import Determinate, Indeterminate, OutcomeForgotten, ShardClosed, StoreFull
from persist.machine.local_shards import LocalShards
from persist.retry.deadline import Deadline
from persist.runtime import SystemRuntime
from persist.settings import Settings

LEASE_MS = 3_600_000


class Clock(SystemRuntime):
    """A clock that is set by hand, both ways of reading it at once or each alone."""

    leapt = 0.0
    passed = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + int(1000 * (self.leapt + self.passed))

    def monotonic(self) -> float:
        return super().monotonic() + self.passed


class Place:
    """An embedded client over memory, whose clock and whose commands are in the test's hand."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        self.sent: list[CompareAndAppend] = []
        self.settings = Settings(compaction=False, writer_lease_ms=LEASE_MS, **settings)

    async def __aenter__(self) -> "Place":
        name = self.clock.random_bytes(8).hex()
        self.client = await aio.embedded(
            blob=f"mem:{name}", consensus=f"mem:{name}", settings=self.settings, runtime=self.clock
        )
        self.other = await aio.embedded(blob=f"mem:{name}", consensus=f"mem:{name}", settings=self.settings)
        self.shards = self.client.location.shards
        self.right = self.shards.apply
        put(self.shards, "apply", self.noted)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.other.close()

    async def noted(self, shard: ShardId, command: Any, *, timeout: float) -> Any:
        if isinstance(command, CompareAndAppend):
            self.sent.append(command)
        return await self.right(shard, command, timeout=timeout)

    async def forget(self, shard: ids.ShardId, *, ahead_seconds: float = 10 * LEASE_MS / 1000) -> None:
        """Let a process whose clock is far ahead commit, at a seqno at which it looks for what may be forgotten."""
        writer = await self.other.open_writer(shard)
        as_a(LocalShards, self.other.location.shards)._runtime = ahead = Clock()
        known = sure(as_a(LocalShards, self.other.location.shards)._shards.peek(shard)).applier
        known._runtime = ahead
        few = known._context
        put(known, "_context", lambda: dataclasses.replace(few(), sessions_kept=0))
        ahead.leapt = ahead_seconds
        while True:
            seqno = (await writer.append_at_upper([])).seqno
            if seqno % 128 == 0:
                return

    async def rows(self, shard: ShardId) -> list[tuple[Any, ...]]:
        reader = await self.other.open_reader(shard)
        upper = (await self.other.recent_upper(shard)).elements[0]
        return rows_of(await (await reader.snapshot(upper - 1)).to_arrow())


async def doubt(call: Callable[[], Awaitable[Any]]) -> Indeterminate:
    """The doubt that ``call`` ends in: on a slow machine its time may be up before anything is sent."""
    while True:
        try:
            raise AssertionError(await call())
        except Indeterminate as error:
            return error
        except Determinate:
            continue


async def test_numbers_wait_for_the_oldest_open_one_and_carry_it():
    session = CallNumbers(SessionId.of(bytes(16)), known_seqno=7, incarnation=3, lease_ms=5)
    release, begun, patient = asyncio.Event(), 0, Deadline(SystemRuntime(), 60.0)

    async def work() -> None:
        nonlocal begun
        async with session.number(patient):
            begun += 1
            await release.wait()

    async with session.number(patient) as first:
        rest = [asyncio.ensure_future(work()) for _ in range(WINDOW + 5)]
        await asyncio.sleep(0.01)
        assert begun == WINDOW - 1
        with pytest.raises(Determinate):
            async with session.number(Deadline(SystemRuntime(), 0.01)):
                pass
        call = session.call(first + 3)
        assert (call.number, call.first, call.known_seqno, call.incarnation, call.lease_ms) == (3, 0, 7, 3, 5)
    await asyncio.sleep(0.01)
    assert begun == WINDOW
    assert session.call(9).first == 1
    release.set()
    await asyncio.gather(*rest)
    async with session.number(patient) as last:
        assert session.call(last).first == last == WINDOW + 6


@pytest.mark.parametrize("how", ["passed", "leapt"])
async def test_handle_that_was_silent_goes_on_although_it_was_forgotten(how):
    """Also when only one of its clocks saw the time pass, as on a machine that slept."""
    async with Place() as place:
        shard = ShardId.new()
        writer = await place.client.open_writer(shard, schema=SCHEMA)
        await writer.compare_and_append(table([(1, "a", 0, 1)]), 0, 5)
        setattr(place.clock, how, 10 * LEASE_MS / 1000)
        await place.forget(shard)
        await writer.append_at_upper([(({"id": 2}, {"name": "b"}), 0, 1)])
        assert [row[0] for row in await place.rows(shard)] == [1, 2]


async def test_append_that_the_upper_proves_undone_goes_on_in_another_session():
    """The handle's clocks stand still: it does not know that it was forgotten, and need not."""
    async with Place() as place:
        shard = ShardId.new()
        writer = await place.client.open_writer(shard, schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1)]), 5)
        await place.forget(shard)
        upper = (await place.other.recent_upper(shard)).elements[0]
        outcome = await writer.compare_and_append(table([(2, "b", upper, 1)]), upper, upper + 5)
        assert isinstance(outcome, Appended)
        assert not outcome.already_committed
        sessions = [command.call.session for command in place.sent if command.call]
        assert len(set(sessions)) == 2
        assert [row[0] for row in await place.rows(shard)] == [1, 2]


async def test_late_attempt_of_a_forgotten_session_does_nothing():
    async with Place() as place:
        shard = ShardId.new()
        writer = await place.client.open_writer(shard, schema=SCHEMA)
        await writer.append_at_upper([(({"id": 1}, {"name": "a"}), 0, 1)])
        await place.forget(shard)
        late = await place.right(shard, place.sent[0], timeout=5)
        assert type(late).__name__ == "CannotTell"
        assert [row[2] for row in await place.rows(shard)] == [1]


@pytest.mark.parametrize("another", [False, True])
async def test_append_at_the_upper_says_that_it_may_be_forgotten_only_when_it_may(another):
    """What the handle saw last decides: nothing later than that is forgotten, unless others went with it."""
    async with Place() as place:
        shard = ShardId.new()
        writer = await place.client.open_writer(shard, schema=SCHEMA)
        await writer.append_at_upper([(({"id": 1}, {"name": "a"}), 0, 1)])
        if another:
            await (await place.other.open_writer(shard)).append_at_upper([])
        await place.forget(shard)
        rows = [(({"id": 2}, {"name": "b"}), 0, 1)]
        if another:
            with pytest.raises(OutcomeForgotten, match="may have forgotten"):
                await writer.append_at_upper(rows)
        await writer.append_at_upper(rows)
        assert [row[0] for row in await place.rows(shard)] == [1, 2]
        assert [row[2] for row in await place.rows(shard)] == [1, 1]


async def test_call_that_was_given_up_as_indeterminate_is_closed_by_the_next_one():
    async with Place() as place:
        shard = ShardId.new()
        writer = await place.client.open_writer(shard, schema=SCHEMA)

        async def lost(shard: ShardId, command: Any, *, timeout: float) -> Any:
            place.sent.append(command)
            await asyncio.sleep(timeout)
            raise Indeterminate("no answer")

        put(place.shards, "apply", lost)
        await doubt(lambda: writer.append_at_upper([(({"id": 1}, {"name": "a"}), 0, 1)], timeout=0.2))
        put(place.shards, "apply", place.noted)
        await writer.append_at_upper([(({"id": 2}, {"name": "b"}), 0, 1)])
        with pytest.raises(InvalidArgument):
            await place.right(shard, place.sent[0], timeout=5)
        assert [row[0] for row in await place.rows(shard)] == [2]


@pytest.mark.parametrize("arrives", ["before", "never", "forgotten"])
@pytest.mark.parametrize("later", [False, True], ids=["asked at once", "asked after another append"])
async def test_call_in_doubt_is_resolved(arrives, later):
    """Nothing needs to be appended to find out, and what was appended meanwhile makes no session forgotten."""
    async with Place(inline_part_bytes_max=0) as place:
        shard = ShardId.new()
        writer = await place.client.open_writer(shard, schema=SCHEMA)
        assert await writer.resolve() == ()
        await writer.append_at_upper([])
        if arrives == "forgotten":
            await (await place.other.open_writer(shard)).append_at_upper([])

        async def lost(shard: ShardId, command: Any, *, timeout: float) -> Any:
            if arrives != "never":
                await place.noted(shard, command, timeout=timeout)
            place.sent.append(command)
            await asyncio.sleep(timeout)
            raise Indeterminate("no answer")

        put(place.shards, "apply", lost)
        rows = [(({"id": 1}, {"name": "a"}), 0, 1)]
        told = await doubt(lambda: writer.append_at_upper(rows, timeout=0.2))
        assert "resolve" in told.hint
        put(place.shards, "apply", place.noted)
        late = place.sent[-1]
        if arrives == "forgotten":
            await place.forget(shard)
        if later:
            await writer.append_at_upper([(({"id": 2}, {"name": "b"}), 0, 1)])
        [resolved] = await writer.resolve()
        assert resolved.call == told.details["call"]
        assert bool(resolved.appended) == (arrives == "before")
        assert resolved.forgotten == (arrives == "forgotten")
        assert await writer.resolve() == ()
        with contextlib.suppress(InvalidArgument):
            await place.right(shard, late, timeout=5)
        found = [row[0] for row in await place.rows(shard)]
        assert found == ([] if arrives == "never" else [1]) + ([2] if later else [])
        assert len(await blobs(place, shard)) == len(found), "only what is refused for good is deleted"


async def blobs(place: Place, shard: ShardId) -> list[str]:
    return [key async for key, _ in place.client.location.blob.list(f"{shard}/", timeout=5) if "/rollup/" not in key]


async def test_cancelled_call_is_in_doubt_and_expiring_the_writer_resolves_it():
    async with Place() as place:
        shard = ShardId.new()
        writer = await place.client.open_writer(shard, schema=SCHEMA)
        sent = asyncio.Event()

        async def stuck(shard: ShardId, command: Any, *, timeout: float) -> Any:
            place.sent.append(command)
            sent.set()
            await asyncio.Event().wait()

        put(place.shards, "apply", stuck)
        call = asyncio.ensure_future(writer.compare_and_append(table([(1, "a", 0, 1)]), 0, 5))
        await reached(sent, call)
        call.cancel()
        await asyncio.wait([call])
        put(place.shards, "apply", place.noted)
        await writer.expire()
        assert isinstance(await place.right(shard, place.sent[0], timeout=5), Closed)
        [resolved] = await writer.resolve()
        assert (resolved.lower, resolved.upper) == (persist.Antichain.of(0), persist.Antichain.of(5))
        assert not resolved.appended
        assert not resolved.forgotten


async def test_nothing_is_appended_on_top_of_a_doubt_that_cannot_be_resolved():
    async with Place() as place:
        shard = ShardId.new()
        writer = await place.client.open_writer(shard, schema=SCHEMA)

        async def down(shard: ShardId, command: Any, *, timeout: float) -> Any:
            raise Indeterminate("no answer")

        async def without_fences(shard: ShardId, command: Any, *, timeout: float) -> Any:
            if isinstance(command, CloseCall):
                raise StoreFull("no room")
            return await place.noted(shard, command, timeout=timeout)

        rows = [(({"id": 1}, {"name": "a"}), 0, 1)]
        put(place.shards, "apply", down)
        await doubt(lambda: writer.append_at_upper(rows, timeout=0.2))
        put(place.shards, "apply", without_fences)
        with pytest.raises(Determinate, match="in doubt"):
            await writer.append_at_upper(rows, timeout=5)
        assert not place.sent
        with pytest.raises(Indeterminate, match="still in doubt"):
            await writer.resolve(timeout=5)
        put(place.shards, "apply", place.noted)
        assert len(await writer.resolve()) == 1


async def test_doubts_do_not_stop_a_full_window():
    async with Place() as place:
        shard = ShardId.new()
        writer = await place.client.open_writer(shard, schema=SCHEMA)
        first, waiting = True, asyncio.Event()

        async def lost(shard: ShardId, command: Any, *, timeout: float) -> Any:
            nonlocal first
            if first:
                first = False
                await waiting.wait()
                await asyncio.sleep(0)
                raise Indeterminate("no answer")
            if isinstance(command, CompareAndAppend):
                place.sent.append(command)
                if len(place.sent) == WINDOW - 1:
                    waiting.set()
            return await place.right(shard, command, timeout=timeout)

        put(place.shards, "apply", lost)
        put(place.client.location.attempts, "repeat", once(place.client.location.attempts.repeat))
        calls = [asyncio.ensure_future(writer.append_at_upper([])) for _ in range(WINDOW + 5)]
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in done].count(Indeterminate) == 1
        assert [type(each) for each in done].count(Appended) == WINDOW + 4
        assert len(await writer.resolve()) == 1


def once(repeat: Any) -> Any:
    """A loop that gives up after one attempt."""

    async def attempt(deadline: Deadline, call: Any, **more: Any) -> Any:
        async def told(seconds: float) -> Any:
            try:
                return await call(seconds)
            except Indeterminate as error:
                return error

        answer = await repeat(deadline, told, **more)
        if isinstance(answer, Indeterminate):
            raise answer
        return answer

    return attempt


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
async def test_refusal_is_not_told_when_its_fence_finds_the_session_forgotten(again):
    """The append arrives twice: too early, which is refused, and when what it waited for is there."""
    async with Place(inline_part_bytes_max=0) as place:
        shard = ShardId.new()
        other = await place.other.open_writer(shard, schema=SCHEMA)
        writer = await place.client.open_writer(shard, schema=SCHEMA)
        first = await other.append([], 5)
        assert isinstance(first, Appended)

        async def meddled(shard: ShardId, command: Any, *, timeout: float) -> Any:
            if isinstance(command, CloseCall):
                await other.compare_and_append([], 5, 10)
                if again:
                    assert isinstance(await place.right(shard, place.sent[0], timeout=5), Appended)
                else:
                    await other.compare_and_append([], 10, 20)
                await place.forget(shard)
            return await place.noted(shard, command, timeout=timeout)

        put(place.shards, "apply", meddled)
        rows = table([(1, "a", 10, 1)])
        with pytest.raises(OutcomeForgotten, match="may have forgotten"):
            await writer.compare_and_append(rows, 10, 15)
        assert [row[0] for row in await place.rows(shard)] == ([1] if again else [])


async def test_token_with_another_body_is_refused_and_the_same_rows_in_another_form_are_not():
    async with Place() as place:
        shard, token = ShardId.new(), persist.Token.of(b"t" * 16)
        writer = await place.client.open_writer(shard, schema=SCHEMA)
        other = await place.other.open_writer(shard, schema=SCHEMA)
        await writer.compare_and_append(table([(1, "a", 0, 1), (2, "b", 1, 1)]), 0, 5, token=token)
        again = [(({"id": 2}, {"name": "b"}), 1, 1), (({"id": 1}, {"name": "a"}), 0, 1)]
        assert (as_a(Appended, await other.compare_and_append(again, 0, 5, token=token))).already_committed
        assert (as_a(Appended, await other.compare_and_append([], 0, 5, token=token))).already_committed, "only asked"
        for rows in ([(1, "a", 0, 1), (2, "c", 1, 1)], [(1, "a", 0, 1)]):
            with pytest.raises(InvalidArgument, match="something else"):
                await other.compare_and_append(table(rows), 0, 5, token=token)
        assert [row[:2] for row in await place.rows(shard)] == [(1, "a"), (2, "b")]


async def test_refused_call_leaves_its_token_for_other_updates():
    async with Place() as place:
        shard, token = ShardId.new(), persist.Token.of(b"t" * 16)
        writer = await place.client.open_writer(shard, schema=SCHEMA)
        await writer.append([], 5)
        assert isinstance(await writer.compare_and_append(table([(1, "a", 0, 1)]), 0, 4, token=token), UpperMismatch)
        assert isinstance(await writer.compare_and_append(table([(9, "z", 6, 1)]), 5, 7, token=token), Appended)


async def test_token_of_this_handle_that_is_forgotten_is_not_appended_again():
    async with Place() as place:
        shard, token = ShardId.new(), persist.Token.of(b"t" * 16)
        writer = await place.client.open_writer(shard, schema=SCHEMA)
        rows = [(({"id": 1}, {"name": "a"}), 0, 1)]
        await writer.append_at_upper(rows, token=token)
        await place.forget(shard)
        place.clock.leapt = place.clock.passed = 10 * LEASE_MS / 1000
        with pytest.raises(OutcomeForgotten):
            await writer.append_at_upper(rows, token=token)
        # One that this handle uses for the first time is none of those.
        await writer.append_at_upper([(({"id": 2}, {"name": "b"}), 0, 1)], token=persist.Token.of(b"u" * 16))
        assert [(row[0], row[2]) for row in await place.rows(shard)] == [(1, 1), (2, 1)]


async def test_call_that_arrives_late_does_not_append_again_what_an_overlapping_one_did_under_its_token():
    """It was the first of its handle to use the token, but not the only one when the shard forgot it."""
    async with Place() as place:
        shard, token, arrives = ShardId.new(), persist.Token.of(b"t" * 16), asyncio.Event()
        writer = await place.client.open_writer(shard, schema=SCHEMA)
        rows = [(({"id": 1}, {"name": "a"}), 0, 1)]
        sent = asyncio.Event()

        async def held(shard: ShardId, command: Any, *, timeout: float) -> Any:
            if isinstance(command, CompareAndAppend) and not sent.is_set():
                sent.set()
                await arrives.wait()
            return await place.right(shard, command, timeout=timeout)

        put(place.shards, "apply", held)
        first = asyncio.ensure_future(writer.append_at_upper(rows, token=token))
        await reached(sent, first)
        await writer.append_at_upper(rows, token=token)
        for place.clock.leapt in (1500, 3000):  # the session goes on, the token is not used any more
            await writer.append_at_upper([])
        await place.forget(shard, ahead_seconds=4000)
        arrives.set()
        with pytest.raises(OutcomeForgotten):
            await first
        assert [(row[0], row[2]) for row in await place.rows(shard)] == [(1, 1)]


async def test_refusal_that_could_not_be_made_final_is_indeterminate():
    """The first attempt was answered, but it may arrive again: a store that is full afterwards proves nothing of it."""
    async with Place() as place:
        shard = ShardId.new()
        writer = await place.client.open_writer(shard, schema=SCHEMA)

        async def full(shard: ShardId, command: Any, *, timeout: float) -> Any:
            if isinstance(command, CloseCall):
                raise StoreFull("no room")
            return await place.noted(shard, command, timeout=timeout)

        put(place.shards, "apply", full)
        with pytest.raises(Indeterminate):
            await writer.compare_and_append(table([(1, "a", 10, 1)]), 10, 15)
        put(place.shards, "apply", place.noted)
        await (await place.other.open_writer(shard)).append([], 10)
        assert isinstance(await place.right(shard, place.sent[0], timeout=5), Appended)


async def test_append_of_definite_updates_that_the_upper_has_passed_is_done_whoever_did_it():
    async with Place() as place:
        shard = ShardId.new()
        writer = await place.client.open_writer(shard, schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1)]), 5)
        other = await place.other.open_writer(shard)
        await other.append(table([(2, "b", 6, 1)]), 10)
        await place.forget(shard)
        assert (await writer.append(table([(2, "b", 6, 1)]), 10)).already_committed
        assert [row[2] for row in await place.rows(shard)] == [1, 1]


async def test_append_of_which_a_finalized_shard_knows_nothing_any_more_is_not_done():
    """Nor is one that was sent before the shard forgot its session: only this handle's own commits prove anything."""
    async with Place() as place:
        shard = ShardId.new()
        writer = await place.client.open_writer(shard, schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1)]), 5)

        async def lost(shard: ShardId, command: Any, *, timeout: float) -> Any:
            if isinstance(command, CompareAndAppend):
                raise Indeterminate("no answer")
            return await place.noted(shard, command, timeout=timeout)

        put(place.shards, "apply", lost)
        with pytest.raises(Indeterminate):
            await writer.append(table([(2, "b", 6, 1)]), 10, timeout=0.1)
        await place.forget(shard)
        await place.other.finalize(shard, force=True)
        put(place.shards, "apply", place.noted)
        for _ in range(2):
            with pytest.raises(ShardClosed):
                await writer.append(table([(2, "b", 6, 1)]), 10)


async def test_append_whose_session_a_closed_shard_forgot_is_in_doubt_and_not_done():
    async with Place() as place:
        shard = ShardId.new()
        writer = await place.client.open_writer(shard, schema=SCHEMA)

        async def lost(shard: ShardId, command: Any, *, timeout: float) -> Any:
            put(place.shards, "apply", place.noted)
            await place.noted(shard, command, timeout=timeout)
            await place.forget(shard)
            await (await place.other.open_writer(shard)).append([], [])
            raise Indeterminate("no answer")

        put(place.shards, "apply", lost)
        # The next attempt is answered CannotTell, with an upper that has passed everything.
        with pytest.raises(OutcomeForgotten):
            await writer.append(table([(2, "b", 6, 1)]), 10)


async def test_append_that_is_answered_a_closed_upper_is_not_done():
    async with Place() as place:
        writer = await place.client.open_writer(ShardId.new(), schema=SCHEMA)

        async def closed(shard: ShardId, command: Any, *, timeout: float) -> Any:
            return UpperMismatch(upper=Antichain(), seqno=1)

        put(place.shards, "apply", closed)
        with pytest.raises(ShardClosed):
            await writer.append(table([(1, "a", 0, 1)]), 5)


@pytest.mark.parametrize("resolved", [True, False])
async def test_append_that_closed_the_shard_may_be_repeated_after_its_answer_was_lost(resolved: bool):
    async with Place() as place:
        shard = ShardId.new()
        writer = await place.client.open_writer(shard, schema=SCHEMA)
        other = await place.client.open_writer(shard)

        async def lost(shard: ShardId, command: Any, *, timeout: float) -> Any:
            await place.noted(shard, command, timeout=timeout)
            raise Indeterminate("no answer")

        put(place.shards, "apply", lost)
        await doubt(lambda: writer.append(table([(1, "a", 0, 1)]), [], timeout=0.2))
        put(place.shards, "apply", place.noted)
        if resolved:
            assert (await writer.resolve())[-1].appended is not None
        again = await writer.append(table([(1, "a", 0, 1)]), [])
        assert (again.upper, again.already_committed) == (Antichain(), True)
        with pytest.raises(ShardClosed):
            await other.append(table([(1, "a", 0, 1)]), [])


async def test_hold_that_was_asked_for_twice_does_not_come_back_after_it_was_removed():
    async with Place() as place:
        shard, late = ShardId.new(), list[Any]()
        await place.client.open_writer(shard, schema=SCHEMA)

        async def lost(shard: ShardId, command: Any, *, timeout: float) -> Any:
            late.append(command)
            raise Indeterminate("no answer")

        put(place.shards, "apply", lost)
        with pytest.raises(Indeterminate):
            await place.client.open_since("hold", shard, timeout=0.05)
        put(place.shards, "apply", place.noted)
        hold = await place.client.open_since("hold", shard)
        assert await hold.expire()
        with pytest.raises(InvalidArgument):
            await place.right(shard, late[0], timeout=5)
        assert (await place.client.inspect(shard))["critical_readers"] == {}
