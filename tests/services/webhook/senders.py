"""Senders of webhooks over real HTTP, and servers of them: in this process, or in one that can be killed."""

import asyncio
import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from forked import Fork, child_environment

from persist_host.address import Address
from persist_ingest import Location, Records
from persist_ingest.location import client
from persist_ingest.receiving.receiver import ReceiverOptions
from persist_webhook.server import Limits
from persist_webhook.serving import Served

SECONDS = 60.0


@dataclass(frozen=True)
class Answered:
    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return str(self.json["error"]["reason"])


def post(
    port: int,
    body: bytes,
    path: str = "/hook",
    method: str = "POST",
    tls: ssl.SSLContext | None = None,
    **headers: str,
) -> Answered:
    """Headers with _ for -. Raises OSError, HTTPException: no answer came."""
    if tls is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=SECONDS, context=tls)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        return Answered(answer.status, answer.read(), {name.lower(): text for name, text in answer.getheaders()})
    finally:
        connection.close()


def raw(port: int, *sent: bytes) -> tuple[socket.socket, bytes]:
    """A connection over which that was sent, and nothing is read yet; its first bytes of answer, once they come."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
    for each in sent:
        connection.sendall(each)
    return connection, connection.recv(65536)


def connected_by_tls(port: int, tls: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection over which nothing was sent."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
    return tls.wrap_socket(plain, server_hostname="127.0.0.1")


@contextlib.contextmanager
def served(
    location: Location,
    *names: str,
    options: ReceiverOptions | None = None,
    limits: Limits | None = None,
    side_listen: str = "",
) -> Iterator[int]:
    """A server in this process; its port."""
    it = Served(location, names or ("hook",), options=options, limits=limits)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        starting = it.start(Address("127.0.0.1", 0), side_listen)
        yield asyncio.run_coroutine_threadsafe(starting, loop).result(SECONDS).port
    finally:
        asyncio.run_coroutine_threadsafe(it.stop(), loop).result(SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def process(location: Location, *words: object, **environment: str) -> Iterator[tuple[Fork, int]]:
    """``persist serve webhook hook`` as a process of its own, and its port."""
    assert location.directory is not None
    where = ("--location", location.directory, "--listen", "127.0.0.1:0", "--json")
    environ = child_environment(**environment)
    fork = Fork("persist_cli", "serve", "webhook", "hook", *where, *words, environment=environ, heard=["output"])
    try:
        assert fork.output is not None
        told = json.loads(fork.output.readline())
        yield fork, int(told["webhook"].rpartition(":")[2])
    finally:
        fork.close()


def rows(location: Location, *columns: str, source: str = "hook", export: str = "rows") -> Counter[Any]:
    """What the table holds at its last complete time."""
    the_client = client(location)
    shard = Records(the_client).source(source).shards[export]
    with the_client.open_reader(shard) as reader:
        upper = the_client.recent_upper(shard).time
        assert upper is not None
        table = reader.snapshot(upper - 1).to_arrow([*columns])
    found: Counter[Any] = Counter()
    for *values, diff in zip(*(column.to_pylist() for column in table.columns), strict=True):
        found[tuple(values) if len(values) > 1 else values[0]] += diff
    return found
