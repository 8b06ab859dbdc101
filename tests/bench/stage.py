"""The servers all systems share: one S3 server, one Redis that syncs every write, and PersistShard processes on them.

The S3 server keeps its objects in memory, so it starts anew for every suite.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from urllib.parse import urlencode

from bench.processes import Child, child
from bench.proxy import Proxy
from persist.testing import servers

BUCKET = "bench"
S3_CLIENTS = ("obstore", "boto3")


class Stage:
    """What runs for one suite. ``s3_endpoint`` may be swapped for a counting proxy's."""

    def __init__(self, redis: servers.Server, s3: servers.Server) -> None:
        self._redis = redis
        self._s3 = s3

    @property
    def redis_uri(self) -> str:
        return self._redis.uri

    @property
    def redis_port(self) -> int:
        return self._redis.port

    @property
    def s3_endpoint(self) -> str:
        return f"http://127.0.0.1:{self._s3.port}"

    def blob_uri(self, client: str = "obstore", *, endpoint: str | None = None) -> str:
        """Where persist keeps its blobs, through one of the S3 clients."""
        options = {"endpoint": endpoint or self.s3_endpoint, "region": "us-east-1"}
        if client != "boto3":
            options["client"] = client
        return f"s3://{BUCKET}/persist?{urlencode(options, safe=':/')}"

    @contextlib.contextmanager
    def counting(self) -> Iterator[Proxy]:
        """A proxy in front of the S3 server that counts requests."""
        with Proxy(self._s3.port) as proxy:
            yield proxy

    @contextlib.contextmanager
    def floor_server(self) -> Iterator[tuple[str, Child]]:
        """A server of the floors, and its endpoint."""
        with child("bench.floor.server", [str(self.redis_port)]) as process:
            yield process.line().rpartition(" ")[2], process

    @contextlib.contextmanager
    def shard_server(
        self, client: str = "obstore", *, endpoint: str | None = None, settings: Mapping[str, object] | None = None
    ) -> Iterator[tuple[str, Child]]:
        """A PersistShard process, and its endpoint. ``settings`` by field name."""
        env = {f"PERSIST_{name.upper()}": str(value) for name, value in (settings or {}).items()}
        arguments = ["127.0.0.1:0", self.blob_uri(client, endpoint=endpoint), self.redis_uri]
        with child("persist_shard", arguments, env) as process:
            yield process.line().rpartition(" ")[2], process


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    """Fresh servers for one suite, gone with their data afterwards."""
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "persist")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "persist")
    with servers.start_redis() as redis, servers.start_s3(BUCKET) as s3:
        yield Stage(redis, s3)
