"""Real stores with unsafe settings are found out and refused. Source: reliability.md section 4 and B18."""

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis.asyncio as aioredis
from conformance.handles import T, blobs, consensuses, shard

from persist.errors import StoreFull, StoreReadOnly, UnsafeConfiguration
from persist.storage.open import check_safe
from persist.storage.ports import Consensus, Finding
from persist.testing import servers


def names(findings: object) -> set[str]:
    return {finding.name for finding in findings}  # type: ignore[attr-defined]  # a sequence of findings


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"appendonly": "no"}, {"redis-appendonly"}),
        ({"appendfsync": "everysec"}, {"redis-appendfsync"}),
        ({"appendfsync": "no"}, {"redis-appendfsync"}),
        ({"maxmemory": "10mb", "maxmemory-policy": "allkeys-lru"}, {"redis-maxmemory-policy"}),
        ({"maxmemory-policy": "volatile-ttl"}, {"redis-maxmemory-policy"}),
        ({"no-appendfsync-on-rewrite": "yes"}, {"redis-no-appendfsync-on-rewrite"}),
        ({"cluster-enabled": "yes", "databases": "1"}, {"redis-cluster"}),
        (
            {"appendonly": "no", "appendfsync": "everysec", "maxmemory-policy": "allkeys-random"},
            {"redis-appendonly", "redis-appendfsync", "redis-maxmemory-policy"},
        ),
    ],
    ids=["no log", "everysec", "never", "lru", "ttl", "rewrite", "cluster", "all"],
)
async def test_redis_with_an_unsafe_setting_is_found(config: dict[str, str], expected: set[str]) -> None:
    with servers.redis_server(config) as uri:
        async with consensuses(uri) as [consensus]:
            findings = await consensus.findings()
    assert names(findings) == expected
    with pytest.raises(UnsafeConfiguration):
        check_safe(findings, ())
    check_safe(findings, expected)


async def test_redis_replica_and_its_primary_are_found_and_the_replica_never_used() -> None:
    with servers.start_redis() as primary, servers.start_redis() as replica:
        client = aioredis.Redis.from_url(replica.uri)
        await client.execute_command("REPLICAOF", "127.0.0.1", primary.port)
        admin = aioredis.Redis.from_url(primary.uri)
        while (await admin.info("replication"))["connected_slaves"] == 0:
            await client.ping()
        await client.aclose()
        await admin.aclose()
        async with consensuses(primary.uri) as [of_primary], consensuses(replica.uri) as [of_replica]:
            assert names(await of_primary.findings()) == {"redis-replicated"}
            assert names(await of_replica.findings()) == {"redis-replica"}
            with pytest.raises(StoreReadOnly):
                await of_replica.head(shard(), timeout=T)


async def test_redis_that_denies_config_is_found_without_leaking_the_password(fresh_redis_uri: object) -> None:
    uri: str = fresh_redis_uri()  # type: ignore[operator]  # a fixture that is a function
    user, password = f"u{secrets.token_hex(4)}", f"canary{secrets.token_hex(8)}"
    admin = aioredis.Redis.from_url(uri)
    await admin.execute_command("ACL", "SETUSER", user, "on", f">{password}", "~*", "&*", "+@all", "-config")
    await admin.aclose()
    async with consensuses(uri.replace("//", f"//{user}:{password}@")) as [consensus]:
        findings = await consensus.findings()
        assert names(findings) == {"redis-config-denied"}
        assert await consensus.compare_and_set(shard(), -1, b"x", timeout=T)
        assert password not in f"{consensus!r} {consensus.uri} {findings}"
        assert user in consensus.uri
        assert password in consensus.uri_with_secrets  # type: ignore[attr-defined]  # of this adapter


async def test_full_redis_refuses_definitely_and_keeps_what_it_has() -> None:
    key = shard()
    with servers.redis_server({"maxmemory": "4mb", "maxmemory-policy": "noeviction"}) as uri:
        async with consensuses(uri) as [consensus]:
            with pytest.raises(StoreFull):
                await fill(consensus, key)
            head = await consensus.head(key, timeout=T)
            assert head is not None
            assert head.seqno >= 1
            assert len(await consensus.scan(key, 0, 1000, timeout=T)) == head.seqno + 1
            await consensus.truncate(key, head.seqno, timeout=T)


