"""What a server keeps of transactions that are sent in pieces: in bounds, in order, and not for ever."""

import asyncio
from typing import Any

import pytest
from services.catalog.statements.test_sessions import Clock

from persist.errors import InvalidArgument, LeaseExpired, Overloaded, RequestTooLarge
from persist.retry.tasks import Tasks
from persist.v1 import catalog_pb2 as pb
from persist_catalog import stages as limits
from persist_catalog.stages import Stages

ID = b"s" * 16


class Hasty(Clock):
    """Sleeps no longer than a turn of the loop; its time goes on when it is moved."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def piece(offset: int, keys: int = 2, *, elements: int = 6, size: int = 1_000, at: bytes = ID) -> Any:
    request = pb.StageChangesRequest(offset=offset, bytes=size)
    request.stage.stage_id, request.stage.elements = at, elements
    request.changes.kinds.extend(["setting"] * keys)
    request.changes.keys.extend(b"%d" % (offset + number) for number in range(keys))
    return request


def stages(clock: Clock | None = None) -> Stages:
    return Stages(runtime=clock or Hasty(), tasks=Tasks())


async def test_pieces_come_in_order_and_may_come_again():
    it = stages()
    assert [it.add("a", piece(offset)) for offset in (0, 2, 0, 2, 4)] == [2, 4, 4, 4, 6]
    came = map(pb.StageChangesRequest.FromString, it.whole("a", piece(0).stage))
    assert [list(each.changes.keys) for each in came] == [[b"0", b"1"], [b"2", b"3"], [b"4", b"5"]]
    it.drop("a", ID)
    with pytest.raises(LeaseExpired):
        it.whole("a", piece(0).stage)
    with pytest.raises(LeaseExpired):
        it.add("a", piece(4))


async def test_what_is_no_next_piece_is_refused_and_nothing_is_lost():
    it = stages()
    it.add("a", piece(0))
    wrong = [piece(4), piece(2, elements=8), piece(2, size=2_000), piece(2, 0), piece(2, 5), piece(0, 1)]
    for each in wrong:
        with pytest.raises(InvalidArgument):
            it.add("a", each)
    with pytest.raises(LeaseExpired):
        it.whole("a", piece(0).stage)
    assert [it.add("a", piece(2, 4)), len(it.whole("a", piece(0).stage))] == [6, 2]


async def test_more_bytes_than_were_said_are_refused():
    it = stages()
    with pytest.raises(InvalidArgument):
        it.add("a", piece(0, size=3))


async def test_one_caller_and_all_of_them_are_bounded():
    it = stages()
    for number in range(limits.STAGES_MAX):
        it.add("a", piece(0, at=bytes([number]) * 16))
    with pytest.raises(Overloaded):
        it.add("a", piece(0))
    with pytest.raises(RequestTooLarge):
        it.add("b", piece(0, size=limits.BYTES_MAX + 1))
    it.add("b", piece(0, size=limits.BYTES_MAX))
    with pytest.raises(Overloaded):
        it.add("b", piece(0, at=b"2" * 16))
    with pytest.raises(Overloaded):
        it.add("c", piece(0, size=limits.ALL_BYTES_MAX // 2))
    assert it.reserved == limits.BYTES_MAX + limits.STAGES_MAX * 1_000
    # Nothing is lost of those who are refused: they begin once there is room.
    it.drop("b")
    it.add("c", piece(0, size=limits.BYTES_MAX))


async def test_sessions_that_reserve_everything_and_send_next_to_nothing_make_room_for_others():
    """Also where they send a little, or the same again, to look alive."""
    clock = Hasty()
    it = stages(clock)
    for hog in ("a", "b"):
        it.add(hog, piece(0, 1, elements=1_000, size=limits.BYTES_MAX))
    with pytest.raises(Overloaded):
        it.add("c", piece(0))
    for offset in range(1, 4):
        clock.seconds += limits.IDLE_SECONDS * 0.9
        it.add("a", piece(offset, 1, elements=1_000, size=limits.BYTES_MAX))
        it.add("b", piece(0, 1, elements=1_000, size=limits.BYTES_MAX))
    assert it.add("c", piece(0)) == 2
    assert it.reserved <= limits.ALL_BYTES_MAX
    assert sum(it.holds(hog) for hog in ("a", "b")) == 1
    [gone] = [hog for hog in ("a", "b") if not it.holds(hog)]
    with pytest.raises(LeaseExpired):
        it.add(gone, piece(1, 1, elements=1_000, size=limits.BYTES_MAX))


async def test_session_takes_no_room_from_those_that_hold_less_or_go_on():
    clock = Hasty()
    it = stages(clock)
    it.add("small", piece(0))
    it.add("a", piece(0, size=limits.BYTES_MAX))
    it.add("b", piece(0, size=limits.ALL_BYTES_MAX - limits.BYTES_MAX - 1_000))
    clock.seconds += limits.IDLE_SECONDS / 2
    it.add("a", piece(2, size=limits.BYTES_MAX))
    clock.seconds += limits.IDLE_SECONDS * 0.4
    with pytest.raises(Overloaded):
        it.add("c", piece(0, size=limits.BYTES_MAX))
    assert (it.holds("small"), it.holds("a")) == (True, True)


async def test_what_was_abandoned_is_forgotten_even_if_nobody_asks_for_anything():
    clock, tasks = Hasty(), Tasks()
    it = Stages(runtime=clock, tasks=tasks)
    it.add("a", piece(0))
    clock.seconds = limits.LEASE_SECONDS / 2
    it.add("b", piece(0))
    clock.seconds = limits.LEASE_SECONDS + 1
    while it._open.keys() != {("b", ID)}:
        await asyncio.sleep(0)
    clock.seconds *= 2
    while it._sweeping:
        await asyncio.sleep(0)
    assert (it.reserved, it._open) == (0, {})
    await tasks.close()


async def test_one_that_is_asked_for_again_and_again_keeps_no_other_from_being_forgotten():
    clock = Hasty()
    it = stages(clock)
    it.add("asked", piece(0, 6))
    it.add("stale", piece(0))
    for _ in range(3):
        clock.seconds += limits.LEASE_SECONDS / 2
        it.whole("asked", piece(0).stage)
    assert len(it) == 1
    assert it.holds("asked")


async def test_one_whose_commit_waits_for_its_turn_is_neither_forgotten_nor_makes_room():
    clock = Hasty()
    it = stages(clock)
    it.add("waits", piece(0, 6, size=limits.BYTES_MAX))
    it.add("stale", piece(0, size=limits.BYTES_MAX))
    with it.kept("waits", ID), it.kept("other", ID):
        clock.seconds += limits.IDLE_SECONDS * 2
        it.add("next", piece(0, size=limits.BYTES_MAX))
        assert (it.holds("waits"), it.holds("stale")) == (True, False)
        clock.seconds += limits.LEASE_SECONDS * 2
        assert len(it) == 1
    assert len(it.whole("waits", piece(0).stage)) == 1
    clock.seconds += limits.LEASE_SECONDS * 2
    assert len(it) == 0


async def test_what_is_kept_of_a_piece_are_the_bytes_that_count():
    """Parsed, each element takes many times its bytes; and fields of other releases are not counted."""
    it = stages()
    large = piece(0, 6, size=1_000)
    large.MergeFromString(b"\xfa\x3f" + b"\x80\x80\x40" + bytes(1 << 20))
    large.changes.values.extend([b""] * 400)
    it.add("a", large)
    (kept,) = it.whole("a", large.stage)
    assert isinstance(kept, bytes)
    assert len(kept) < 1_000


async def test_a_first_piece_that_is_refused_reserves_nothing_and_a_later_one_keeps_nothing():
    clock = Hasty()
    it = stages(clock)
    with pytest.raises(InvalidArgument):
        it.add("a", piece(0, 0, size=limits.BYTES_MAX))
    assert (len(it), it.reserved) == (0, 0)
    it.add("a", piece(0))
    clock.seconds += it.lease - 1
    with pytest.raises(InvalidArgument):
        it.add("a", piece(4))
    clock.seconds += 2
    assert len(it) == 0
