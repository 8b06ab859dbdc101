"""One contract for every Blob adapter. Source: persist-semantics.md section 2.8."""

import asyncio
import secrets
from collections.abc import Callable

import pytest
from conformance.handles import T, blob_key, blobs, shard

from persist.core.ids import rollup_key
from persist.errors import Determinate, InvalidArgument, InvalidId
from persist.storage.blob.s3 import S3Blob


async def test_get_of_a_missing_key_is_none(blob_uri: str) -> None:
    async with blobs(blob_uri) as [blob]:
        assert await blob.get(blob_key(), timeout=T) is None
        assert await blob.get(blob_key(), byte_range=(0, 0), timeout=T) is None
        assert await blob.get(blob_key(), byte_range=(1, 5), timeout=T) is None


@pytest.mark.parametrize("size", [0, 1, 4096, 3_000_001], ids=str)
async def test_set_value_is_read_back_by_another_handle(blob_uri: str, size: int) -> None:
    key, value = blob_key(), secrets.token_bytes(size)
    async with blobs(blob_uri, 2) as [one, two]:
        await one.set(key, value, timeout=T)
        assert await two.get(key, timeout=T) == value


async def test_set_takes_memoryviews_of_wider_items(blob_uri: str) -> None:
    key, value = blob_key(), secrets.token_bytes(800)
    async with blobs(blob_uri) as [blob]:
        await blob.set(key, memoryview(value).cast("Q"), timeout=T)
        assert await blob.get(key, timeout=T) == value


async def test_set_of_a_large_value_is_read_back_whole_and_in_ranges(blob_uri: str) -> None:
    key, value = blob_key(), secrets.token_bytes(1 << 20) * 41
    async with blobs(blob_uri) as [blob]:
        await blob.set(key, memoryview(value), timeout=60)
        assert await blob.get(key, timeout=60) == value
        edge = 16 << 20
        assert await blob.get(key, byte_range=(edge - 3, edge + 5), timeout=T) == value[edge - 3 : edge + 5]
        assert [entry async for entry in blob.list(key, timeout=T)] == [(key, len(value))]


async def test_set_again_with_the_same_value_is_fine(blob_uri: str) -> None:
    key = blob_key()
    async with blobs(blob_uri) as [blob]:
        await blob.set(key, b"value", timeout=T)
        await blob.set(key, b"value", timeout=T)
        assert await blob.get(key, timeout=T) == b"value"


@pytest.mark.parametrize(
    ("byte_range", "expected"),
    [((0, 10), b"0123456789"), ((3, 6), b"345"), ((9, 10), b"9"), ((4, 4), b""), ((8, 99), b"89"), ((10, 12), b"")],
    ids=["all", "middle", "last", "empty", "beyond the end", "at the end"],
)
async def test_get_of_a_range_slices_the_value(blob_uri: str, byte_range: tuple[int, int], expected: bytes) -> None:
    key = blob_key()
    async with blobs(blob_uri) as [blob]:
        await blob.set(key, b"0123456789", timeout=T)
        assert await blob.get(key, byte_range=byte_range, timeout=T) == expected


@pytest.mark.parametrize("byte_range", [(-1, 3), (5, 4)], ids=["negative", "reversed"])
async def test_get_of_an_impossible_range_is_refused(blob_uri: str, byte_range: tuple[int, int]) -> None:
    async with blobs(blob_uri) as [blob]:
        with pytest.raises(InvalidArgument):
            await blob.get(blob_key(), byte_range=byte_range, timeout=T)


async def test_delete_tells_the_size_once(blob_uri: str) -> None:
    key, empty = blob_key(), blob_key()
    async with blobs(blob_uri) as [blob]:
        await blob.set(key, b"value", timeout=T)
        await blob.set(empty, b"", timeout=T)
        assert await blob.delete(key, timeout=T) == 5
        assert await blob.delete(key, timeout=T) is None
        assert await blob.get(key, timeout=T) is None
        assert await blob.delete(empty, timeout=T) == 0


async def test_many_are_deleted_and_those_that_are_not_there_passed_over(blob_uri: str) -> None:
    keys, missing, stays = [blob_key() for _ in range(20)], blob_key(), blob_key()
    async with blobs(blob_uri) as [blob]:
        for key in (*keys, stays):
            await blob.set(key, b"value", timeout=T)
        await blob.delete_many([*keys[:10], missing, *keys[10:]], timeout=T)
        assert [await blob.get(key, timeout=T) for key in keys] == [None] * 20
        assert await blob.get(stays, timeout=T) == b"value"
        await blob.delete_many(keys, timeout=T)
        await blob.delete_many([], timeout=T)


async def test_list_finds_exactly_the_keys_with_the_prefix(blob_uri: str) -> None:
    one, two = shard(), shard()
    sizes = {blob_key(one): 3, blob_key(one): 0, rollup_key(one, 7, secrets.token_bytes(16)): 5, blob_key(two): 9}
    async with blobs(blob_uri, 2) as [writer, reader]:
        for key, size in sizes.items():
            await writer.set(key, b"x" * size, timeout=T)
        whole = next(iter(sizes))
        for prefix in ("", one, f"{one}/", f"{one}/rollup/", f"{one}/rollup/7", one[:9], whole, "nothing"):
            found = [entry async for entry in reader.list(prefix, timeout=T)]
            assert len(found) == len(dict(found))
            assert dict(found) == {key: size for key, size in sizes.items() if key.startswith(prefix)}, prefix


