"""Three PersistShards as processes behind a balancer, which runs what ``deploy/`` says, at other addresses."""

import asyncio
import contextlib
import os
import re
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest
from services.process import ServeProcess, serve_process

from persist.client.remote.sessions import BUCKET_HEADER, bucket_of
from persist.core.ids import ShardId
from persist.testing.servers import free_port
from persist.v1 import shard_pb2 as pb
from persist.v1.shard_pb2_grpc import PersistShardStub

DEPLOY = Path(__file__).parents[2] / "deploy"
PROGRAMS = {"haproxy": "haproxy.cfg", "envoy": "envoy.yaml"}


@dataclass(frozen=True)
class Balanced:
    """``endpoint``: of the balancer. ``servers`` and ``sides``: the replicas, and where their metrics are."""

    endpoint: str
    servers: tuple[ServeProcess, ...]
    sides: tuple[str, ...]

    async def counts(self, name: str) -> list[float]:
        """A counter of each replica, summed over its labels."""
        return [_sum(await asyncio.to_thread(_read, f"http://{side}/metrics"), name) for side in self.sides]


def installed(program: str) -> str:
    """Where a balancer is. Skips where it is not installed; Debian has HAProxy where not every PATH leads."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


@asynccontextmanager
async def balanced(
    program: str, *stores: str, directory: Path, count: int = 3, patient: bool = True
) -> AsyncIterator[Balanced]:
    """``patient``: a replica that answers no check for a second stays. Skips where the balancer is not installed."""
    found = installed(program)
    async with AsyncExitStack() as stack:
        sides = tuple(f"127.0.0.1:{free_port()}" for _ in range(count))
        servers = [
            await stack.enter_async_context(
                serve_process("shard", *stores, "--side-listen", side, PERSIST_COMPACTION="off")
            )
            for side in sides
        ]
        port = free_port()
        file = directory / PROGRAMS[program]
        file.write_text(_elsewhere(file.name, port, [server.endpoint for server in servers], sides, patient=patient))
        # Several Envoys of one machine would take each other for themselves, restarted.
        envoy = ["-c", str(file), "--log-level", "warn", "--use-dynamic-base-id"]
        arguments = ["-f", str(file), "-db"] if program == "haproxy" else envoy
        stack.enter_context(_running([found, *arguments], port))
        behind = Balanced(f"127.0.0.1:{port}", tuple(servers), sides)
        await _all_are_known(behind)
        yield behind


async def _all_are_known(behind: Balanced) -> None:
    """Ask for shards of all buckets until each replica was asked: the balancer has seen by then that it is well."""
    async with grpc.aio.insecure_channel(behind.endpoint) as channel:
        stub = PersistShardStub(channel)

        async def ask(number: int) -> None:
            shard = ShardId.of(bytes(15) + bytes([number]))
            with contextlib.suppress(grpc.aio.AioRpcError):
                await stub.Open(
                    pb.OpenRequest(shard_id=shard), timeout=60, metadata=((BUCKET_HEADER, bucket_of(shard)),)
                )

        while not all(await behind.counts("persist_rpc_total")):
            await asyncio.gather(*map(ask, range(256)))


def _elsewhere(name: str, port: int, endpoints: list[str], sides: tuple[str, ...], *, patient: bool) -> str:
    """The file of ``deploy/`` with these addresses, and with as many replicas as there are.

    ``patient``: where all of them share two cores with other tests, and none is to be left for a second without answer.
    """
    text = (DEPLOY / name).read_text()
    if patient:
        text = text.replace(" fall 2 ", " fall 20 ").replace("unhealthy_threshold: 2", "unhealthy_threshold: 20")
    for number in range(len(endpoints) + 1, 4):
        text = re.sub(rf"^ *server shard{number} .*\n", "", text, flags=re.MULTILINE)
    for number, (endpoint, side) in enumerate(zip(endpoints, sides, strict=True), start=1):
        text = text.replace(f"shard{number}:7100", endpoint).replace(f"shard{number}:9100", side)
        host, at = endpoint.split(":")
        text = text.replace(f"address: shard{number}, port_value: 7100", f"address: {host}, port_value: {at}")
        text = text.replace("port_value: 9100", f"port_value: {side.split(':')[1]}", 1)
    return text.replace("bind :7100", f"bind 127.0.0.1:{port}").replace(
        "address: 0.0.0.0, port_value: 7100", f"address: 127.0.0.1, port_value: {port}"
    )


@contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        while not _answers(port):
            assert process.poll() is None, process.communicate()[0]
        yield
    finally:
        process.kill()
        process.communicate()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def _sum(metrics: str, name: str) -> float:
    begins = tuple(name + end for end in " {,")
    return sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(begins))