async def fill(consensus: Consensus, key: str) -> None:
    for expected in range(-1, 1000):
        assert await consensus.compare_and_set(key, expected, secrets.token_bytes(100_000), timeout=T)


@pytest.fixture(scope="module")
def unsafe_postgres() -> Iterator[str]:
    config = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "data_sync_retry": "on"}
    with servers.postgres_server(config) as uri:
        yield uri


async def test_postgres_with_unsafe_settings_is_found(unsafe_postgres: str) -> None:
    async with consensuses(unsafe_postgres) as [consensus]:
        assert names(await consensus.findings()) == {
            "postgres-fsync",
            "postgres-full-page-writes",
            "postgres-synchronous-commit",
            "postgres-data-sync-retry",
        }


@pytest.mark.parametrize("value", ["off", "local", "remote_write"])
async def test_postgres_session_that_does_not_wait_for_the_disk_is_found(postgres_uri: str, value: str) -> None:
    uri = f"{postgres_uri}?options=-csynchronous_commit%3D{value}"
    async with consensuses(uri) as [consensus]:
        [finding] = await consensus.findings()
        assert (finding.name, finding.found) == ("postgres-synchronous-commit", value)


async def test_postgres_standby_is_found_and_never_used() -> None:
    with servers.start_postgres() as server:
        data = server.directory / "data"
        server.kill()
        signal = data / "standby.signal"
        signal.touch()
        shutil.chown(signal, data.stat().st_uid, data.stat().st_gid)
        server.start()
        async with consensuses(server.uri) as [consensus]:
            assert names(await consensus.findings()) == {"postgres-standby"}
            with pytest.raises(StoreReadOnly):
                await consensus.compare_and_set(shard(), -1, b"x", timeout=T)


async def test_postgres_password_is_nowhere_to_be_seen() -> None:
    password = f"canary{secrets.token_hex(8)}"
    uri = f"postgres://someone:{password}@127.0.0.1:{servers.free_port()}/db?password={password}&connect_timeout=3"
    async with consensuses(uri) as [consensus]:
        with pytest.raises(Exception, match="cannot connect") as caught:
            await consensus.head(shard(), timeout=T)
        assert password not in f"{consensus!r} {consensus.uri} {caught.value}"
        assert consensus.uri.startswith("postgres://someone@127.0.0.1:")
        assert consensus.uri_with_secrets == uri  # type: ignore[attr-defined]  # of this adapter


async def test_sqlite_in_memory_is_found_and_works_when_accepted() -> None:
    key = shard()
    async with consensuses("sqlite::memory:") as [consensus]:
        assert names(await consensus.findings()) == {"sqlite-memory", "sqlite-journal-mode"}
        assert await consensus.compare_and_set(key, -1, b"x", timeout=T)
        assert [entry.data for entry in await consensus.scan(key, 0, 5, timeout=T)] == [b"x"]


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a file system in memory")
async def test_stores_on_a_file_system_in_memory_are_found() -> None:
    place = Path("/dev/shm") / f"persist-test-{secrets.token_hex(8)}"
    place.mkdir()
    try:
        async with consensuses(f"sqlite:{place}/x.db") as [consensus], blobs(f"file:{place}/blob") as [blob]:
            assert names(await consensus.findings()) == {"sqlite-filesystem"}
            assert names(await blob.findings()) == {"file-filesystem"}
    finally:
        shutil.rmtree(place)


def test_refusal_names_everything_a_person_needs() -> None:
    one = Finding(name="a-b", setting="b", found="no", required="yes", consequence="acknowledged data is lost")
    two = Finding(name="c", setting="d", found="1", required="2", consequence="more is lost")
    check_safe((), ())
    check_safe([one, two], ("c", "a-b", "unrelated"))
    with pytest.raises(UnsafeConfiguration) as caught:
        check_safe([one, two], ("c",))
    text = str(caught.value)
    for part in ("a-b", "b is no", "must be yes", "acknowledged data is lost", "PERSIST_ALLOW_UNSAFE=c,a-b"):
        assert part in text
    assert "more is lost" not in text
    assert caught.value.details["findings"] == "a-b"
