"""gRPC ignores an argument whose name it does not know: a misspelt one is a setting that silently is not there."""

from pathlib import Path

import grpc._cython.cygrpc
import pytest

from persist.client.remote.channel import channel_options
from persist.settings import Settings
from persist_host.options import server_options

CLIENT = dict(channel_options(Settings()))
SERVER = dict(server_options(Settings()))


@pytest.mark.parametrize("name", sorted({*CLIENT, *SERVER}))
def test_argument_is_one_the_library_knows(name):
    library = Path(grpc._cython.cygrpc.__file__).read_bytes()
    assert name.encode() + b"\0" in library


def test_server_bears_how_often_clients_ping():
    assert SERVER["grpc.keepalive_permit_without_calls"] == CLIENT["grpc.keepalive_permit_without_calls"] == 1
    # The server's default is 300 s, and 7,200 s for a connection without calls: beyond it "too many pings" ends it.
    assert SERVER["grpc.http2.min_ping_interval_without_data_ms"] * 2 <= CLIENT["grpc.keepalive_time_ms"]
    assert CLIENT["grpc.http2.max_pings_without_data"] == 0
