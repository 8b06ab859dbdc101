"""PersistShards behind a balancer, as ``deploy/`` configures it: what concerns one shard goes to one of them."""

import asyncio
import subprocess
from pathlib import Path

import grpc.aio
import pytest
from client.support import SCHEMA, table
from services.balancing import DEPLOY, Balanced, balanced, installed
from services.support import new_shard

from persist import aio
from persist.client.remote.sessions import BUCKET_HEADER, SHARD_HEADER, bucket_of
from persist.core.ids import ShardId
from persist.v1 import shard_pb2 as pb
from persist.v1.shard_pb2_grpc import PersistShardStub

COMMITS = "persist_lane_commits_total"
CONFLICTS = "persist_commit_conflicts_total"
CLIENTS = 6
EACH = 60
ROUNDS = 3
"""The first that no replica was out in decides."""
BALANCERS = pytest.mark.parametrize("program", ["haproxy", "envoy"])


async def conflicts(behind: Balanced) -> tuple[float, float]:
    """Lost races and commits, of all replicas."""
    return sum(await behind.counts(CONFLICTS)), sum(await behind.counts(COMMITS))


@BALANCERS
async def test_default_clients_of_one_hot_shard_commit_at_one_server(program, tmp_path: Path, fresh_postgres_uri):
    stores = "--blob", f"file:{tmp_path}/blob", "--consensus", fresh_postgres_uri()
    async with balanced(program, *stores, directory=tmp_path) as behind:
        hot, cold = new_shard(), [new_shard() for _ in range(24)]

        async def append(number: int) -> None:
            async with await aio.connect(behind.endpoint) as client:
                writer = await client.open_writer(hot, schema=SCHEMA)
                reader = await client.open_reader(hot)
                others = [await client.open_writer(shard, schema=SCHEMA) for shard in cold[number::CLIENTS]]
                for count in range(EACH):
                    await writer.append_at_upper(table([(count, "row", 0, 1)]), timeout=60)
                    await others[count % len(others)].append_at_upper(table([(count, "row", 0, 1)]), timeout=60)
                await reader.snapshot(as_of=0)

        lost, commits = 0.0, 0.0
        for _ in range(ROUNDS):
            before = lost, commits
            await asyncio.gather(*map(append, range(CLIENTS)))
            lost, commits = await conflicts(behind)
            assert commits - before[1] > EACH
            # A replica that answers no check in time, on a busy machine, is out for a while, and its shards move.
            if lost - before[0] <= 0.01 * (commits - before[1]):
                break
        else:
            raise AssertionError(f"{lost:.0f} of {commits:.0f} commits lost a race")
        # The others are spread.
        assert all(count > 0 for count in await behind.counts(COMMITS))


@BALANCERS
async def test_calls_that_name_their_shard_alone_go_where_its_sessions_go(program, tmp_path: Path):
    stores = "--blob", f"file:{tmp_path}/blob", "--consensus", f"sqlite:{tmp_path}/consensus.db"
    async with (
        balanced(program, *stores, directory=tmp_path) as behind,
        await aio.connect(behind.endpoint) as client,
        grpc.aio.insecure_channel(behind.endpoint) as channel,
    ):
        stub, opens = PersistShardStub(channel), 'persist_rpc_total{method="/persist.v1.PersistShard/Open"'
        for _ in range(8):
            shard = new_shard()
            writer = await client.open_writer(shard, schema=SCHEMA)
            before = await behind.counts(COMMITS), await behind.counts(opens)
            await writer.append_at_upper(table([(1, "row", 0, 1)]))
            await stub.Open(pb.OpenRequest(shard_id=shard), timeout=60, metadata=((SHARD_HEADER, shard),))
            after = await behind.counts(COMMITS), await behind.counts(opens)
            committed, opened = ([b > a for a, b in zip(*two, strict=True)] for two in zip(before, after, strict=True))
            assert committed == opened
            assert sum(opened) == 1


@BALANCERS
async def test_buckets_are_spread_over_servers(program, tmp_path: Path):
    stores = "--blob", f"file:{tmp_path}/blob", "--consensus", f"sqlite:{tmp_path}/consensus.db"
    async with (
        balanced(program, *stores, directory=tmp_path) as behind,
        grpc.aio.insecure_channel(behind.endpoint) as channel,
    ):
        stub = PersistShardStub(channel)

        async def ask(number: int) -> None:
            shard = ShardId.of(bytes(15) + bytes([number]))
            request = pb.OpenRequest(shard_id=shard)
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Open(request, timeout=60, metadata=((BUCKET_HEADER, bucket_of(shard)),))

        asked = [0.0]
        # A replica that is busy for longer than a health check allows is left out for a moment.
        async with asyncio.timeout(60):
            while not (min(asked) >= 256 / 3 / 2 and max(asked) <= 256 / 3 * 1.5):
                before = await behind.counts("persist_rpc_total")
                await asyncio.gather(*map(ask, range(256)))
                asked = [b - a for a, b in zip(before, await behind.counts("persist_rpc_total"), strict=True)]
                assert sum(asked) >= 256


def test_balancers_are_configured_to_follow_the_header_that_clients_send():
    for name in ("haproxy.cfg", "envoy.yaml"):
        assert BUCKET_HEADER in (DEPLOY / name).read_text()


def test_haproxy_accepts_the_configuration_without_a_warning_of_its_own(tmp_path: Path):
    haproxy = installed("haproxy")
    text = (DEPLOY / "haproxy.cfg").read_text()
    for number in (1, 2, 3):
        text = text.replace(f"shard{number}:", "127.0.0.1:")
    (tmp_path / "haproxy.cfg").write_text(text)
    told = subprocess.run(
        [haproxy, "-c", "-f", str(tmp_path / "haproxy.cfg")], capture_output=True, text=True, check=False
    )
    assert (told.returncode, "WARNING" in told.stdout + told.stderr) == (0, False), told
