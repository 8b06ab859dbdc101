"""Catalogs in SQL tables, and in two places at once: served by processes of which leaders are killed, and refused."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from client.support import file_place
from services.catalog.cataloging import found, new_token, put, remote_catalog
from services.process import ServeProcess, serve_process

from persist import aio, catalog, embedded
from persist.catalog import SETTING, Setting, SettingKey, ShadowDiffers
from persist.client.catalog.log.stash_log import open_stash_log
from persist.client.catalog.remote import RemoteCatalog
from persist.core.catalog.errors import Fenced, FencedByGeneration
from persist.core.catalog.objects import FenceToken
from persist.core.catalog.rows import Row
from persist.errors import CorruptData, InvalidArgument

QUICK = {"PERSIST_POLL_FIRST_MS": "5", "PERSIST_POLL_MAX_MS": "50"}


@pytest.fixture(params=["sqlite", "postgres"])
def stash(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A stash that was not used yet."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/stash.db"
    fresh: Callable[[], str] = request.getfixturevalue("fresh_postgres_uri")
    return fresh()


def kept(path: Path, implementation: str, stash: str) -> tuple[str, ...]:
    """What says so on the command line."""
    options = ("--implementation", implementation, "--stash", stash)
    place = file_place(path)
    return options if implementation == "stash" else (*options, "--blob", place.blob, "--consensus", place.consensus)


async def is_followed(follower: RemoteCatalog, leader: ServeProcess, token: FenceToken) -> None:
    """Return once a follower says where this leader listens."""
    async with asyncio.timeout(200):
        while True:
            status = await follower.status()
            if (status.token, status.leader) == (token, leader.endpoint):
                return
            await asyncio.sleep(0.05)


@pytest.mark.timeout_s(280)
@pytest.mark.parametrize("implementation", ["stash", "shadow"])
async def test_leader_is_killed_and_another_process_goes_on(tmp_path: Path, stash: str, implementation: str):
    options = kept(tmp_path, implementation, stash)
    async with (
        serve_process("catalog", *options, "--generation", "1", **QUICK) as first,
        serve_process("catalog", *options, **QUICK) as second,
        remote_catalog(first.endpoint, second.endpoint) as both,
        remote_catalog(second.endpoint) as follower,
    ):
        mine = await both.join()
        await is_followed(follower, first, FenceToken(1, 2))
        acknowledged = [await put(mine, f"{number}", "x") for number in range(10)]
        token = new_token()
        settled = await put(mine, "settled", "x", token)
        await first.kill()
        leading = await both.open(2)
        assert leading.token == FenceToken(2, 3)
        assert await put(leading, "settled", "x", token) == settled
        assert [found(leading, f"{number}") for number in range(10)] == ["x"] * 10
        with pytest.raises(Fenced):
            await put(mine, "late", "x")
        await put(leading, "next", "y")
        await first.start()
        async with remote_catalog(first.endpoint) as again:
            await is_followed(again, second, FenceToken(2, 3))
            with pytest.raises(FencedByGeneration):
                await again.open(1)
            reader = await again.open_read_only()
            assert (found(reader, "next"), found(reader, "late")) == ("y", None)
        assert acknowledged == sorted(set(acknowledged))
    with closing(catalog.open_stash(stash, "default")) as there:
        left = there.open_read_only()
        assert [left.get(SETTING, SettingKey(name)) for name in ("9", "next", "late")] == [
            Setting("x"),
            Setting("y"),
            None,
        ]


@pytest.mark.timeout_s(240)
async def test_a_served_shadow_reports_what_differs(tmp_path: Path):
    stash = f"sqlite:{tmp_path}/stash.db"
    options = kept(tmp_path, "shadow", stash)
    async with (
        serve_process("catalog", *options, "--generation", "1", **QUICK) as process,
        remote_catalog(process.endpoint) as asked,
    ):
        writer = await asked.join()
        await put(writer, "a", "1")
        log = await open_stash_log(stash, "default")
        try:
            upper = await log.upper()
            assert await log.append([(Row("stray", b"k", b"v"), 1)], upper, expected_upper=upper) is None
        finally:
            await log.close()
        with pytest.raises(CorruptData, match="differ"):
            await put(writer, "b", "2")


@pytest.mark.timeout_s(240)
async def test_options_that_contradict_are_refused_before_anything_is_made(tmp_path: Path):
    stash = f"sqlite:{tmp_path}/stash.db"
    for options, said in [
        (("--implementation", "stash"), "--stash URI goes with"),
        (("--stash", stash), "--stash URI goes with"),
        (("--implementation", "stash", "--stash", stash, "--location", str(tmp_path / "l")), "leave out --location"),
        (("--implementation", "shadow", "--stash", stash), "name one place"),
        (("--implementation", "other", "--stash", stash), "persist"),
        (("--implementation", "stash", "--stash", "redis://x"), "redis: is no"),
    ]:
        with pytest.raises(AssertionError, match=said):
            await ServeProcess("catalog", *options).start()
    assert not list(tmp_path.iterdir())


def test_blocking_catalogs_of_every_implementation_hold_what_is_put_there(tmp_path: Path):
    stash = f"sqlite:{tmp_path}/stash.db"
    with embedded(tmp_path / "location") as client:
        with closing(client.catalog("one", implementation="shadow", stash=stash)) as both:
            leader = both.open(1)
            leader.set(SETTING, {SettingKey("a"): Setting("1")})
        for own in (
            client.catalog("one"),
            client.catalog("one", implementation="stash", stash=stash),
            catalog.open_stash(stash, "one"),
        ):
            with closing(own):
                assert own.open_read_only().get(SETTING, SettingKey("a")) == Setting("1")
        with closing(catalog.open_stash(stash, "one")) as alone:
            alone.open(2).set(SETTING, {SettingKey("a"): Setting("2")})
        both = client.catalog("one", implementation="shadow", stash=stash)
        with closing(both), pytest.raises(ShadowDiffers):
            both.open_read_only()


async def test_implementations_that_contradict_are_refused(tmp_path: Path):
    async with await aio.embedded(tmp_path) as client:
        for options in (
            {"implementation": "other"},
            {"implementation": "stash"},
            {"stash": "sqlite:x"},
            {"endpoints": "h:1", "implementation": "stash", "stash": "sqlite:x"},
        ):
            with pytest.raises(InvalidArgument):
                await client.catalog("one", **options)
    assert not (tmp_path / "x").exists()