async def test_list_pages_through_more_than_a_thousand_keys(blob_uri: str) -> None:
    one = shard()
    keys = {blob_key(one) for _ in range(1100)}
    if not blob_uri.startswith("s3:"):
        keys = set(sorted(keys)[:50])
    async with blobs(blob_uri) as [blob]:
        # Fifty at a time: each may open a connection, and a user may have no more than a thousand files.
        ordered = sorted(keys)
        for start in range(0, len(ordered), 50):
            await asyncio.gather(*(blob.set(key, b"x", timeout=T) for key in ordered[start : start + 50]))
        assert {key async for key, _ in blob.list(f"{one}/", timeout=T)} == keys


async def test_restore_of_a_present_value_is_fine_and_of_a_deleted_one_definite(blob_uri: str) -> None:
    key = blob_key()
    async with blobs(blob_uri) as [blob]:
        await blob.set(key, b"value", timeout=T)
        for dry_run in (True, False):
            await blob.restore(key, dry_run=dry_run, timeout=T)
        await blob.delete(key, timeout=T)
        can = True
        try:
            await blob.restore(key, dry_run=True, timeout=T)
        except Determinate:
            can = False
        # It only looked.
        assert await blob.get(key, timeout=T) is None
        try:
            await blob.restore(key, timeout=T)
        except Determinate:
            assert not can
            assert await blob.get(key, timeout=T) is None
        else:
            assert await blob.get(key, timeout=T) == b"value"


async def test_concurrent_sets_and_gets_show_whole_values_only(blob_uri: str) -> None:
    key = blob_key()
    values = [bytes([n]) * 200_000 for n in range(4)]
    async with blobs(blob_uri, 2) as [writer, reader]:
        await writer.set(key, values[0], timeout=T)
        writes = asyncio.gather(*(writer.set(key, value, timeout=T) for value in values * 5))
        seen = 0
        while not writes.done():
            assert await reader.get(key, timeout=T) in values
            seen += 1
            await asyncio.sleep(0)  # let the writers run: memory answers without waiting
        await writes
    assert seen > 0


@pytest.mark.parametrize("key", ["", "x", "../x", "s1/n1-2/p3"], ids=["empty", "word", "parent", "short ids"])
async def test_malformed_keys_are_refused(blob_uri: str, key: str) -> None:
    async with blobs(blob_uri) as [blob]:
        for call in (
            blob.get(key, timeout=T),
            blob.set(key, b"", timeout=T),
            blob.delete(key, timeout=T),
            blob.delete_many([key], timeout=T),
        ):
            with pytest.raises(InvalidId):
                await call


async def test_no_time_left_is_definite(blob_uri: str) -> None:
    key = blob_key()
    async with blobs(blob_uri) as [blob]:
        with pytest.raises(Determinate):
            await blob.set(key, b"value", timeout=0)
        assert await blob.get(key, timeout=T) is None


async def test_uri_reopens_the_same_store(blob_uri: str) -> None:
    key = blob_key()
    async with blobs(blob_uri) as [blob]:
        await blob.set(key, b"value", timeout=T)
        async with blobs(blob.uri) as [again]:
            assert again.uri == blob.uri
            assert await again.get(key, timeout=T) == b"value"


async def test_findings_of_a_sound_store_are_none(blob_uri: str, request: pytest.FixtureRequest) -> None:
    async with blobs(blob_uri) as [blob]:
        names = [finding.name for finding in await blob.findings()]
        # The folder for temporary files may itself be in memory.
        assert names in ([], ["file-filesystem"])
        assert [entry async for entry in blob.list("", timeout=T)] == []


async def test_closed_store_refuses_calls(blob_uri: str) -> None:
    async with blobs(blob_uri) as [blob]:
        await blob.close()
        with pytest.raises(Determinate):
            await blob.get(blob_key(), timeout=T)


async def test_abort_uploads_leaves_what_is_finished_and_what_is_young(blob_uri: str) -> None:
    key = blob_key()
    async with blobs(blob_uri) as [blob]:
        await blob.set(key, b"value", timeout=T)
        assert await blob.abort_uploads("", older_than_ms=0, timeout=T) == 0
        assert await blob.get(key, timeout=T) == b"value"


async def test_abort_uploads_gives_up_an_upload_whose_process_died(fresh_s3_uri: Callable[[], str]) -> None:
    key, other = blob_key(), blob_key()
    async with blobs(fresh_s3_uri()) as [blob]:
        assert isinstance(blob, S3Blob)
        for name in (key, other):
            blob._client.create_multipart_upload(Bucket=blob._location.bucket, Key=blob._location.key(name))
        shard_of_key = key.split("/")[0] + "/"
        assert await blob.abort_uploads(shard_of_key, older_than_ms=3_600_000, timeout=T) == 0
        assert await blob.abort_uploads(shard_of_key, older_than_ms=-60_000, dry_run=True, timeout=T) == 1
        assert await blob.abort_uploads(shard_of_key, older_than_ms=-60_000, timeout=T) == 1
        assert await blob.abort_uploads(shard_of_key, older_than_ms=-60_000, timeout=T) == 0
        assert await blob.abort_uploads("", older_than_ms=-60_000, timeout=T) == 1
