"""One contract for every Consensus adapter. Source: persist-semantics.md section 2.8; reliability.md B19."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest
from conformance.handles import T, consensuses, shard

from persist.errors import Determinate, InvalidArgument, InvalidId, RequestTooLarge
from persist.storage.ports import VALUE_BYTES_MAX, Consensus, Entry


async def fill(consensus: Consensus, key: str, count: int) -> list[Entry]:
    """Set that many values from the beginning and return them."""
    entries = [Entry(seqno=seqno, data=f"value {seqno}".encode()) for seqno in range(count)]
    for entry in entries:
        assert await consensus.compare_and_set(key, entry.seqno - 1, entry.data, timeout=T)
    return entries


async def test_missing_key_has_no_head_and_no_entries(consensus_uri: str) -> None:
    async with consensuses(consensus_uri) as [consensus]:
        assert await consensus.head(shard(), timeout=T) is None
        assert await consensus.scan(shard(), 0, 10, timeout=T) == []
        with pytest.raises(InvalidArgument):
            await consensus.truncate(shard(), 0, timeout=T)


async def test_first_value_must_expect_none(consensus_uri: str) -> None:
    key = shard()
    async with consensuses(consensus_uri) as [consensus]:
        for expected in (0, 1, 2**63 - 2):
            assert not await consensus.compare_and_set(key, expected, b"x", timeout=T)
        assert await consensus.head(key, timeout=T) is None
        assert await consensus.compare_and_set(key, -1, b"first", timeout=T)
        assert await consensus.head(key, timeout=T) == Entry(seqno=0, data=b"first")


async def test_wrong_expectation_lower_or_higher_changes_nothing(consensus_uri: str) -> None:
    key = shard()
    async with consensuses(consensus_uri, 2) as [one, two]:
        entries = await fill(one, key, 3)
        for expected in (-1, 0, 1, 3, 4, 2**53, 2**63 - 2):
            assert not await two.compare_and_set(key, expected, b"wrong", timeout=T)
        assert await two.head(key, timeout=T) == entries[-1]
        assert await one.scan(key, 0, 10, timeout=T) == entries


async def test_what_the_new_value_stands_after_is_compared_where_it_is_told(consensus_uri: str) -> None:
    key, long = shard(), b"\0\xff" + secrets.token_bytes(100_000)
    async with consensuses(consensus_uri, 2) as [one, two]:
        assert not await one.compare_and_set(key, -1, b"x", after=b"x", timeout=T)
        assert await one.head(key, timeout=T) is None
        await fill(one, key, 2)
        for after in (b"value 0", b"value 11", b"w", long):
            assert not await two.compare_and_set(key, 1, b"wrong", after=after, timeout=T)
        assert not await two.compare_and_set(key, 0, b"wrong", after=b"value 0", timeout=T)
        assert await two.compare_and_set(key, 1, long, after=b"val", timeout=T)
        assert not await one.compare_and_set(key, 2, b"wrong", after=long[:1] + b"\0", timeout=T)
        assert await one.compare_and_set(key, 2, b"last", after=long[:14], timeout=T)
        assert await one.head(key, timeout=T) == Entry(seqno=3, data=b"last")


@pytest.mark.parametrize("data", [b"", b"\0\xff\n", secrets.token_bytes(100_000)], ids=["empty", "binary", "long"])
async def test_value_is_read_back_byte_for_byte(consensus_uri: str, data: bytes) -> None:
    key = shard()
    async with consensuses(consensus_uri, 2) as [one, two]:
        assert await one.compare_and_set(key, -1, data, timeout=T)
        assert await two.head(key, timeout=T) == Entry(seqno=0, data=data)
        assert await two.scan(key, 0, 1, timeout=T) == [Entry(seqno=0, data=data)]


async def test_value_of_the_largest_size_fits_and_a_larger_is_refused(consensus_uri: str) -> None:
    key, data = shard(), secrets.token_bytes(VALUE_BYTES_MAX)
    async with consensuses(consensus_uri) as [consensus]:
        with pytest.raises(RequestTooLarge):
            await consensus.compare_and_set(key, -1, data + b"x", timeout=T)
        assert await consensus.compare_and_set(key, -1, data, timeout=T)
        assert await consensus.head(key, timeout=T) == Entry(seqno=0, data=data)


@pytest.mark.parametrize("expected", [-2, -(2**63), 2**63 - 1, 2**64], ids=str)
async def test_expectation_out_of_range_is_refused(consensus_uri: str, expected: int) -> None:
    key = shard()
    async with consensuses(consensus_uri) as [consensus]:
        with pytest.raises(InvalidArgument):
            await consensus.compare_and_set(key, expected, b"x", timeout=T)
        assert await consensus.head(key, timeout=T) is None


async def test_scan_starts_and_stops_where_it_is_told(consensus_uri: str) -> None:
    key = shard()
    async with consensuses(consensus_uri, 2) as [one, two]:
        entries = await fill(one, key, 10)
        assert await two.scan(key, 0, 100, timeout=T) == entries
        assert await two.scan(key, 0, 3, timeout=T) == entries[:3]
        assert await two.scan(key, 4, 3, timeout=T) == entries[4:7]
        assert await two.scan(key, 9, 5, timeout=T) == entries[9:]
        assert await two.scan(key, 10, 5, timeout=T) == []
        assert await two.scan(key, 2**63 - 1, 2**63, timeout=T) == []


async def test_scan_of_more_than_one_page_is_whole(consensus_uri: str) -> None:
    key = shard()
    async with consensuses(consensus_uri) as [consensus]:
        entries = await fill(consensus, key, 300)
        assert await consensus.scan(key, 0, 1000, timeout=T) == entries
        assert await consensus.scan(key, 7, 260, timeout=T) == entries[7:267]


@pytest.mark.parametrize(("from_seqno", "limit"), [(-1, 1), (2**63, 1), (0, 0), (0, -1)], ids=str)
async def test_scan_with_impossible_arguments_is_refused(consensus_uri: str, from_seqno: int, limit: int) -> None:
    async with consensuses(consensus_uri) as [consensus]:
        with pytest.raises(InvalidArgument):
            await consensus.scan(shard(), from_seqno, limit, timeout=T)


async def test_truncate_removes_what_lies_below_and_tells_how_much(consensus_uri: str) -> None:
    key = shard()
    async with consensuses(consensus_uri, 2) as [one, two]:
        entries = await fill(one, key, 10)
        assert await two.truncate(key, 0, timeout=T) == 0
        assert await two.truncate(key, 4, timeout=T) == 4
        assert await one.scan(key, 0, 100, timeout=T) == entries[4:]
        assert await one.truncate(key, 4, timeout=T) == 0
        assert await one.truncate(key, 2, timeout=T) == 0
        assert await one.truncate(key, 9, timeout=T) == 5
        assert await two.head(key, timeout=T) == entries[9]
        assert await two.scan(key, 0, 100, timeout=T) == entries[9:]


async def test_truncate_after_what_does_not_stand_there_takes_nothing(consensus_uri: str) -> None:
    """What was decided of a history that is gone: its seqnos come again, its entries do not."""
    key = shard()
    async with consensuses(consensus_uri) as [consensus]:
        assert await consensus.truncate(key, 2, after=b"any", timeout=T) == 0
        assert await consensus.head(key, timeout=T) is None
        entries = await fill(consensus, key, 5)
        for below, after in ((2, entries[1].data), (2, entries[2].data + b"\0"), (9, entries[4].data)):
            assert await consensus.truncate(key, below, after=after, timeout=T) == 0
        assert await consensus.scan(key, 0, 100, timeout=T) == entries
        assert await consensus.truncate(key, 2, after=entries[2].data[:-1], timeout=T) == 2
        assert await consensus.scan(key, 0, 100, timeout=T) == entries[2:]
        # Others went further: there is nothing left to take.
        assert await consensus.truncate(key, 1, after=entries[1].data, timeout=T) == 0
        assert await consensus.truncate(key, 4, after=entries[4].data, timeout=T) == 2
        assert await consensus.head(key, timeout=T) == entries[4]


async def test_truncate_above_the_head_is_refused_and_changes_nothing(consensus_uri: str) -> None:
    key = shard()
    async with consensuses(consensus_uri) as [consensus]:
        entries = await fill(consensus, key, 3)
        for below in (3, 4, 2**63 - 1):
            with pytest.raises(InvalidArgument):
                await consensus.truncate(key, below, timeout=T)
        for below in (-1, 2**63):
            with pytest.raises(InvalidArgument):
                await consensus.truncate(key, below, timeout=T)
        assert await consensus.scan(key, 0, 100, timeout=T) == entries


async def test_stalled_writer_after_truncate_never_wins_an_old_seqno(consensus_uri: str) -> None:
    key = shard()
    async with consensuses(consensus_uri, 2) as [fast, stalled]:
        entries = await fill(fast, key, 3)
        assert await stalled.head(key, timeout=T) == entries[2]
        for seqno in range(3, 12):
            assert await fast.compare_and_set(key, seqno - 1, b"fast", timeout=T)
        assert await fast.truncate(key, 11, timeout=T) == 11
        for expected in range(-1, 11):
            assert not await stalled.compare_and_set(key, expected, b"late", timeout=T)
        assert await fast.scan(key, 0, 100, timeout=T) == [Entry(seqno=11, data=b"fast")]


async def test_keys_are_independent(consensus_uri: str) -> None:
    one, two = shard(), shard()
    async with consensuses(consensus_uri) as [consensus]:
        first = await fill(consensus, one, 5)
        second = await fill(consensus, two, 2)
        assert await consensus.truncate(one, 3, timeout=T) == 3
        assert await consensus.scan(one, 0, 10, timeout=T) == first[3:]
        assert await consensus.scan(two, 0, 10, timeout=T) == second


async def test_list_keys_names_every_key_ever_set_once(consensus_uri: str) -> None:
    keys = {str(shard()) for _ in range(30)}
    async with consensuses(consensus_uri, 2) as [one, two]:
        assert [key async for key in two.list_keys(timeout=T)] == []
        for key in keys:
            await fill(one, key, 1)
        assert not await one.compare_and_set(shard(), 5, b"lost", timeout=T)
        found = [key async for key in two.list_keys(timeout=T)]
        assert sorted(found) == sorted(keys)


@pytest.mark.parametrize("key", ["", "a b", "a/b", "{x}:h", "é", "a" * 129, "a\n", "a\0"], ids=repr)
async def test_malformed_keys_are_refused(consensus_uri: str, key: str) -> None:
    async with consensuses(consensus_uri) as [consensus]:
        with pytest.raises(InvalidId):
            await consensus.compare_and_set(key, -1, b"", timeout=T)
        with pytest.raises(InvalidId):
            await consensus.head(key, timeout=T)


async def test_no_time_left_is_definite(consensus_uri: str) -> None:
    key = shard()
    async with consensuses(consensus_uri) as [consensus]:
        with pytest.raises(Determinate):
            await consensus.compare_and_set(key, -1, b"x", timeout=0)
        assert await consensus.head(key, timeout=T) is None


async def test_changes_hint_at_the_head_and_at_commits_of_any_handle(consensus_uri: str) -> None:
    key = shard()
    async with consensuses(consensus_uri, 2) as [writer, watcher]:
        await fill(writer, key, 3)
        hints = watcher.changes(key)
        assert await reach(hints, 2) == 2
        assert await writer.compare_and_set(key, 2, b"by another", timeout=T)
        assert await reach(hints, 3) == 3
        assert await watcher.compare_and_set(key, 3, b"by this", timeout=T)
        assert await reach(hints, 4) == 4
        await hints.aclose()  # type: ignore[attr-defined]  # every adapter's is a generator


async def test_changes_of_many_keys_reach_their_own_listeners(consensus_uri: str) -> None:
    keys = [shard() for _ in range(5)]
    async with consensuses(consensus_uri, 2) as [writer, watcher]:
        listening = [asyncio.ensure_future(reach(watcher.changes(key), number)) for number, key in enumerate(keys)]
        for number, key in enumerate(keys):
            await fill(writer, key, number + 1)
        assert await asyncio.gather(*listening) == list(range(5))


async def test_changes_end_when_the_store_is_closed(consensus_uri: str) -> None:
    key = shard()
    async with consensuses(consensus_uri) as [consensus]:
        await fill(consensus, key, 1)
        hints = consensus.changes(key)
        assert await anext(hints) == 0
        await consensus.close()
        assert [hint async for hint in hints] == []
        with pytest.raises(Determinate):
            await consensus.head(key, timeout=T)


async def test_uri_reopens_the_same_store(consensus_uri: str) -> None:
    key = shard()
    async with consensuses(consensus_uri) as [consensus]:
        await fill(consensus, key, 2)
        async with consensuses(consensus.uri) as [again]:
            assert again.uri == consensus.uri
            assert await again.head(key, timeout=T) == Entry(seqno=1, data=b"value 1")


async def test_findings_of_a_sound_store_are_none(consensus_uri: str) -> None:
    async with consensuses(consensus_uri) as [consensus]:
        names = [finding.name for finding in await consensus.findings()]
        # The folder for temporary files may itself be in memory.
        assert names in ([], ["sqlite-filesystem"])


async def reach(hints: AsyncIterator[int], seqno: int) -> int:
    """The first hint at or beyond ``seqno``."""
    async for hint in hints:
        if hint >= seqno:
            return hint
    raise AssertionError("the hints ended")
