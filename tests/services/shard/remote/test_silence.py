"""What calls say when no server answers: who was asked, that there was no answer, and a next step."""

from collections.abc import Callable
from typing import Any

import pytest
from client.support import SCHEMA, memory_place, server_of, table
from services.proxy import Proxy, proxy_to

from persist import ShardId, aio
from persist.errors import Determinate, Indeterminate, LocationError

ROWS = table([(2, "b", 1, 1)])
SECONDS = 0.5


class Handles:
    """A client that has talked to its server, and what it got from there."""

    def __init__(self, client: aio.Client, writer: Any, reader: Any, hold: Any) -> None:
        self.client, self.writer, self.reader, self.hold = client, writer, reader, hold


def call(what: Callable[[Handles], Any], kind: type[LocationError], step: str, id_: str) -> Any:
    return pytest.param(what, kind, step, id=id_)


CALLS = [
    call(lambda h: h.client.open_writer(ShardId.new(), schema=SCHEMA, timeout=SECONDS), Indeterminate, "", "open"),
    call(lambda h: h.client.finalize(h.writer.shard, force=True, timeout=SECONDS), Determinate, "", "finalize"),
    call(lambda h: h.reader.heartbeat(timeout=SECONDS), Indeterminate, "same call", "heartbeat"),
    call(lambda h: h.reader.downgrade_since(1, timeout=SECONDS), Indeterminate, "same call", "downgrade"),
    call(lambda h: h.reader.expire(timeout=SECONDS), Indeterminate, "same call", "expire"),
    call(lambda h: h.writer.expire(timeout=SECONDS), Indeterminate, "same call", "writer"),
    call(lambda h: h.writer.append(ROWS, 2, timeout=SECONDS), Indeterminate, "repeat the same call", "append"),
    call(lambda h: h.writer.compare_and_append(ROWS, 1, 2, timeout=SECONDS), Indeterminate, "resolve()", "compare"),
    call(lambda h: h.hold.compare_and_downgrade(b"", 1, timeout=SECONDS), Indeterminate, "same arguments", "critical"),
    call(lambda h: h.reader.snapshot(0, timeout=SECONDS), Determinate, "retry", "snapshot"),
    call(lambda h: h.client.inspect(h.writer.shard, timeout=SECONDS), Determinate, "retry", "inspect"),
]


@pytest.mark.parametrize("broken", [False, True], ids=["silent", "broken"])
@pytest.mark.parametrize(("what", "kind", "step"), CALLS)
async def test_who_hears_nothing_is_told_so_and_what_this_call_allows(what: Any, kind: Any, step: str, broken: bool):
    async with server_of(memory_place()) as server, proxy_to(server) as proxy:
        async with await aio.connect(proxy.endpoint) as client:
            writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
            await writer.append(table([(1, "a", 0, 1)]), 1)
            handles = Handles(client, writer, reader, await client.open_since("me", writer.shard))
            _silence(proxy, broken=broken)
            with pytest.raises(LocationError) as failed:
                await what(handles)
            proxy.silent = False
        error = failed.value
        if broken:
            # Whether it was sent before the connection was found broken is chance.
            assert error.message.startswith(
                ("no answer from", "no connection to", "nothing was sent", "deadline passed")
            )
        else:
            assert error.message.startswith(f"no answer from {proxy.endpoint}"), str(error)
            assert (type(error), step in error.hint) == (kind, True), repr(error.hint)
        assert "answered" not in str(error)
        assert "token" not in error.hint


def _silence(proxy: Proxy, *, broken: bool) -> None:
    if broken:
        proxy.deaf = True
        proxy.shut()
    else:
        proxy.silent = True
