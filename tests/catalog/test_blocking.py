"""The catalog without an event loop, and the page that shows it."""

import threading
from pathlib import Path
from typing import Any, cast

import pytest
from pages.fences import fences
from unit.core.catalog.samples import cluster, user

import persist
from persist.catalog import (
    CLUSTER,
    ITEM,
    ClusterKey,
    DuplicateKey,
    FencedByEpoch,
    Mode,
    NotWritable,
    Token,
    Upgrade,
    catalog_shard,
)
from persist.core.release import RELEASE
from persist.errors import InvalidArgument
from persist.wire.catalog.migrations import MIGRATIONS

ROOT = Path(__file__).parents[2]
CURRENT = MIGRATIONS.current
ONE, TWO = ClusterKey(user(1)), ClusterKey(user(2))


def test_the_page_shows_what_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    shown = fences(ROOT / "docs/catalog.md")
    examples = [each.code for each in shown if each.elsewhere in ("", "tests/catalog/test_blocking.py")]
    assert len(examples) == 3
    scope: dict[str, object] = {}
    try:
        for example in examples:
            exec(example, scope)  # the page of this checkout
        names = [it.name for it in scope["leader"].objects(scope["DATABASE"]).values()]  # type: ignore[attr-defined]  # made by the page
        assert names == ["orders"]
    finally:
        scope["client"].close()  # type: ignore[attr-defined]  # made by the page


def test_everything_blocks_as_it_awaits(tmp_path: Path):
    with persist.embedded(tmp_path) as client, client.catalog("here") as catalog:
        assert (catalog.is_initialized(), catalog.fence_token()) == (False, None)
        leader = catalog.open(1)
        assert (leader.mode, leader.token, catalog.fence_token()) == (Mode.WRITABLE, leader.token, leader.token)
        transaction = leader.transaction(token=Token.named("t"))
        transaction.insert(CLUSTER, ONE, cluster("a"))
        with pytest.raises(DuplicateKey):
            transaction.insert(CLUSTER, ONE, cluster("b"))
        assert (transaction.get(CLUSTER, ONE), transaction.find(CLUSTER, ("a",))) == (cluster("a"), ONE)
        assert (transaction.next_op(), list(transaction.allocate_oids(2))) == (1, [20_000, 20_001])
        assert leader.commit(transaction) == leader.commit(transaction) == leader.upper
        leader.set(CLUSTER, {TWO: cluster("b")})
        reader, savepoint = catalog.open_read_only(), catalog.open_savepoint(1)
        assert reader.objects(CLUSTER) == savepoint.objects(CLUSTER) == {ONE: cluster("a"), TWO: cluster("b")}
        assert (reader.get(CLUSTER, ONE), reader.count(CLUSTER)) == (cluster("a"), 2)
        leader.advance_upper(100)
        leader.confirm_leadership()
        assert (reader.sync(100, timeout=60), reader.upper) == ([], 100)
        assert (leader.audit_logs(), leader.prune_storage_usage(None, 0), reader.storage_usage()) == ([], [], [])
        assert catalog.upgrade_check() == Upgrade(CURRENT, CURRENT, ())
        assert len(catalog.dump(kinds=[CLUSTER.tag]).updates) == len(reader.dump(kinds=[CLUSTER.tag]).updates) == 2
        assert catalog.edit(CLUSTER, TWO, None) == cluster("b")
        with pytest.raises(FencedByEpoch):
            leader.allocate("user")
        reader.close()


def test_threads_share_one_open_catalog(tmp_path: Path):
    with persist.embedded(tmp_path) as client, client.catalog("here") as catalog:
        leader = catalog.open(1)
        taken: list[int] = []

        def work(number: int) -> None:
            for _ in range(3):
                taken.extend(leader.allocate("user", 2))
            transaction = leader.transaction()
            transaction.insert(CLUSTER, ClusterKey(user(number)), cluster(f"c{number}"))
            leader.commit(transaction)
            assert leader.count(ITEM) == 0

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(taken) == list(range(1, 37))
        assert len(leader.objects(CLUSTER)) == 6


def test_a_shard_is_found_by_the_name_of_the_environment(tmp_path: Path):
    assert str(catalog_shard("production")) == "s503f8fe5-0698-902e-c8e7-463b6e57a954"
    assert catalog_shard("production") != catalog_shard("production1")
    for name in ("", "a\0b", "\ud800", 1, None):
        with pytest.raises(InvalidArgument):
            catalog_shard(cast(Any, name))
    with persist.embedded(tmp_path) as client, client.catalog("production") as catalog:
        with pytest.raises(NotWritable):
            catalog.open_savepoint(1)
        assert catalog_shard("production") in client.list_shards()


def test_the_release_leaves_its_own_version():
    assert f'\nversion = "{RELEASE}"\n' in (ROOT / "pyproject.toml").read_text()
