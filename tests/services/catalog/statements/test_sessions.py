"""What a server remembers for sessions: never a request, never an exception, and in bounds whatever is asked for."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from persist.core.catalog.errors import OutOfSync
from persist.core.catalog.objects import FenceToken
from persist.errors import Indeterminate, InvalidArgument, LeaseExpired, Overloaded
from persist.runtime import system
from persist_catalog import sessions as limits
from persist_catalog.sessions import OpenSession, ServedSessions

TOKEN = FenceToken(1, 2)


class Request:
    """Something large that a piece of work has in its hands."""


class Clock:
    """The machine's, but for time, which goes on when it is moved."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(system(), name)

    def monotonic(self) -> float:
        return self.seconds


def number(at: int) -> bytes:
    return at.to_bytes(16, "big")


async def refused(sessions: ServedSessions, session: OpenSession, request_id: bytes, keys: str = "a") -> OutOfSync:
    async def work() -> None:
        raise OutOfSync("the catalog was changed meanwhile", hint="run it again", keys=keys)

    with pytest.raises(OutOfSync) as told:
        await sessions.once(session, request_id, b"n", work)
    return told.value


async def test_refused_request_is_let_go_and_its_refusal_is_told_again():
    sessions = ServedSessions(runtime=system())
    session = sessions.open(TOKEN)
    held: list[weakref.ref[Request]] = []
    calls = 0

    async def work() -> None:
        nonlocal calls
        calls += 1
        request = Request()
        held.append(weakref.ref(request))
        raise OutOfSync("the catalog was changed meanwhile", hint="run it again", upper=7)

    told = []
    for _ in range(3):
        try:
            await sessions.once(session, number(0), b"n", work)
        except OutOfSync as error:
            told.append((type(error), str(error), error.details))
        # The loop itself holds what it wakes this task with.
        await asyncio.sleep(0)
        gc.collect()
        assert [ref() for ref in held] == [None]
    assert calls == 1
    assert told == [(OutOfSync, "the catalog was changed meanwhile upper=7 (run it again)", {"upper": "7"})] * 3


async def test_refusals_are_bounded_by_their_bytes_over_all_sessions():
    sessions = ServedSessions(runtime=system())
    opened = [sessions.open(TOKEN) for _ in range(40)]
    for session in opened:
        for at in range(limits.OUTCOMES_MAX):
            await refused(sessions, session, number(at), "k" * 3000)
            assert sessions.refusals_bytes <= limits.REFUSALS_BYTES_MAX
    assert sum(len(session.outcomes) for session in opened) <= limits.REFUSALS_BYTES_MAX // 3000
    for session in opened:
        sessions.close(session.session_id)
    assert sessions.refusals_bytes == 0


async def test_refusal_with_a_long_text_is_not_remembered():
    sessions = ServedSessions(runtime=system())
    session = sessions.open(TOKEN)
    for _ in range(2):
        assert len((await refused(sessions, session, number(1), "k" * (1 << 20))).details["keys"]) == 1 << 20
    assert (len(session.outcomes), sessions.refusals_bytes) == (0, 0)


async def test_what_is_worked_on_is_not_forgotten_and_bounded_when_nobody_waits_for_it():
    sessions = ServedSessions(runtime=system())
    session = sessions.open(TOKEN)
    gate, begun = asyncio.Event(), 0

    async def work() -> int:
        nonlocal begun
        begun += 1
        await gate.wait()
        return begun

    async def give_up(at: int, size: int) -> None:
        waiting = asyncio.ensure_future(sessions.once(session, number(at), b"n", work, size=size))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    for at in range(2 * limits.OUTCOMES_MAX):
        await give_up(at, 4 << 10)
    await give_up(0, 4 << 10)
    assert begun == 2 * limits.OUTCOMES_MAX
    with pytest.raises(Overloaded) as busy:
        await sessions.once(session, number(999), b"n", work, size=limits.WORK_BYTES_MAX)
    assert int(busy.value.details["retry_after_ms"]) > 0
    gate.set()
    await sessions.end()
    assert len(session.running) == 0
    # One that is larger than all that may be worked on is worked on alone.
    assert await sessions.once(session, number(999), b"n", work, size=2 * limits.WORK_BYTES_MAX) == begun


async def test_session_with_too_many_unknown_outcomes_asks_for_no_more():
    sessions = ServedSessions(runtime=system())
    session = sessions.open(TOKEN)

    async def lost() -> None:
        raise Indeterminate("the answer was lost")

    for at in range(limits.UNSURE_MAX):
        with pytest.raises(Indeterminate):
            await sessions.once(session, number(at), b"n", lost)
    with pytest.raises(Overloaded):
        await sessions.once(session, number(limits.UNSURE_MAX), b"n", lost)
    assert len(session.unsure) == limits.UNSURE_MAX
    with pytest.raises(Indeterminate):
        await sessions.once(session, number(0), b"n", lost)


async def test_another_request_under_the_same_id_is_refused_while_the_first_is_remembered():
    sessions = ServedSessions(runtime=system())
    session = sessions.open(TOKEN)
    await refused(sessions, session, number(1))

    async def work() -> None: ...

    with pytest.raises(InvalidArgument):
        await sessions.once(session, number(1), b"other", work)


async def test_newcomer_gets_the_place_of_whoever_was_idle_for_longest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "SESSIONS_MAX", 4)
    clock = Clock()
    sessions = ServedSessions(runtime=clock)
    working, unsure, committed, used = [sessions.open(TOKEN) for _ in range(4)]
    gate = asyncio.Event()
    waiting = asyncio.ensure_future(sessions.once(working, number(1), b"n", gate.wait))
    with pytest.raises(Indeterminate):
        await sessions.once(unsure, number(1), b"n", _lost)
    assert await sessions.once(committed, number(1), b"n", _seven) == 7
    await asyncio.sleep(0)

    # Nothing was asked for in it, so its owner misses nothing but a round trip.
    clock.seconds = 1.0
    assert sessions.find(used.session_id) is used
    newcomers = [sessions.open(TOKEN) for _ in range(3)]
    assert len(sessions) == 4
    for gone in (used, *newcomers[:2]):
        with pytest.raises(LeaseExpired):
            sessions.get(gone.session_id)

    # Who may still repeat what it asked keeps its place until it is not repeated any more.
    assert await sessions.once(newcomers[2], number(1), b"n", _seven) == 7
    with pytest.raises(Overloaded):
        sessions.open(TOKEN)
    clock.seconds = 2 * limits.SETTLED_SECONDS
    assert sessions.find(newcomers[2].session_id) is newcomers[2]
    sessions.open(TOKEN)
    assert sessions.find(committed.session_id) is None
    assert [sessions.find(each.session_id) for each in (working, unsure)] == [working, unsure]
    gate.set()
    assert await waiting


async def _lost() -> None:
    raise Indeterminate("the answer was lost")


async def _seven() -> int:
    return 7
